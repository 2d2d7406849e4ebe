"""The feature sources: exact rows, exact types, and never a value from the future."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from recgraph.data.log import DAY_US, HOUR_US, SECOND_US
from recgraph.data.sources import VIEWS, Span, span_of, write_sources
from recgraph.data.stats import ItemStats, UserProfiles
from recgraph.data.world import World, sha256, times_us
from recgraph.errors import DataError
from recgraph.features.reader import ListColumn

NAN = float("nan")
STAMP = "timestamp[us, tz=UTC]"
WINDOWS = ("12h", "1d", "2d", "3d", "7d", "14d", "30d", "90d")


def tables(folder: Path) -> dict[str, Any]:
    return {view: pq.read_table(folder / f"{view}.parquet") for view in VIEWS}


def types(table: Any) -> dict[str, str]:
    return {field.name: str(field.type).replace("element", "item") for field in table.schema}


@pytest.mark.parametrize("cadence", [0, HOUR_US, DAY_US])
def test_rows_are_the_statistics_at_their_time(small_world: World, tmp_path: Path, cadence: int) -> None:
    rows = write_sources(small_world, tmp_path, span_of(small_world, cadence))
    found = tables(tmp_path)
    assert rows == {view: len(table) for view, table in found.items()}
    log = small_world.log
    for view, maker in (("item_stats", ItemStats(log)), ("user_profile", UserProfiles(small_world))):
        table = found[view]
        entity = table.column_names[0]
        codes = np.array([int(text[2:]) for text in table[entity].to_pylist()])
        times = times_us(table["event_timestamp"])
        assert np.array_equal(np.lexsort((times, codes)), np.arange(len(codes)))
        assert (times_us(table["created"]) >= times).all()
        for name, column in maker.as_of(codes, times).items():
            expected = column if not isinstance(column, ListColumn) else [column.row(k) for k in range(len(codes))]
            assert table[name].to_pylist() == [value.tolist() for value in expected], name


def test_what_happens_later_changes_no_earlier_row(small_world: World, tmp_path: Path, make_world: Any) -> None:
    log = small_world.log
    split = int(log.time_us[200])
    span = Span(HOUR_US, split)
    write_sources(small_world, tmp_path / "all", span)
    past = log.before(split + 1)
    events = zip(past.user_row, past.item_row, past.time_us - 1_700_000_000 * SECOND_US, past.clicked, past.rating)  # noqa: B905
    write_sources(make_world(list(events)), tmp_path / "past", span)
    full, short = tables(tmp_path / "all"), tables(tmp_path / "past")
    for view in set(VIEWS) - {"item_profile"}:
        assert full[view].equals(short[view]), view
    early = [row for row in full["item_profile"].to_pylist() if row["available"]]
    assert early == [row for row in short["item_profile"].to_pylist() if row["available"]]
    assert all(row["available"] for row in full["item_profile"].to_pylist()), "removal is not known before the end"


def test_lists_of_clicks_and_seen(make_world: Any, tmp_path: Path) -> None:
    seconds = [0, 10, 20, 30]
    events = [
        (0, 0, seconds[0] * SECOND_US, True, NAN),
        (0, 2, seconds[1] * SECOND_US, False, 3.0),
        (0, 4, seconds[2] * SECOND_US, False, NAN),
        (0, 0, seconds[3] * SECOND_US, True, NAN),
    ]
    write_sources(world := make_world(events), tmp_path, span_of(world, 0))
    start = 1_700_000_000
    clicks = tables(tmp_path)["user_clicks"].drop_columns(["event_timestamp", "created"]).to_pylist()
    assert clicks == [
        {"user_id": "u_0", "item_ids": ["i_0"], "times": [start], "categories": ["a"]},
        {"user_id": "u_0", "item_ids": ["i_0", "i_0"], "times": [start + 30, start], "categories": ["a", "a"]},
    ]
    seen = tables(tmp_path)["user_seen"]["item_ids"].to_pylist()
    assert seen == [["i_0"], ["i_2", "i_0"], ["i_0", "i_2"]]


def test_profile_row_is_dated_where_the_item_begins(make_world: Any, tmp_path: Path) -> None:
    write_sources(
        world := make_world([(0, 3, 5 * SECOND_US, True, NAN), (0, 0, DAY_US, True, NAN)]), tmp_path, span_of(world, 0)
    )
    rows = tables(tmp_path)["item_profile"].to_pylist()
    dated = [(row["item_id"], row["event_timestamp"].timestamp() - 1_700_000_000, row["available"]) for row in rows]
    # i_3 is used before its publish time; i_1 is known to be gone at the end of the data only.
    assert dated == [
        ("i_0", -30 * 86_400, 1),
        ("i_1", 0, 1),
        ("i_1", 86_400, 0),
        ("i_2", 3600, 1),
        ("i_3", 5, 1),
        ("i_4", 0, 1),
    ]
    assert rows[4]["publish_time"] == 1_700_000_000 + 86_400


def test_columns_are_those_of_the_architecture(small_world: World, tmp_path: Path) -> None:
    write_sources(small_world, tmp_path, span_of(small_world, DAY_US))
    found = tables(tmp_path)
    stamps = {"event_timestamp": STAMP, "created": STAMP}
    text, texts = "string", "list<item: string>"
    assert types(found["item_profile"]) == {
        "item_id": text, **stamps, "title": text, "category": text, "categories": texts, "creator": text,
        "publish_time": "int64", "available": "int64",
    }  # fmt: skip
    counts = [f"{kind}_{name}" for name in WINDOWS for kind in ("impressions", "clicks")]
    counts += [
        "rating_sum_30d",
        "rating_count_30d",
        "rating_sum_all",
        "rating_count_all",
        "impressions_all",
        "clicks_all",
    ]
    times = dict.fromkeys(["first_event_time", "last_event_time", "last_click_time"], "int64")
    assert types(found["item_stats"]) == {"item_id": text, **stamps, **dict.fromkeys(counts, "float"), **times}
    floats = [f"{kind}_{name}" for kind in ("clicks", "impressions") for name in ("all", "7d", "30d")]
    floats += ["rating_sum_all", "rating_count_all", "rating_sq_sum_all", "active_days"]
    assert types(found["user_profile"]) == {
        "user_id": text, **stamps, **dict.fromkeys(floats, "float"), "first_event_time": "int64",
        "last_event_time": "int64", "top_categories": texts, "category_clicks": "list<item: float>",
    }  # fmt: skip
    assert types(found["user_clicks"]) == {
        "user_id": text, **stamps, "item_ids": texts, "times": "list<item: int64>", "categories": texts,
    }  # fmt: skip
    assert types(found["user_seen"]) == {"user_id": text, **stamps, "item_ids": texts}


def test_a_part_of_the_time_joins_onto_the_whole(small_world: World, tmp_path: Path) -> None:
    log = small_world.log
    start, end = int(log.time_us[100]), int(log.time_us[250])
    write_sources(small_world, tmp_path / "all", span_of(small_world, 0))
    write_sources(small_world, tmp_path / "part", span_of(small_world, 0, start, end))
    for view in set(VIEWS) - {"item_profile"}:
        whole = tables(tmp_path / "all")[view].to_pylist()
        state: dict[str, Any] = {}
        inside = []
        for row in whole:
            at = round(row["event_timestamp"].timestamp() * 1e6)
            if at < start:
                state[row[next(iter(row))]] = row
            elif at <= end:
                inside.append(row)
        expected = [*state.values(), *inside]
        found = tables(tmp_path / "part")[view].to_pylist()
        key = lambda row: (row[next(iter(row))], row["event_timestamp"])  # noqa: E731
        assert found == sorted(expected, key=key), view


def test_same_world_same_bytes_even_in_small_row_groups(
    small_world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        write_sources(small_world, tmp_path / name, span_of(small_world, HOUR_US))
    for view in VIEWS:
        assert sha256(tmp_path / "one" / f"{view}.parquet") == sha256(tmp_path / "two" / f"{view}.parquet")
    monkeypatch.setattr("recgraph.data.sources._ROWS", 7)
    write_sources(small_world, tmp_path / "two", span_of(small_world, HOUR_US))
    one, two = tables(tmp_path / "one"), tables(tmp_path / "two")
    assert all(one[view].equals(two[view]) for view in VIEWS)


def test_an_end_after_the_data_is_cut(small_world: World) -> None:
    assert span_of(small_world, 0, end_us=2**60).end_us == small_world.end_us


def test_a_world_without_events_has_empty_sources(make_world: Any, tmp_path: Path) -> None:
    write_sources(world := make_world([]), tmp_path, span_of(world, 0))
    assert [len(tables(tmp_path)[view]) for view in ("item_stats", "user_profile", "user_clicks", "user_seen")] == [
        0
    ] * 4


def test_a_foreign_folder_is_left_alone(small_world: World, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match=r"neither empty nor a folder of feature sources"):
        write_sources(small_world, tmp_path, span_of(small_world, 0))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(("cadence", "start", "message"), [(-1, None, "negative"), (0, 11, "after end")])
def test_impossible_spans(cadence: int, start: int | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Span(cadence, 10, start)


@pytest.mark.parametrize("cadence", [0, HOUR_US])
def test_a_row_known_at_an_event_does_not_count_it(small_world: World, tmp_path: Path, cadence: int) -> None:
    write_sources(small_world, tmp_path, span_of(small_world, cadence))
    table, log = tables(tmp_path)["item_stats"], small_world.log
    items = np.array([int(text[2:]) for text in table["item_id"].to_pylist()])
    created, shown = times_us(table["created"]), table["impressions_all"].to_numpy()
    for item, at in zip(log.item_row, log.time_us, strict=True):
        known = shown[(items == item) & (created <= at)]
        earlier = int(((log.item_row == item) & (log.time_us < at)).sum())
        counted = int(known[-1]) if len(known) else 0
        assert counted == earlier if cadence == 0 else counted <= earlier
