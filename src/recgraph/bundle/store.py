"""Opening bundles: a process either gets a whole, fitting one or refuses to start."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Literal, TypeVar

import msgspec

from recgraph.bundle.idmap import IdMap
from recgraph.bundle.manifest import MANIFEST, STAGES, FileEntry, Manifest, file_sha256, read_manifest
from recgraph.errors import BundleError
from recgraph.features.schema import FeatureSet

T = TypeVar("T")

Pools = dict[str, dict[str, list[tuple[str, float]]]]
"""Scene -> `hot` or `fresh` -> (item id, score), best first."""

FEATURES = "features.json"
POOLS = "pools.json"


@dataclass(frozen=True)
class Bundle:
    """A checked bundle. Its small files are read; models and arrays are left to the stages that need them."""

    path: Path
    manifest: Manifest
    features: FeatureSet
    pools: Pools

    @classmethod
    def open(cls, path: str | Path, verify: Literal["size", "hash"] = "size") -> Bundle:
        """Open and check a bundle.

        `verify="size"` compares the size of every file (milliseconds), `"hash"` reads them all. Raises BundleError
        that names the file and the reason when the bundle is damaged, of an unknown format, or lacks a stage.
        """
        folder = Path(path)
        manifest = read_manifest(folder)
        _check_stages(folder, manifest)
        for name, entry in manifest.files.items():
            _check_file(folder, name, entry, verify)
        features = _decode(folder, FEATURES, FeatureSet)
        if features.schema_hash != manifest.feature_schema_hash:
            raise BundleError(
                f"{folder / FEATURES}: schema hash {features.schema_hash}, "
                f"the manifest says {manifest.feature_schema_hash}"
            )
        return cls(folder, manifest, features, _decode(folder, POOLS, Pools))

    @property
    def version(self) -> str:
        """The version under which the bundle was written."""
        return self.manifest.version

    def stage_dir(self, stage: str) -> Path:
        """The folder of a stage's model. Raises BundleError for a stage that no bundle has."""
        if stage not in STAGES:
            raise BundleError(f"{self.path}: no stage {stage!r}, there are {', '.join(STAGES)}")
        return self.path / stage

    @cached_property
    def item_ids(self) -> IdMap:
        """Item ids and their row numbers; every per-item array of the bundle is in this order."""
        return IdMap.open(self.path / "ids" / "items")

    @cached_property
    def user_ids(self) -> IdMap:
        """User ids and their row numbers."""
        return IdMap.open(self.path / "ids" / "users")


def _check_stages(folder: Path, manifest: Manifest) -> None:
    present = {PurePosixPath(name).parts[0] for name in manifest.files if "/" in name}
    for stage in STAGES:
        if stage not in present:
            raise BundleError(f"{folder / MANIFEST}: the stage {stage!r} is missing")
    for name in (FEATURES, POOLS):
        if name not in manifest.files:
            raise BundleError(f"{folder / MANIFEST}: the file {name!r} is missing")


def _check_file(folder: Path, name: str, entry: FileEntry, verify: Literal["size", "hash"]) -> None:
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        raise BundleError(f"{folder / MANIFEST}: the file name {name!r} leaves the bundle")
    path = folder / relative
    try:
        size = path.stat().st_size
    except OSError as error:
        raise BundleError(f"{path}: {error.strerror}") from error
    if size != entry.size:
        raise BundleError(f"{path}: {size} bytes, the manifest says {entry.size}")
    if verify == "hash" and file_sha256(path) != entry.sha256:
        raise BundleError(f"{path}: content does not match the sha256 of the manifest")


def _decode(folder: Path, name: str, kind: type[T]) -> T:
    path = folder / name
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise BundleError(f"{path}: {error}") from error


def latest(bundles: str | Path) -> Path:
    """The newest bundle in a folder of bundles, by the manifest's `created`. Raises BundleError if there is none.

    A folder without a manifest, or of another format, is not a bundle of ours and is passed over.
    """
    root = Path(bundles)
    found: list[tuple[str, str, Path]] = []
    for path in sorted(root.glob(f"*/{MANIFEST}")):
        if path.parent.name.startswith("."):
            continue
        try:
            manifest = read_manifest(path.parent)
        except BundleError:
            continue
        found.append((manifest.created, manifest.version, path.parent))
    if not found:
        raise BundleError(f"{root}: no bundle in this folder")
    return max(found)[2]


def resolve(bundles: str | Path, version: str = "latest") -> Path:
    """The folder of a version in a folder of bundles; `latest` is the newest. Raises BundleError if it is not there."""
    if version == "latest":
        return latest(bundles)
    path = Path(bundles) / version
    if not (path / MANIFEST).is_file():
        raise BundleError(f"{path}: no such bundle")
    return path
