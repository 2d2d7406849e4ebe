"""recgraph: the online inference of a recommender as a KServe InferenceGraph."""
