"""KServe's InferenceGraph: its manifest, and a router for one machine that behaves like KServe's."""
