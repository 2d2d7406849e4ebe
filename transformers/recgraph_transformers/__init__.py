"""Transformers on the KServe SDK: one module per stage, and what they share."""
