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
from recgraph.features.schema import Field

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


class OfflineColumn(Protocol):
    """A column in memory."""

    def take(self, index: Index) -> tuple[Column, Mask]:
        """The values of the rows and where they are null; a placeholder stands for what is absent or null."""
        ...


@dataclass(frozen=True)
class NumberColumn:
    """float32, float64 or int64; nulls already hold the placeholder."""

    values: npt.NDArray[np.generic]
    nulls: Mask | None
    placeholder: float | int

    def take(self, index: Index) -> tuple[Column, Mask]:
        """See OfflineColumn."""
        if not len(self.values):
            return np.full(len(index.rows), self.placeholder, dtype=self.values.dtype), index.absent
        values = self.values[index.rows]
        if index.any_absent:
            values[index.absent] = self.placeholder
        return values, _nulls(self.nulls, index)


@dataclass(frozen=True)
class TextColumn:
    """Text as numbers of `words`; word 0 is the empty text, which stands for null."""

    codes: npt.NDArray[np.int32]
    words: npt.NDArray[np.object_]
    nulls: Mask | None

    def take(self, index: Index) -> tuple[Column, Mask]:
        """See OfflineColumn."""
        if not len(self.codes):
            return self.words[np.zeros(len(index.rows), dtype=np.int64)], index.absent
        return self.words[np.where(index.absent, 0, self.codes[index.rows])], _nulls(self.nulls, index)


@dataclass(frozen=True)
class ListsColumn:
    """Lists: those of row i are `values[starts[i]:starts[i] + counts[i]]`; text elements are numbers of `words`."""

    values: npt.NDArray[np.generic]
    words: npt.NDArray[np.object_] | None
    starts: Ints
    counts: Ints
    nulls: Mask | None

    def take(self, index: Index) -> tuple[Column, Mask]:
        """See OfflineColumn."""
        if len(self.counts):
            starts, offsets = self.starts[index.rows], offsets_of(np.where(index.absent, 0, self.counts[index.rows]))
        else:
            starts, offsets = index.rows, offsets_of(np.zeros(len(index.rows), dtype=np.int64))
        values = self.values[spans(starts, offsets)]
        return ListColumn(values if self.words is None else self.words[values], offsets), _nulls(self.nulls, index)


def load_column(field: Field, column: pa.ChunkedArray, path: Path) -> OfflineColumn:
    """A Parquet column as the view's dtype; DataError where it is of another type."""
    try:
        if field.dtype in _NUMBERS:
            return _numbers(field.dtype, column)
        nulls = _null_mask(column)
        if field.dtype == "text":
            return TextColumn(*_encode(column.chunks), nulls)
        counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
        elements = [chunk.flatten() for chunk in column.chunks]
        if any(chunk.null_count for chunk in elements):
            raise DataError(f"{path}: a list of column {field.name} has a null element")
        words = None
        if field.dtype == "text_list":
            values, words = _encode(elements)
        else:
            kind, _ = _NUMBERS[field.dtype.removesuffix("_list")]
            values = pa.chunked_array(elements, type=column.type.value_type).cast(kind).to_numpy()
        return ListsColumn(values, words, offsets_of(counts)[:-1], counts, nulls)
    except (pa.ArrowException, AttributeError) as error:
        raise DataError(f"{path}: column {field.name} is {column.type}, not {field.dtype}: {error}") from error


def _numbers(dtype: str, column: pa.ChunkedArray) -> NumberColumn:
    """Feast stores a NaN of a Parquet file as null (pandas knows no difference), and so does this."""
    kind, placeholder = _NUMBERS[dtype]
    values = pc.fill_null(column.cast(kind), placeholder).to_numpy()
    nulls = np.isnan(values) if dtype != "int64" else _null_mask(column)
    return NumberColumn(values, nulls if nulls is not None and nulls.any() else None, placeholder)


def _null_mask(column: pa.ChunkedArray) -> Mask | None:
    return pc.is_null(column).to_numpy() if column.null_count else None


def _encode(chunks: list[pa.Array]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.object_]]:
    """Numbers of words, and the words; null is word 0, the empty text."""
    known: dict[str, int] = {"": 0}
    parts: list[npt.NDArray[np.int32]] = [np.zeros(0, dtype=np.int32)]
    for chunk in chunks:
        encoded = chunk if pa.types.is_dictionary(chunk.type) else chunk.cast(pa.string()).dictionary_encode()
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
