"""Columns of an offline source as numpy arrays, from which rows are taken by number (-1: no row)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recgraph.errors import DataError
from recgraph.features.codec import offsets_of, spans
from recgraph.features.reader import Column, ListColumn
from recgraph.features.schema import Field, ViewSchema

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NUMBERS: dict[str, tuple[pa.DataType, float | int]] = {
    "float32": (pa.float32(), np.nan),
    "float64": (pa.float64(), np.nan),
    "int64": (pa.int64(), 0),
}


@dataclass(frozen=True)
class Index:
    """Row numbers to take: `rows` with -1 replaced by 0, `absent` where it was -1, and whether there is any."""

    rows: Ints
    absent: Mask
    any_absent: bool

    @classmethod
    def of(cls, rows: Ints) -> Index:
        """From row numbers, -1 for none."""
        absent = rows < 0
        return cls(np.where(absent, 0, rows), absent, bool(absent.any()))


class OfflineColumns(Protocol):
    """One or more columns in memory."""

    def take(self, index: Index) -> dict[str, tuple[Column, Mask]]:
        """By name, the values of the rows and where they are null; a placeholder stands for what is absent or null."""
        ...


@dataclass(frozen=True)
class NumberColumns:
    """All columns of one dtype (float32, float64 or int64), side by side: a row is taken by one jump in memory."""

    names: tuple[str, ...]
    values: npt.NDArray[np.generic]
    """rows x columns; nulls already hold the placeholder."""
    nulls: Mask | None
    placeholder: float | int

    def take(self, index: Index) -> dict[str, tuple[Column, Mask]]:
        """See OfflineColumns."""
        if len(self.values):
            values = self.values[index.rows]
            if index.any_absent:
                values[index.absent] = self.placeholder
        else:
            values = np.full((len(index.rows), len(self.names)), self.placeholder, dtype=self.values.dtype)
        columns = np.ascontiguousarray(values.T)
        if self.nulls is None or not len(self.nulls):
            return {name: (column, index.absent) for name, column in zip(self.names, columns, strict=True)}
        nulls = (self.nulls[index.rows] | index.absent[:, None]).T
        return {name: (column, null) for name, column, null in zip(self.names, columns, nulls, strict=True)}


@dataclass(frozen=True)
class TextColumn:
    """Text as numbers of `words`; word 0 is the empty text, which stands for null."""

    name: str
    codes: npt.NDArray[np.int32]
    words: npt.NDArray[np.object_]
    nulls: Mask | None

    def take(self, index: Index) -> dict[str, tuple[Column, Mask]]:
        """See OfflineColumns."""
        if len(self.codes):
            codes = self.codes[index.rows]
            codes[index.absent] = 0
        else:
            codes = np.zeros(len(index.rows), dtype=np.int32)
        return {self.name: (self.words[codes], _nulls(self.nulls, index))}


@dataclass(frozen=True)
class ListsColumn:
    """Lists: those of row i are `values[starts[i]:starts[i] + counts[i]]`; text elements are numbers of `words`."""

    name: str
    values: npt.NDArray[np.generic]
    words: npt.NDArray[np.object_] | None
    starts: Ints
    counts: Ints
    nulls: Mask | None

    def take(self, index: Index) -> dict[str, tuple[Column, Mask]]:
        """See OfflineColumns."""
        if len(self.counts):
            starts, offsets = self.starts[index.rows], offsets_of(np.where(index.absent, 0, self.counts[index.rows]))
        else:
            starts, offsets = index.rows, offsets_of(np.zeros(len(index.rows), dtype=np.int64))
        values = self.values[spans(starts, offsets)]
        column = ListColumn(values if self.words is None else self.words[values], offsets)
        return {self.name: (column, _nulls(self.nulls, index))}


def load_columns(view: ViewSchema, table: pa.Table, path: Path) -> list[OfflineColumns]:
    """The fields of a view out of its Parquet table; DataError where one is of another type."""
    loaded: list[OfflineColumns] = []
    for dtype, (kind, placeholder) in _NUMBERS.items():
        fields = [field for field in view.fields if field.dtype == dtype]
        if fields:
            loaded.append(
                _numbers(fields, [_cast(table[field.name], kind, field, path) for field in fields], placeholder)
            )
    for field in view.fields:
        column = table[field.name]
        if field.dtype == "text":
            text = column if pa.types.is_dictionary(column.type) else _cast(column, pa.string(), field, path)
            loaded.append(TextColumn(field.name, *_encode(text.chunks), _null_mask(column)))
        elif field.dtype not in _NUMBERS:
            loaded.append(_lists(field, column, path))
    return loaded


def _cast(column: pa.ChunkedArray, kind: pa.DataType, field: Field, path: Path) -> pa.ChunkedArray:
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise DataError(f"{path}: column {field.name} is {column.type}, not {field.dtype}: {error}") from error


def _numbers(fields: list[Field], columns: list[pa.ChunkedArray], placeholder: float | int) -> NumberColumns:
    """Feast stores a NaN of a Parquet file as null (pandas knows no difference), and so does this."""
    values = np.stack([pc.fill_null(column, placeholder).to_numpy() for column in columns], axis=1)
    nulls: Mask = np.isnan(values)
    if values.dtype == np.int64:
        nulls = np.stack([pc.is_null(column).to_numpy() for column in columns], axis=1)
    names = tuple(field.name for field in fields)
    return NumberColumns(names, values, nulls if nulls.any() else None, placeholder)


def _lists(field: Field, column: pa.ChunkedArray, path: Path) -> ListsColumn:
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        raise DataError(f"{path}: column {field.name} is {column.type}, not {field.dtype}")
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
    elements = pa.chunked_array([chunk.flatten() for chunk in column.chunks], type=column.type.value_type)
    if elements.null_count:
        raise DataError(f"{path}: a list of column {field.name} has a null element")
    words = None
    if field.dtype == "text_list":
        if not pa.types.is_dictionary(elements.type):
            elements = _cast(elements, pa.string(), field, path)
        values, words = _encode(elements.chunks)
    else:
        values = _cast(elements, _NUMBERS[field.dtype.removesuffix("_list")][0], field, path).to_numpy()
    return ListsColumn(field.name, values, words, offsets_of(counts)[:-1], counts, _null_mask(column))


def _null_mask(column: pa.ChunkedArray) -> Mask | None:
    return pc.is_null(column).to_numpy() if column.null_count else None


def _encode(chunks: list[pa.Array]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.object_]]:
    """Numbers of words, and the words; null is word 0, the empty text."""
    known: dict[str, int] = {"": 0}
    parts: list[npt.NDArray[np.int32]] = [np.zeros(0, dtype=np.int32)]
    for chunk in chunks:
        encoded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        own = [known.setdefault(word, len(known)) for word in encoded.dictionary.to_pylist()]
        numbers = pc.fill_null(encoded.indices, len(own)).to_numpy(zero_copy_only=False)
        parts.append(np.array([*own, 0], dtype=np.int32)[numbers])
    return np.concatenate(parts), np.array(list(known), dtype=np.object_)


def _nulls(nulls: Mask | None, index: Index) -> Mask:
    """Where the taken rows hold a placeholder."""
    if nulls is None or not len(nulls):
        return index.absent
    taken: Mask = nulls[index.rows]
    if index.any_absent:
        taken |= index.absent
    return taken
