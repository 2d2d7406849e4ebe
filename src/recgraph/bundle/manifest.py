"""manifest.json: what a bundle is, what is in it, and where it came from."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from recgraph.errors import BundleError

FORMAT_VERSION = 1
"""Raised when a reader of the former format could not read the new one."""

STAGES = ("recall", "coarse", "fine", "rerank")
"""The stages that have a model of their own; each has a folder in the bundle."""

MANIFEST = "manifest.json"


class FileEntry(msgspec.Struct, frozen=True):
    """One file of the bundle: size in bytes and hex digest."""

    size: int
    sha256: str


class DataWindow(msgspec.Struct, frozen=True):
    """The events behind a bundle, in Unix seconds.

    Models were fitted on [start, split). Pools, statistics and the items known are those at `end`;
    [split, end] was held out for the metrics.
    """

    start: int
    split: int
    end: int


class Lineage(msgspec.Struct, frozen=True):
    """Where a bundle came from: enough to make it again."""

    commit: str
    registry_version: str
    feature_services: dict[str, tuple[str, ...]]
    data_window: DataWindow
    seed: int
    parameters: dict[str, Any]


class Manifest(msgspec.Struct, frozen=True):
    """The content of manifest.json. `created` is ISO 8601 in UTC; `files` are by path relative to the bundle."""

    format_version: int
    version: str
    created: str
    feature_schema_hash: str
    files: dict[str, FileEntry]
    metrics: dict[str, Any]
    lineage: Lineage


class _Format(msgspec.Struct):
    format_version: int


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle. Raises BundleError that names the file and what is wrong with it."""
    path = folder / MANIFEST
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        found = msgspec.json.decode(raw, type=_Format).format_version
        if found != FORMAT_VERSION:
            raise BundleError(f"{path}: format version {found}, this program reads {FORMAT_VERSION}")
        return msgspec.json.decode(raw, type=Manifest)
    except msgspec.DecodeError as error:
        raise BundleError(f"{path}: {error}") from error


def file_sha256(path: Path) -> str:
    """Hex digest of a file, read in blocks."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def content_version(files: dict[str, FileEntry]) -> str:
    """The version of a bundle nobody named: a digest over its files, so equal content has an equal version."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{files[name].sha256}\n".encode())
    return digest.hexdigest()[:12]
