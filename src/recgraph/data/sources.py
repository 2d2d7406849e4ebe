"""The Parquet sources that Feast reads (the folder `offline/`), made of a data set.

`created` is one microsecond after `event_timestamp` where the values count the events of that very moment: a row can
be known only after them, and so a training row at the time of an event, joined by `created`, never counts the event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recgraph.data.log import SECOND_US, IntArray
from recgraph.data.progress import Progress, silent
from recgraph.data.sequences import UserSequences
from recgraph.data.stats import ITEM_WINDOWS, USER_WINDOWS, ItemStats, UserProfiles
from recgraph.data.timeline import change_times
from recgraph.data.world import PARTIAL, TIMESTAMP, World, unknown_files
from recgraph.errors import DataError
from recgraph.features.reader import Column, ListColumn

VIEWS = ("item_profile", "item_stats", "user_profile", "user_clicks", "user_seen")
_ROWS = 1 << 18
"""Rows of a row group, unless lists are long."""
_VALUES = 1 << 23
"""Most list elements of a row group."""

Table = dict[str, Any]
Values = Callable[[IntArray, IntArray], Table]


@dataclass(frozen=True)
class Span:
    """Which rows to write: times in microseconds since the epoch, `cadence_us` 0 for every change."""

    cadence_us: int
    end_us: int
    start_us: int | None = None

    def __post_init__(self) -> None:
        """Raises DataError for a negative cadence or an end before the start."""
        if self.cadence_us < 0:
            raise DataError(f"cadence {self.cadence_us} us is negative")
        if self.start_us is not None and self.start_us > self.end_us:
            raise DataError(f"start {self.start_us} us is after end {self.end_us} us")


def span_of(world: World, cadence_us: int, start_us: int | None = None, end_us: int | None = None) -> Span:
    """The span of a data set, up to the end of its events unless said otherwise.

    Later rows would claim that nothing more happened, so an end after the data's is cut to it."""
    return Span(cadence_us, min(world.end_us, world.end_us if end_us is None else end_us), start_us)


def write_sources(world: World, folder: Path, span: Span, progress: Progress = silent) -> dict[str, int]:
    """Writes all views and returns their numbers of rows.

    The same world and span give the same bytes. Each file appears whole or not at all. Raises DataError for a folder
    that holds anything other than sources.
    """
    files = [f"{view}.parquet" for view in VIEWS]
    if folder.exists() and (not folder.is_dir() or unknown_files(folder, files)):
        raise DataError(f"{folder}: is neither empty nor a folder of feature sources")
    folder.mkdir(parents=True, exist_ok=True)
    rows = {}
    for view, parts in _views(world, span).items():
        rows[view] = _write(folder / f"{view}.parquet", parts, partial(progress, f"write {view}"))
    return rows


Parts = Iterator[tuple[float, Any]]
"""Pieces of a table, each with the share (0 to 1) that is done once it is written."""


def _views(world: World, span: Span) -> dict[str, Parts]:
    return {
        "item_profile": _item_profile(world, span),
        "item_stats": _item_stats(world, span),
        "user_profile": _user_profile(world, span),
        "user_clicks": _user_sequences(world, span, with_times=True),
        "user_seen": _user_sequences(world, span, with_times=False),
    }


def _write(path: Path, parts: Parts, report: Callable[[float], None]) -> int:
    unfinished = path.with_name(path.name + PARTIAL)
    rows = 0
    first = next(parts)
    with pq.ParquetWriter(unfinished, first[1].schema, compression="zstd") as writer:
        for done, table in chain([first], parts):
            writer.write_table(table, row_group_size=max(1, len(table)))
            rows += len(table)
            report(done)
    unfinished.replace(path)
    return rows


def _item_profile(world: World, span: Span) -> Parts:
    """A row per item, dated at its publish time or its first event, whichever is earlier.

    When an item was taken away is not known before the end of the data: only a second row, dated there, says so."""
    log, end = world.log, world.end_us
    born = world.publish_us.copy()
    np.minimum.at(born, log.item_row, log.time_us)
    gone = np.flatnonzero(~world.available)
    kept = np.flatnonzero(world.available | (born < end))
    rows = np.concatenate([kept, gone])
    times = np.concatenate([born[kept], np.maximum(born[gone], end)])
    available = np.concatenate([np.ones(len(kept), np.int64), np.zeros(len(gone), np.int64)])
    order = np.lexsort((times, rows))
    order = order[times[order] <= span.end_us]
    yield 1.0, _profile_table(world, rows[order], times[order], available[order])


def _profile_table(world: World, rows: IntArray, times: IntArray, available: IntArray) -> Any:
    part = world.items.take(pa.array(rows))
    columns = {
        "title": part["title"],
        "category": part["category"],
        "categories": part["categories"],
        "creator": part["creator"],
        "publish_time": pa.array(world.publish_us[rows] // SECOND_US),
        "available": pa.array(available),
    }
    return _table("item_id", part["item_id"], times, columns, known_after_us=0)


def _item_stats(world: World, span: Span) -> Parts:
    log = world.log
    stats = ItemStats(log)
    rows, times = _changes(log.item_row, log.time_us, tuple(ITEM_WINDOWS.values()), span)
    return _parts("item_id", world.items["item_id"], rows, times, _ROWS, lambda r, t: _arrow(stats.as_of(r, t)))


def _user_profile(world: World, span: Span) -> Parts:
    log = world.log
    profiles = UserProfiles(world)
    rows, times = _changes(log.user_row, log.time_us, tuple(USER_WINDOWS.values()), span)
    return _parts("user_id", world.users["user_id"], rows, times, _ROWS, lambda r, t: _arrow(profiles.as_of(r, t)))


def _user_sequences(world: World, span: Span, *, with_times: bool) -> Parts:
    log = world.log
    which = log.clicked if with_times else log.clicked | log.rated
    sequences = UserSequences.clicks(log) if with_times else UserSequences.seen(log)
    part = log.select(which)
    rows, times = _changes(part.user_row, part.time_us, (), span)
    size = max(1, min(_ROWS, _VALUES // sequences.longest()))
    ids, categories = world.items["item_id"].combine_chunks(), world.items["category"].combine_chunks()

    def values(chunk: IntArray, at: IntArray) -> Table:
        found = sequences.as_of(chunk, at)
        columns = {"item_ids": _taken(ids, found.item_row)}
        if with_times:
            columns["times"] = _arrow_list(found.time_s)
            columns["categories"] = _taken(categories, found.item_row)
        return columns

    return _parts("user_id", world.users["user_id"], rows, times, size, values)


def _changes(
    entity_row: npt.NDArray[np.int32], time_us: IntArray, windows_us: tuple[int, ...], span: Span
) -> tuple[IntArray, IntArray]:
    return change_times(
        entity_row, time_us, windows_us, cadence_us=span.cadence_us, end_us=span.end_us, start_us=span.start_us
    )


def _parts(entity: str, ids: Any, rows: IntArray, times: IntArray, size: int, values: Values) -> Parts:
    """Tables of at most `size` rows; one empty table where there is no row, so that the file has its columns."""
    ids = ids.combine_chunks()
    for begin in range(0, max(1, len(rows)), size):
        chunk, at = rows[begin : begin + size], times[begin : begin + size]
        table = _table(entity, ids.take(pa.array(chunk)), at, values(chunk, at), known_after_us=1)
        yield min(1.0, (begin + size) / max(1, len(rows))), table


def _table(entity: str, ids: Any, event_us: IntArray, columns: Table, *, known_after_us: int) -> Any:
    times = {
        "event_timestamp": pa.array(event_us).cast(TIMESTAMP),
        "created": pa.array(event_us + known_after_us).cast(TIMESTAMP),
    }
    return pa.table({entity: ids, **times, **columns})


def _arrow(columns: dict[str, Column]) -> Table:
    return {name: _arrow_list(c) if isinstance(c, ListColumn) else pa.array(c) for name, c in columns.items()}


def _arrow_list(column: ListColumn) -> Any:
    text = pa.string() if column.values.dtype == object else None
    return _lists(column.offsets, pa.array(column.values, type=text))


def _taken(ids: Any, rows: ListColumn) -> Any:
    return _lists(rows.offsets, pc.take(ids, pa.array(rows.values)))


def _lists(offsets: IntArray, values: Any) -> Any:
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)
