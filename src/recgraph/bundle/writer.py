"""Writing bundles: built aside, shown whole."""

from __future__ import annotations

import re
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from recgraph.bundle.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    STAGES,
    FileEntry,
    Lineage,
    Manifest,
    content_version,
    file_sha256,
    read_manifest,
)
from recgraph.bundle.store import FEATURES, POOLS, Pools
from recgraph.errors import BundleError
from recgraph.features.schema import FeatureSet

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class BundleWriter:
    """Builds a bundle in a hidden directory beside its place and renames it there when it is complete.

    A context manager: what was not committed is removed on the way out.
    """

    def __init__(self, bundles: str | Path) -> None:
        self._root = Path(bundles)
        self._root.mkdir(parents=True, exist_ok=True)
        self.path = Path(tempfile.mkdtemp(prefix=".building-", dir=self._root))
        # mkdtemp makes it 0700; a bundle is read by processes of other users.
        self.path.chmod(0o755)

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def folder(self, name: str) -> Path:
        """A folder of the bundle (`recall`, `ids`, `warmup` ...), made if it is not there."""
        path = self.path / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def write_json(self, name: str, value: Any) -> None:
        """A JSON file with sorted keys, so that equal values give equal bytes."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=1))

    def commit(
        self,
        *,
        features: FeatureSet,
        pools: Pools,
        metrics: dict[str, Any],
        lineage: Lineage,
        version: str | None = None,
        created: datetime | None = None,
    ) -> Path:
        """Write the manifest and show the bundle; returns its folder `<bundles>/<version>`.

        Without a version the bundle is named by a digest of its files, and one that is there already is kept.
        Raises BundleError when a stage is missing, or when the name is taken by other content.
        """
        self.write_json(FEATURES, features)
        self.write_json(POOLS, pools)
        files = self._files()
        for stage in STAGES:
            if not any(name.startswith(f"{stage}/") for name in files):
                raise BundleError(f"{self.path}: the stage {stage!r} is missing")
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            version=check_version(version) if version is not None else content_version(files),
            created=(created or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="microseconds"),
            feature_schema_hash=features.schema_hash,
            files=files,
            metrics=metrics,
            lineage=lineage,
        )
        self.write_json(MANIFEST, manifest)
        return self._publish(manifest)

    def _files(self) -> dict[str, FileEntry]:
        found = sorted(path for path in self.path.rglob("*") if path.is_file())
        for path in found:
            path.chmod(0o644)  # safetensors writes 0600; the processes that serve may run as another user
        return {
            path.relative_to(self.path).as_posix(): FileEntry(path.stat().st_size, file_sha256(path)) for path in found
        }

    def _publish(self, manifest: Manifest) -> Path:
        target = self._root / manifest.version
        if target.exists():
            if read_manifest(target).files != manifest.files:
                raise BundleError(f"{target}: a bundle of this version with other content is there already")
            return target
        return self.path.rename(target)


def check_version(version: str) -> str:
    """The name of a bundle. Raises BundleError for one that cannot be a folder, or means something else."""
    if version == "latest" or not _VERSION.fullmatch(version):
        raise BundleError(
            f"bundle version {version!r}: use letters, digits, '.', '_' and '-', at most 63, and not 'latest'"
        )
    return version
