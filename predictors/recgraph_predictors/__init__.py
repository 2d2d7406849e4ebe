"""Predictors on the KServe SDK: one module per stage."""
