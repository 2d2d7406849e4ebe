"""Bundles: whole and fitting, or refused with the file and the reason."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from recgraph.bundle import STAGES, Bundle, BundleWriter, DataWindow, Lineage, latest, resolve
from recgraph.errors import BundleError
from recgraph.features.schema import FeatureSet, Field, ViewSchema

FEATURES = FeatureSet(
    project="p",
    views=(ViewSchema("item_profile_v1", "item", 0, (Field("title", "text"),)),),
    services={"fine": ("item_profile_v1",)},
)
LINEAGE = Lineage("abc", "1", {"fine": ("item_profile_v1",)}, DataWindow(0, 90, 100), 7, {"dim": 4})
CREATED = datetime(2026, 1, 1, tzinfo=UTC)


def write(root: Path, content: str = "x", version: str | None = None, created: datetime = CREATED) -> Path:
    with BundleWriter(root) as writer:
        for stage in STAGES:
            (writer.folder(stage) / "model.json").write_text(content)
        return writer.commit(
            features=FEATURES,
            pools={"home_feed": {"hot": [("i", 1.5)], "fresh": []}},
            metrics={"auc": 0.7},
            lineage=LINEAGE,
            version=version,
            created=created,
        )


def test_what_was_written_is_read(tmp_path: Path):
    path = write(tmp_path)
    bundle = Bundle.open(path, verify="hash")
    assert bundle.version == path.name == bundle.manifest.version
    assert bundle.features == FEATURES
    assert bundle.pools["home_feed"]["hot"] == [("i", 1.5)]
    assert bundle.manifest.lineage == LINEAGE
    assert bundle.stage_dir("fine") == path / "fine"
    assert [child.name for child in tmp_path.iterdir()] == [path.name]


def test_another_user_can_read_what_was_written(tmp_path: Path):
    with BundleWriter(tmp_path) as writer:
        for stage in STAGES:
            (writer.folder(stage) / "model.safetensors").touch(mode=0o600)
        path = writer.commit(features=FEATURES, pools={}, metrics={}, lineage=LINEAGE)
    assert {file.stat().st_mode & 0o777 for file in path.glob("*/model.safetensors")} == {0o644}


def test_a_version_nobody_named_follows_the_content(tmp_path: Path):
    first = write(tmp_path)
    assert write(tmp_path, created=CREATED + timedelta(days=1)) == first
    assert write(tmp_path, content="y") != first


def test_a_taken_name_is_refused_for_other_content(tmp_path: Path):
    write(tmp_path, version="v1")
    with pytest.raises(BundleError, match=r"v1: a bundle of this version with other content"):
        write(tmp_path, content="y", version="v1")
    assert (tmp_path / "v1" / "fine" / "model.json").read_text() == "x"


@pytest.mark.parametrize("version", ["latest", "../x", ".hidden", "a/b", "x" * 64])
def test_a_name_that_is_no_folder_name_is_refused(tmp_path: Path, version: str):
    with pytest.raises(BundleError, match="bundle version"):
        write(tmp_path, version=version)


def test_a_failed_build_leaves_nothing(tmp_path: Path):
    with BundleWriter(tmp_path) as writer:
        for stage in STAGES[:-1]:
            (writer.folder(stage) / "model.json").write_text("x")
        with pytest.raises(BundleError, match="'rerank' is missing"):
            writer.commit(features=FEATURES, pools={}, metrics={}, lineage=LINEAGE)
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_file_is_refused_by_size(tmp_path: Path):
    path = write(tmp_path)
    (path / "fine" / "model.json").write_text("")
    with pytest.raises(BundleError, match=r"fine/model\.json: 0 bytes, the manifest says 1"):
        Bundle.open(path)


def test_a_changed_file_is_refused_by_hash(tmp_path: Path):
    path = write(tmp_path)
    (path / "coarse" / "model.json").write_text("z")
    Bundle.open(path)
    with pytest.raises(BundleError, match=r"coarse/model\.json: content does not match"):
        Bundle.open(path, verify="hash")


def test_a_lost_file_is_refused(tmp_path: Path):
    path = write(tmp_path)
    (path / "recall" / "model.json").unlink()
    with pytest.raises(BundleError, match=r"recall/model\.json: No such file"):
        Bundle.open(path)


def change_manifest(path: Path, **changes: object) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "format version 2, this program reads 1"),
        ({"format_version": 2, "files": None}, "format version 2, this program reads 1"),
        ({"files": {}}, "the stage 'recall' is missing"),
        ({"feature_schema_hash": "0"}, "the manifest says 0"),
        ({"lineage": 3}, r"\$\.lineage"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, object], message: str):
    path = write(tmp_path)
    change_manifest(path, **changes)
    with pytest.raises(BundleError, match=message):
        Bundle.open(path)


def test_a_file_name_that_leaves_the_bundle_is_refused(tmp_path: Path):
    path = write(tmp_path)
    files = json.loads((path / "manifest.json").read_text())["files"]
    change_manifest(path, files=files | {"../secret": {"size": 1, "sha256": ""}})
    with pytest.raises(BundleError, match="leaves the bundle"):
        Bundle.open(path)


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_manifest_that_is_no_json_object_is_refused(tmp_path: Path, text: str):
    path = write(tmp_path)
    (path / "manifest.json").write_text(text)
    with pytest.raises(BundleError, match=r"manifest\.json"):
        Bundle.open(path)


def test_latest_is_the_newest_and_skips_what_is_no_bundle(tmp_path: Path):
    write(tmp_path, "b", "b", CREATED + timedelta(seconds=1))
    write(tmp_path, "a", "a", CREATED)
    (tmp_path / "notes").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")
    assert latest(tmp_path) == resolve(tmp_path) == tmp_path / "b"
    assert resolve(tmp_path, "a") == tmp_path / "a"
    with pytest.raises(BundleError, match="no such bundle"):
        resolve(tmp_path, "c")


def test_a_folder_without_bundles_has_no_latest(tmp_path: Path):
    with pytest.raises(BundleError, match="no bundle in this folder"):
        latest(tmp_path)
