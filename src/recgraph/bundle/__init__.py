"""Bundles: everything that was trained together, as one directory."""

from recgraph.bundle.idmap import IdMap
from recgraph.bundle.manifest import FORMAT_VERSION, STAGES, DataWindow, FileEntry, Lineage, Manifest
from recgraph.bundle.store import Bundle, Pools, latest, resolve
from recgraph.bundle.writer import BundleWriter, check_version

__all__ = [
    "FORMAT_VERSION",
    "STAGES",
    "Bundle",
    "BundleWriter",
    "DataWindow",
    "FileEntry",
    "IdMap",
    "Lineage",
    "Manifest",
    "Pools",
    "check_version",
    "latest",
    "resolve",
]
