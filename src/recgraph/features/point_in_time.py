"""The offline reader: what was known of an entity at a past moment, from the Parquet sources of Feast.

The row chosen is Feast's: the latest with `t - ttl <= event_timestamp <= t` and `created <= t`, and of several with
that event_timestamp the one created last (get_historical_features with filter_by_created_timestamp=True; a test holds
both equal). Here it is one binary search over arrays that are loaded once, since training and evaluation ask for
thousands of candidates per request.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recgraph.errors import DataError
from recgraph.features.offline_columns import Index, Ints, load_columns
from recgraph.features.reader import Column, ViewBlock
from recgraph.features.schema import Entity, ViewSchema

_MICROSECONDS = 1_000_000


class PointInTimeReader:
    """Reads `<folder>/<role>.parquet` as of a moment. Files are loaded at their first use and kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tables: dict[ViewSchema, OfflineTable] = {}

    async def read(
        self, entity: Entity, views: Sequence[ViewSchema], ids: Sequence[str], *, now_s: float, timeout_s: float
    ) -> dict[str, ViewBlock]:
        """As `reader.FeatureReader.read`, with everything as it was known at `now_s`; needs no network, never waits."""
        return self.read_at(views, ids, np.full(len(ids), round(now_s * _MICROSECONDS), dtype=np.int64))

    def read_at(self, views: Sequence[ViewSchema], ids: Sequence[str], times_us: Ints) -> dict[str, ViewBlock]:
        """Blocks by role, row i being entity `ids[i]` as known at `times_us[i]` (microseconds since the epoch)."""
        if len(ids) != len(times_us):
            raise DataError(f"{len(ids)} ids but {len(times_us)} times")
        return {view.role: self.table(view).read(ids, times_us) for view in views}

    def table(self, view: ViewSchema) -> OfflineTable:
        """The loaded source of a view."""
        if view not in self._tables:
            self._tables[view] = OfflineTable(view, self._folder / f"{view.role}.parquet")
        return self._tables[view]


class OfflineTable:
    """One source in memory: rows in the file's order, and an index over (entity, event time, created)."""

    def __init__(self, view: ViewSchema, path: Path) -> None:
        table = _read_parquet(view, path)
        self._view = view
        entities = table[f"{view.entity}_id"].combine_chunks().dictionary_encode()
        if entities.null_count:
            raise DataError(f"{path}: {entities.null_count} rows have no {view.entity}_id")
        codes = entities.indices.to_numpy().astype(np.int64)
        self._codes = {entity_id: code for code, entity_id in enumerate(entities.dictionary.to_pylist())}
        event, created = _microseconds(table, "event_timestamp", path), _microseconds(table, "created", path)
        self._times, ranks = np.unique(event, return_inverse=True)
        self._stride = len(self._times) + 1
        self._order = np.lexsort((created, event, codes))
        self._keys = (codes * self._stride + ranks)[self._order]
        self._first = np.searchsorted(self._keys, np.arange(len(self._codes)) * self._stride)
        self._event, self._created = event, created[self._order]
        self._columns = load_columns(view, table, path)

    def read(self, ids: Sequence[str], times_us: Ints) -> ViewBlock:
        """The block of `ids`, each as of its own time."""
        rows = self._rows(ids, times_us)
        missing = rows < 0
        event = np.where(missing, 0, self._event[rows]) if len(self._event) else np.zeros(len(rows), dtype=np.int64)
        stale = np.zeros(len(rows), dtype=np.bool_)
        if self._view.ttl_s:
            stale = (event < times_us - self._view.ttl_s * _MICROSECONDS) & ~missing
        index = Index.of(np.where(stale, -1, rows))
        taken = {name: pair for columns in self._columns for name, pair in columns.take(index).items()}
        names = [field.name for field in self._view.fields]
        columns: dict[str, Column] = {name: taken[name][0] for name in names}
        return ViewBlock(len(rows), columns, missing, stale, event, {name: taken[name][1] for name in names})

    def _rows(self, ids: Sequence[str], times_us: Ints) -> Ints:
        """The row of each (entity, time), -1 where nothing was known yet."""
        find = self._codes.get
        codes = np.fromiter((find(entity_id, -1) for entity_id in ids), dtype=np.int64, count=len(ids))
        known = codes >= 0
        wanted = codes * self._stride + np.searchsorted(self._times, times_us, side="right")
        at = np.searchsorted(self._keys, wanted) - 1
        if not known.any():
            return np.full(len(ids), -1, dtype=np.int64)
        first = self._first[codes]
        # Rows that came late (created after the moment asked for) were not known then: step over them.
        while (late := known & (at >= first) & (self._created[at] > times_us)).any():
            at -= late
        rows: Ints = np.where(known & (at >= first), self._order[at], -1)
        return rows


def _read_parquet(view: ViewSchema, path: Path) -> pa.Table:
    """The columns that the view needs, texts as dictionaries."""
    wanted = [f"{view.entity}_id", "event_timestamp", "created", *(field.name for field in view.fields)]
    try:
        source = pq.ParquetFile(path)
        lacking = [name for name in wanted if name not in source.schema_arrow.names]
        if lacking:
            raise DataError(f"{path} has no column {', '.join(lacking)} (view {view.name})")
        text = {field.name for field in view.fields if field.dtype in ("text", "text_list")}
        leaves = [source.schema.column(i).path for i in range(len(source.schema))]
        return pq.read_table(
            path, columns=wanted, read_dictionary=[leaf for leaf in leaves if leaf.split(".")[0] in text]
        )
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error


def _microseconds(table: pa.Table, name: str, path: Path) -> Ints:
    column = table[name]
    if column.null_count or not pa.types.is_timestamp(column.type):
        raise DataError(f"{path}: {name} must be a timestamp in every row, is {column.type}, {column.null_count} null")
    try:
        microseconds: Ints = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: {name} is not in whole microseconds: {error}") from error
    return microseconds
