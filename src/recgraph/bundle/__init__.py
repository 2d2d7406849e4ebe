"""Bundles: everything that was trained together, as one directory."""
