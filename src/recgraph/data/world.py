"""A data set (the folder `world/`): users, items, events, and what is said about them in meta.json."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recgraph.data.log import BoolArray, EventLog, IntArray, Rows
from recgraph.errors import DataError
from recgraph.features.reader import ListColumn

TIMESTAMP = pa.timestamp("us", tz="UTC")
USERS = pa.schema([("user_id", pa.string()), ("created", TIMESTAMP)])
ITEMS = pa.schema(
    [
        ("item_id", pa.string()),
        ("title", pa.string()),
        ("category", pa.string()),
        ("categories", pa.list_(pa.string())),
        ("creator", pa.string()),
        ("publish_time", TIMESTAMP),
        ("available", pa.bool_()),
    ]
)
EVENTS = pa.schema(
    [
        ("user_id", pa.dictionary(pa.int32(), pa.string())),
        ("item_id", pa.dictionary(pa.int32(), pa.string())),
        ("time", TIMESTAMP),
        ("clicked", pa.bool_()),
        ("rating", pa.float32()),
    ]
)
META = "meta.json"
TABLES = ("users.parquet", "items.parquet", "events.parquet")
PARTIAL = ".partial"
"""Suffix of a file that is still being written."""


class Counts(msgspec.Struct, frozen=True):
    """Sizes of a data set."""

    users: int
    items: int
    events: int
    clicks: int
    skipped_lines: int = 0
    blank_lines: int = 0


class Meta(msgspec.Struct, frozen=True):
    """What meta.json holds. `start` and `end` bound the events (Unix s): start <= time <= end."""

    kind: Literal["synthetic", "movielens"]
    seed: int | None
    parameters: dict[str, Any]
    counts: Counts
    start: float
    end: float
    sha256: dict[str, str] = msgspec.field(default_factory=dict)
    """SHA-256 of each Parquet file, filled in by `save`."""


@dataclass(frozen=True)
class World:
    """A data set in memory. Rows of users and of items are sorted by id (bytes of UTF-8) and ids are unique, so that
    a row number is also the rank of its id."""

    users: pa.Table
    items: pa.Table
    log: EventLog
    meta: Meta

    @cached_property
    def user_ids(self) -> npt.NDArray[np.object_]:
        """Ids (str) by user row. One Python object per user: for millions take `users["user_id"]` instead."""
        return _objects(self.users["user_id"])

    @cached_property
    def item_ids(self) -> npt.NDArray[np.object_]:
        """Ids (str) by item row. One Python object per item: for millions take `items["item_id"]` instead."""
        return _objects(self.items["item_id"])

    @cached_property
    def publish_us(self) -> IntArray:
        """Publish time by item row, microseconds since the epoch (negative before 1970)."""
        return times_us(self.items["publish_time"])

    @cached_property
    def available(self) -> BoolArray:
        """Whether an item may be shown, by item row."""
        flags: BoolArray = self.items["available"].to_numpy()
        return flags

    @cached_property
    def category_names(self) -> npt.NDArray[np.object_]:
        """Every category that occurs, sorted; "" (no category) included where an item has none."""
        flat = pc.list_flatten(self.items["categories"])
        names = pc.unique(pa.chunked_array([*flat.chunks, *self.items["category"].chunks], type=pa.string()))
        return _objects(names.take(pc.sort_indices(names)))

    @cached_property
    def category_code(self) -> Rows:
        """The first category of each item, as a row of `category_names`."""
        return self._category_codes(self.items["category"])

    @cached_property
    def categories(self) -> ListColumn:
        """All categories of each item, as rows of `category_names` (int32)."""
        lists = self.items["categories"].combine_chunks()
        lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
        return ListColumn(self._category_codes(pc.list_flatten(lists)), offsets_of(lengths))

    @cached_property
    def creator_code(self) -> Rows:
        """A number per creator, by item row, in order of first appearance."""
        codes: Rows = self.items["creator"].combine_chunks().dictionary_encode().indices.to_numpy()
        return codes

    @property
    def end_us(self) -> int:
        """The end of the events, microseconds since the epoch."""
        return round(self.meta.end * 1_000_000)

    def _category_codes(self, values: Any) -> Rows:
        names = pa.array(self.category_names, type=pa.string())
        codes: Rows = _one_array(pc.index_in(values, names)).to_numpy(zero_copy_only=False).astype(np.int32)
        return codes


def offsets_of(lengths: npt.NDArray[np.integer]) -> IntArray:
    """Offsets (int64, one more than lengths) of lists that lie one after the other."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def times_us(column: Any) -> IntArray:
    """An Arrow timestamp column as int64 microseconds."""
    values: IntArray = _one_array(column).cast(pa.int64()).to_numpy()
    return values


def _one_array(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _objects(column: Any) -> npt.NDArray[np.object_]:
    values: npt.NDArray[np.object_] = column.to_numpy(zero_copy_only=False).astype(object)
    return values


def save(world: World, folder: Path) -> Meta:
    """Writes the data set and returns its meta with the hashes of the files.

    The same world gives the same bytes. Each file appears whole or not at all, meta.json last. Raises DataError for a
    folder that holds anything other than a data set.
    """
    check_target(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tables = (world.users, world.items, _event_table(world))
    for name, table in zip(TABLES, tables, strict=True):
        pq.write_table(table, folder / (name + PARTIAL), compression="zstd", row_group_size=1 << 20)
    hashes = {name: sha256(folder / (name + PARTIAL)) for name in TABLES}
    meta = msgspec.structs.replace(world.meta, sha256=hashes)
    (folder / (META + PARTIAL)).write_bytes(msgspec.json.format(msgspec.json.encode(meta), indent=2) + b"\n")
    for name in (*TABLES, META):
        (folder / (name + PARTIAL)).replace(folder / name)
    return meta


def check_target(folder: Path) -> None:
    """Raises DataError unless `folder` is absent, empty, or a data set that may be replaced."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise DataError(f"{folder}: is a file, not a folder")
    strangers = unknown_files(folder, (*TABLES, META))
    if strangers or ((folder / TABLES[0]).exists() and not (folder / META).exists()):
        raise DataError(f"{folder}: is not empty and not a data set (it holds {', '.join(strangers or TABLES[:1])})")
    if (folder / META).exists():
        read_meta(folder)


def unknown_files(folder: Path, known: Iterable[str]) -> list[str]:
    """Up to three names in `folder` that are neither in `known` nor the unfinished form of one."""
    expected = {*known, *(name + PARTIAL for name in known)}
    return sorted(entry.name for entry in folder.iterdir() if entry.name not in expected)[:3]


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _event_table(world: World) -> Any:
    log = world.log
    columns = [
        _dictionary(log.user_row, world.users["user_id"]),
        _dictionary(log.item_row, world.items["item_id"]),
        pa.array(log.time_us).cast(TIMESTAMP),
        pa.array(log.clicked),
        pa.array(log.rating),
    ]
    return pa.Table.from_arrays(columns, schema=EVENTS)


def _dictionary(rows: Rows, ids: Any) -> Any:
    """Codes and ids as a dictionary column that holds only ids that occur."""
    occurs = np.bincount(rows, minlength=len(ids)) > 0
    codes = (np.cumsum(occurs) - 1).astype(np.int32)[rows]
    return pa.DictionaryArray.from_arrays(pa.array(codes), _one_array(ids.filter(pa.array(occurs))))


def read_meta(folder: Path) -> Meta:
    """meta.json of a data set. Raises DataError where it is absent or of another form."""
    path = folder / META
    try:
        return msgspec.json.decode(path.read_bytes(), type=Meta)
    except FileNotFoundError:
        raise DataError(f"{folder}: no data set here ({META} is missing)") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: {error}") from error


def load(folder: Path) -> World:
    """Reads a data set. Raises DataError for a missing or unreadable file, a wrong column, ids that are not sorted and
    unique, events of unknown users or items, and counts that differ from meta.json."""
    meta = read_meta(folder)
    users = _read(folder / TABLES[0], USERS)
    items = _read(folder / TABLES[1], ITEMS)
    events = _read(folder / TABLES[2], EVENTS)
    _check_ids(users["user_id"], folder / TABLES[0])
    _check_ids(items["item_id"], folder / TABLES[1])
    log = EventLog(
        user_row=_rows(events["user_id"], users["user_id"], folder / TABLES[2]),
        item_row=_rows(events["item_id"], items["item_id"], folder / TABLES[2]),
        time_us=times_us(events["time"]),
        clicked=_one_array(events["clicked"]).to_numpy(zero_copy_only=False),
        rating=_one_array(events["rating"]).to_numpy(zero_copy_only=False),
        users=len(users),
        items=len(items),
    )
    found = (len(users), len(items), len(log))
    counts = meta.counts
    if found != (counts.users, counts.items, counts.events):
        raise DataError(f"{folder}: users, items, events are {found}, but {META} says otherwise: {counts}")
    return World(users, items, log, meta)


def _read(path: Path, schema: Any) -> Any:
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise DataError(f"{path}: is missing") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {error}") from error
    if not table.schema.equals(schema):
        raise DataError(f"{path}: columns are {table.schema.to_string()}, expected {schema.to_string()}")
    if any(column.null_count for column in table.columns):
        raise DataError(f"{path}: holds nulls")
    return table


def _check_ids(ids: Any, path: Path) -> None:
    values = _one_array(ids)
    if len(values) > 1 and not pc.all(pc.less(values[:-1], values[1:])).as_py():
        raise DataError(f"{path}: ids are not sorted and unique")


def _rows(column: Any, ids: Any, path: Path) -> Rows:
    """Row numbers of a dictionary column's ids."""
    codes = _one_array(column.unify_dictionaries())
    rows = pc.index_in(codes.dictionary, _one_array(ids))
    if rows.null_count:
        unknown = codes.dictionary.filter(pc.is_null(rows))[0].as_py()
        raise DataError(f"{path}: id {unknown!r} of an event is not in the data set")
    lookup = rows.to_numpy(zero_copy_only=False).astype(np.int32)
    found: Rows = lookup[codes.indices.to_numpy(zero_copy_only=False)] if len(codes) else np.zeros(0, np.int32)
    return found
