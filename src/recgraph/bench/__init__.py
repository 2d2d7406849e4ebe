"""Benchmarks: what `recgraph bench` measures."""
