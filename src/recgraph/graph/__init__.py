"""The InferenceGraph manifest and the local router that runs it."""
