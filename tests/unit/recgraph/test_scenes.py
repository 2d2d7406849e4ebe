"""Scene configuration: validation, unknown scenes, reload."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from recgraph.errors import BadRequest, DataError
from recgraph.scenes import SceneFileWatch, parse_scenes

DEFAULT = Path(__file__).parents[3] / "inferencegraph" / "scenes.yaml"


def test_default_file_is_valid() -> None:
    scenes = SceneFileWatch(DEFAULT)
    assert scenes.get("home_feed").page_size == 20
    assert len(scenes.current()) >= 2


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("scenes: [", "not YAML"),
        ("scenes: {}", "scenes:"),
        ("- a", "(file)"),
        ("scenes: {a: {pagesize: 3}}", "scenes.a.pagesize"),
        ("scenes: {a: {page_size: 0}}", "scenes.a.page_size"),
        ("scenes: {a: {rules: {cap: {max: 0}}}}", "scenes.a.rules.cap.max"),
        ("scenes: {a: {rules: {mmr_lambda: 2}}}", "scenes.a.rules.mmr_lambda"),
        ("scenes: {a: {recall: {ann: 0, i2i: 0, hot: 0, fresh: 0}}}", "scenes.a.recall"),
        ("scenes: {a: {recall: {ann: 5000, i2i: 1}}}", "scenes.a.recall"),
        ("scenes: {a: {rules: {boost: [{factor: 2}]}}}", "scenes.a.rules.boost.0"),
        ("scenes: {a: {rules: {boost: [{factor: 2, item_id: x, category: y}]}}}", "scenes.a.rules.boost.0"),
        ("scenes: {a: {page_size: 3, rules: {pin: [{item_id: x, position: 4}]}}}", "position 4"),
        ("scenes: {a: {rules: {pin: [{item_id: x, position: 1}, {item_id: y, position: 1}]}}}", "scenes.a.rules"),
        ("scenes: {a: {page_size: 3, rules: {exploration: {position: 4, share: 1}}}}", "rules.exploration: position"),
        ("scenes: {a: {pools: {scene: b}}}", "scenes.a.pools.scene"),
        ("scenes: {a: {rules: {exploration: {channels: [ads]}}}}", "scenes.a.rules.exploration.channels.0"),
    ],
)
def test_errors_name_file_and_path(text: str, path: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_scenes(text, "some.yaml")
    assert str(caught.value).startswith("some.yaml: ")
    assert path in str(caught.value)


def test_unknown_scene_names_the_known_ones() -> None:
    with pytest.raises(BadRequest) as caught:
        SceneFileWatch(DEFAULT).get("nowhere")
    assert caught.value.path == "$.user.scene"
    assert "home_feed, new_arrivals" in caught.value.reason


def test_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.yaml: cannot be read"):
        SceneFileWatch(tmp_path / "none.yaml")


def test_reload_takes_good_versions_and_keeps_the_last_good_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, now = tmp_path / "scenes.yaml", [0.0]
    path.write_text("scenes: {a: {page_size: 5}}")
    scenes = SceneFileWatch(path, lambda: now[0])

    def write(text: str) -> None:
        # As kubectl and editors do: a new file in the old one's place.
        (tmp_path / "next").write_text(text)
        os.replace(tmp_path / "next", path)
        now[0] += 2.0

    write("scenes: {a: {page_size: 6}}")
    assert scenes.get("a").page_size == 6
    version = scenes.version
    with caplog.at_level(logging.ERROR):
        write("scenes: {a: {page_size: many}}")
        assert scenes.get("a").page_size == 6
        now[0] += 2.0
        assert scenes.get("a").page_size == 6
    assert scenes.version == version
    assert [record.message for record in caplog.records if "scenes.a.page_size" in record.message] != []
    assert len(caplog.records) == 1, "an unusable file is reported once, not at every look"
    path.unlink()
    now[0] += 2.0
    assert scenes.get("a").page_size == 6
    write("scenes: {b: {}}")
    with pytest.raises(BadRequest):
        scenes.get("a")


UNREADABLE = [
    "scenes: {a: {pools: {fixed: [2024-13-45]}}}",
    "scenes: {a: {page_size: 1" + "0" * 5000 + "}}",
    "scenes: " + "[" * 5000,
    'scenes: {a: !!timestamp "x"}',
    'scenes: {a: !!bool "x"}',
    "scenes: {a: {}, a: {page_size: 5}}",
    "scenes: {a: {page_size: 5, page_size: 7}}",
]


@pytest.mark.parametrize("text", UNREADABLE)
def test_whatever_yaml_lets_out_names_the_file(text: str) -> None:
    with pytest.raises(DataError, match=r"^some\.yaml: "):
        parse_scenes(text, "some.yaml")


@pytest.mark.parametrize("text", [*UNREADABLE, b"\xff"])
def test_no_file_takes_the_scenes_away(tmp_path: Path, text: str | bytes, caplog: pytest.LogCaptureFixture) -> None:
    path, now = tmp_path / "scenes.yaml", [0.0]
    path.write_text("scenes: {a: {page_size: 6}}")
    scenes = SceneFileWatch(path, lambda: now[0])
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    now[0] += 2.0
    assert scenes.get("a").page_size == 6
    assert "scenes kept at version" in caplog.text


def test_a_file_that_is_gone_is_reported_once_and_read_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, now = tmp_path / "scenes.yaml", [0.0]
    path.write_text("scenes: {a: {page_size: 6}}")
    scenes = SceneFileWatch(path, lambda: now[0])
    path.unlink()
    for _ in range(3):
        now[0] += 2.0
        assert scenes.get("a").page_size == 6
    assert len(caplog.records) == 1
    path.write_text("scenes: {a: {page_size: 7}}")
    now[0] += 2.0
    assert scenes.get("a").page_size == 7


def test_a_file_that_is_not_utf8_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "scenes.yaml").write_bytes(b"\xff")
    with pytest.raises(DataError, match="not UTF-8"):
        SceneFileWatch(tmp_path / "scenes.yaml")


def test_merged_keys_may_be_overridden() -> None:
    text = "scenes: {a: &a {page_size: 5, coarse_keep: 9}, b: {<<: *a, page_size: 6}}"
    assert parse_scenes(text, "f")["b"].page_size == 6
