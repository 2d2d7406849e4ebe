"""Data sets: the synthetic world, MovieLens-format files, and the sources for Feast made of them."""
