"""Saving and loading data sets, and refusing what is none."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recgraph.data import world as container
from recgraph.data.log import EventLog
from recgraph.data.world import World
from recgraph.errors import DataError


@pytest.fixture
def saved(small_world: World, tmp_path: Path) -> Path:
    container.save(small_world, tmp_path / "world")
    return tmp_path / "world"


def test_what_is_saved_is_loaded(small_world: World, saved: Path) -> None:
    loaded = container.load(saved)
    assert loaded.users.equals(small_world.users)
    assert loaded.items.equals(small_world.items)
    for name in ("user_row", "item_row", "time_us", "clicked", "rating"):
        before, after = getattr(small_world.log, name), getattr(loaded.log, name)
        assert before.dtype == after.dtype
        assert np.array_equal(before, after, equal_nan=name == "rating"), name
    assert msgspec.structs.replace(loaded.meta, sha256={}) == small_world.meta
    assert loaded.meta.sha256 == {path.name: container.sha256(path) for path in saved.glob("*.parquet")}


def test_events_hold_ids_in_the_documented_types(small_world: World, saved: Path) -> None:
    events = pq.read_table(saved / "events.parquet")
    assert events.schema.equals(container.EVENTS)
    log = small_world.log
    assert events["item_id"].to_pylist() == small_world.item_ids[log.item_row].tolist()
    assert events["user_id"].to_pylist() == small_world.user_ids[log.user_row].tolist()


def test_item_columns_as_codes(small_world: World) -> None:
    names = small_world.category_names
    assert names.tolist() == ["", "a", "b", "c"]
    assert names[small_world.category_code].tolist() == ["a", "b", "", "c", "a"]
    categories = [names[small_world.categories.row(row)].tolist() for row in range(5)]
    assert categories == [["a", "b"], ["b"], [], ["c", "a"], ["a"]]
    assert small_world.creator_code.tolist() == [0, 1, 2, 0, 1]
    assert small_world.available.tolist() == [True, False, True, True, True]


def test_an_interrupted_save_can_be_repeated(small_world: World, saved: Path) -> None:
    (saved / "items.parquet.partial").write_bytes(b"half")
    container.save(small_world, saved)
    assert sorted(path.name for path in saved.iterdir()) == sorted([*container.TABLES, "meta.json"])


@pytest.mark.parametrize("name", ["notes.txt", "users.parquet"])
def test_a_folder_that_is_no_data_set_is_not_overwritten(small_world: World, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(DataError, match=f"not empty and not a data set.*{name}"):
        container.save(small_world, tmp_path)
    assert (tmp_path / name).read_text() == "precious"


def test_meta_of_something_else_is_not_overwritten(small_world: World, tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text('{"kind": "holiday photos"}')
    with pytest.raises(DataError, match=r"meta\.json.*holiday photos"):
        container.save(small_world, tmp_path)


def rewrite(path: Path, column: str, values: pa.Array) -> None:
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index(column), table.schema.field(column), values), path)


def test_missing_file_is_named(saved: Path) -> None:
    (saved / "items.parquet").unlink()
    with pytest.raises(DataError, match=r"items\.parquet: is missing"):
        container.load(saved)


def test_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no data set here \(meta\.json is missing\)"):
        container.load(tmp_path)


def test_damaged_file(saved: Path) -> None:
    (saved / "events.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(DataError, match=r"events\.parquet: cannot be read as Parquet"):
        container.load(saved)


def test_unsorted_ids(saved: Path) -> None:
    rewrite(saved / "users.parquet", "user_id", pa.array(["u_0", "u_2", "u_1", "u_3"]))
    with pytest.raises(DataError, match=r"users\.parquet: ids are not sorted and unique"):
        container.load(saved)


def test_event_of_an_unknown_item(saved: Path) -> None:
    rewrite(saved / "items.parquet", "item_id", pa.array(["i_0", "i_1", "i_2", "i_3", "i_9"]))
    with pytest.raises(DataError, match=r"events\.parquet: id 'i_4' of an event is not in the data set"):
        container.load(saved)


def test_wrong_column(saved: Path) -> None:
    pq.write_table(pa.table({"user_id": ["u_0"]}), saved / "users.parquet")
    with pytest.raises(DataError, match=r"users\.parquet: columns are"):
        container.load(saved)


def test_lost_events(saved: Path) -> None:
    events = pq.read_table(saved / "events.parquet")
    pq.write_table(events.slice(0, 299), saved / "events.parquet")
    with pytest.raises(DataError, match=r"\(4, 5, 299\), but meta\.json says otherwise"):
        container.load(saved)


def log_of(rows: list[int], times: list[int]) -> EventLog:
    codes = np.array(rows, np.int32)
    size = len(rows)
    return EventLog(codes, codes, np.array(times), np.zeros(size, np.bool_), np.zeros(size, np.float32), 3, 3)


@pytest.mark.parametrize(
    ("rows", "times", "message"),
    [
        ([0, 1], [2, 1], "not sorted by time"),
        ([0, 3], [1, 2], "not between 0 and 2"),
        ([0], [1, 2], "differ in length"),
    ],
)
def test_a_log_checks_itself(rows: list[int], times: list[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        log_of(rows, times)


def test_parts_of_a_log() -> None:
    log = log_of([0, 1, 2, 1], [10, 20, 20, 30])
    assert log.before(20).item_row.tolist() == [0]
    assert log.between(20, 30).item_row.tolist() == [1, 2]
    assert log.select(log.item_row == 1).time_us.tolist() == [20, 30]
