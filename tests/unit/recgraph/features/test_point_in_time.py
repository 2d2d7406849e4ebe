"""Reading the past: the row Feast would choose, never one from the future."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recgraph.errors import DataError
from recgraph.features.point_in_time import PointInTimeReader
from recgraph.features.reader import ListColumn
from recgraph.features.schema import Field, ViewSchema

VIEW = ViewSchema(
    "item_stats_v1",
    "item",
    50,
    (Field("clicks", "float32"), Field("words", "text_list"), Field("title", "text"), Field("number", "int64")),
)
SECOND = 1_000_000


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    stamp = pa.timestamp("us", "UTC")
    schema = pa.schema(
        [
            ("item_id", pa.string()),
            ("event_timestamp", stamp),
            ("created", stamp),
            ("clicks", pa.float32()),
            ("words", pa.list_(pa.string())),
            ("title", pa.string()),
            ("number", pa.int64()),
        ]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / "item_stats.parquet", row_group_size=50)


def row(item: str, event_s: int, created_s: int, number: int | None, **more: Any) -> dict[str, Any]:
    times = {"event_timestamp": event_s * SECOND, "created": created_s * SECOND}
    return (
        {"item_id": item, "clicks": float(number or 0), "title": f"t{number}", "words": [], "number": number}
        | times
        | more
    )


def numbers(reader: PointInTimeReader, item: str, times_s: list[int]) -> list[Any]:
    block = reader.read_at([VIEW], [item] * len(times_s), np.array(times_s) * SECOND)["item_stats"]
    return [
        None if null else int(value) for value, null in zip(block.columns["number"], block.nulls["number"], strict=True)
    ]  # type: ignore[arg-type]


def test_the_latest_row_known_at_the_moment(tmp_path: Path) -> None:
    write(tmp_path, [row("a", 10, 10, 1), row("a", 20, 40, 2), row("a", 30, 30, 3), row("b", 15, 15, 9)])
    reader = PointInTimeReader(tmp_path)
    assert numbers(reader, "a", [9, 10, 20, 29, 30, 45]) == [None, 1, 1, 1, 3, 3]
    assert numbers(reader, "b", [14, 15]) == [None, 9]
    assert numbers(reader, "unknown", [45]) == [None]


def test_a_row_that_came_late_is_not_known_before(tmp_path: Path) -> None:
    write(tmp_path, [row("a", 10, 10, 1), *(row("a", 20, 60 + i, 2) for i in range(5))])
    assert numbers(PointInTimeReader(tmp_path), "a", [59, 60]) == [1, 2]


def test_of_one_event_time_the_last_created_wins(tmp_path: Path) -> None:
    write(tmp_path, [row("a", 10, 12, 2), row("a", 10, 11, 1), row("a", 10, 14, 3)])
    assert numbers(PointInTimeReader(tmp_path), "a", [10, 11, 12, 13, 14]) == [None, 1, 2, 2, 3]


def test_the_ttl_is_inclusive(tmp_path: Path) -> None:
    write(tmp_path, [row("a", 10, 10, 1)])
    reader = PointInTimeReader(tmp_path)
    times = np.array([60 * SECOND, 60 * SECOND + 1])
    block = reader.read_at([VIEW], ["a", "a"], times)["item_stats"]
    assert block.stale.tolist() == [False, True]
    assert block.missing.tolist() == [False, False]
    assert block.columns["number"].tolist() == [1, 0]  # type: ignore[union-attr]
    assert block.nulls["title"].tolist() == [False, True]


async def test_read_is_read_at_one_moment(tmp_path: Path) -> None:
    rows = [row("é", 10, 10, 1, words=["x", "ü"]), row("b", 10, 10, None, words=None, title=None, clicks=float("nan"))]
    write(tmp_path, rows)
    blocks = await PointInTimeReader(tmp_path).read("item", [VIEW], ["b", "é", "é", "z"], now_s=20.0, timeout_s=1)
    block = blocks["item_stats"]
    words = block.columns["words"]
    assert isinstance(words, ListColumn)
    assert [list(words.row(i)) for i in range(4)] == [[], ["x", "ü"], ["x", "ü"], []]
    assert block.columns["title"].tolist() == ["", "t1", "t1", ""]  # type: ignore[union-attr]
    assert block.missing.tolist() == [False, False, False, True]
    for name in ("clicks", "words", "title", "number"):
        assert block.nulls[name].tolist() == [True, False, False, True]
    assert block.event_time_us.tolist() == [10 * SECOND] * 3 + [0]


def test_against_a_plain_search_over_random_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    rows = []
    for number in range(300):
        event = int(rng.integers(0, 120))
        rows.append(row(f"i{rng.integers(0, 12)}", event, event + int(rng.integers(0, 3) ** 4), number + 1))
    write(tmp_path, rows)
    ids = [f"i{i}" for i in rng.integers(0, 13, 400)]
    times = rng.integers(0, 150, 400)
    block = PointInTimeReader(tmp_path).read_at([VIEW], ids, times * SECOND)["item_stats"]

    for at, (item, time) in enumerate(zip(ids, times.tolist(), strict=True)):
        known = [
            own
            for own in rows
            if own["item_id"] == item
            and time - 50 <= own["event_timestamp"] / SECOND <= time
            and own["created"] / SECOND <= time
        ]
        best = max(known, key=lambda own: (own["event_timestamp"], own["created"]), default=None)
        if best is None:
            assert block.nulls["number"][at]
        else:
            ties = [
                own["number"]
                for own in known
                if (own["event_timestamp"], own["created"]) == (best["event_timestamp"], best["created"])
            ]
            assert block.columns["number"][at] in ties  # type: ignore[index]


def test_an_empty_file_knows_nothing(tmp_path: Path) -> None:
    write(tmp_path, [])
    assert numbers(PointInTimeReader(tmp_path), "a", [10]) == [None]


def test_bad_files_are_named(tmp_path: Path) -> None:
    reader = PointInTimeReader(tmp_path)
    with pytest.raises(DataError, match=r"item_stats\.parquet cannot be read"):
        reader.read_at([VIEW], ["a"], np.array([0]))
    pq.write_table(pa.table({"item_id": ["a"]}), tmp_path / "item_stats.parquet")
    with pytest.raises(DataError, match=r"item_stats\.parquet has no column event_timestamp, created, clicks"):
        reader.read_at([VIEW], ["a"], np.array([0]))
    wrong = {**row("a", 1, 1, 1), "number": "many"}
    table = pa.Table.from_pylist([wrong])
    for name in ("event_timestamp", "created"):
        at = table.column_names.index(name)
        table = table.set_column(at, name, table[name].cast(pa.timestamp("us", "UTC")))
    pq.write_table(table, tmp_path / "item_stats.parquet")
    with pytest.raises(DataError, match="column number is string, not int64"):
        reader.read_at([VIEW], ["a"], np.array([0]))


def test_times_finer_than_a_microsecond_are_refused_and_others_of_nanoseconds_read(tmp_path: Path) -> None:
    write(tmp_path, [row("a", 10, 10, 1)])
    path, fine = tmp_path / "item_stats.parquet", pa.timestamp("ns", "UTC")
    table = pq.read_table(path)
    for nanos, message in ((10_000_000_000, ""), (10_000_000_001, "created is not in whole microseconds")):
        column = pa.array([nanos]).cast(fine)
        pq.write_table(table.set_column(table.schema.get_field_index("created"), "created", column), path)
        if message:
            with pytest.raises(DataError, match=message):
                numbers(PointInTimeReader(tmp_path), "a", [10])
        else:
            assert numbers(PointInTimeReader(tmp_path), "a", [9, 10]) == [None, 1]
