"""The packed blob: all features of one entity in one view, as bytes that numpy reads without a loop.

Everything is little-endian and unaligned. With F fields in all, and a, b, c, l of them float32, float64, int64 and
lists, a blob is

    offset          bytes   what
    0               8       schema hash (ViewSchema.schema_hash)
    8               8       event time, int64, microseconds since the epoch
    16              B       null bitmap, B = ceil(F / 8); bit i % 8 of byte i / 8 belongs to field i of the schema
    16 + B          4 a     float32 values, in schema order
    ...             8 b     float64 values
    ...             8 c     int64 values
    ...             4 l     lists: uint32 number of elements; float32_list fields first, then int64_list, then text_list
    P               -       here the part of constant size ends
    P               4 each  elements of the float32_list fields
    ...             8 each  elements of the int64_list fields
    ...             rest    text: the text fields, then the elements of the text_list fields; UTF-8, every string
                            ended by byte 00. Inside a string 00 is written as 01 42 and 01 as 01 41.

Nothing is rounded. A null field holds NaN, 0, "" or an empty list and its bit is set. The end bytes let the strings of
all entities be cut by one `split`, several times faster than slicing each by its length.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from recgraph.errors import DataError, StageFailure
from recgraph.features.reader import Column, ListColumn, ViewBlock
from recgraph.features.schema import ViewSchema

SCHEMA_FAILURE = "features_schema"

_SCALARS: dict[str, tuple[str, int | float]] = {
    "float32": ("f", math.nan),
    "float64": ("d", math.nan),
    "int64": ("q", 0),
}
_NUMBER_LISTS: dict[str, np.dtype[np.generic]] = {"float32_list": np.dtype("<f4"), "int64_list": np.dtype("<i8")}
_LISTS = (*_NUMBER_LISTS, "text_list")
_END, _END_ESCAPED, _ESCAPE, _ESCAPE_ESCAPED = "\x00", "\x01B", "\x01", "\x01A"
_MICROSECONDS = 1_000_000

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class ViewCodec:
    """Encodes and decodes the blobs of one view. Stateless after construction; `codec_of` caches one per view."""

    def __init__(self, view: ViewSchema) -> None:
        self.view = view
        self.names = [field.name for field in view.fields]
        by_dtype: dict[str, list[int]] = {dtype: [] for dtype in (*_SCALARS, "text", *_LISTS)}
        for index, field in enumerate(view.fields):
            by_dtype[field.dtype].append(index)
        self._by_dtype = by_dtype
        self._lists = [index for dtype in _LISTS for index in by_dtype[dtype]]
        self._list_splits = tuple(accumulate(len(by_dtype[dtype]) for dtype in _NUMBER_LISTS))
        self._bitmap_bytes = (len(view.fields) + 7) // 8
        scalars = "".join(code * len(by_dtype[dtype]) for dtype, (code, _) in _SCALARS.items())
        self._head = struct.Struct(f"<8sq{self._bitmap_bytes}s{scalars}{len(self._lists)}I")
        self._dtype = np.dtype(
            [
                ("hash", "V8"),
                ("time", "<i8"),
                ("nulls", "u1", (self._bitmap_bytes,)),
                ("float32", "<f4", (len(by_dtype["float32"]),)),
                ("float64", "<f8", (len(by_dtype["float64"]),)),
                ("int64", "<i8", (len(by_dtype["int64"]),)),
                ("lists", "<u4", (len(self._lists),)),
            ]
        )
        self._hash = np.frombuffer(view.schema_hash, "<u8")[0]
        self._empty = self.encode([None] * len(view.fields), 0)

    def encode(self, values: Sequence[Any], event_time_us: int) -> bytes:
        """One blob of `values` in schema order (None is null); DataError names a value that its dtype cannot hold."""
        if len(values) != len(self.names):
            raise DataError(f"view {self.view.name} has {len(self.names)} fields, got {len(values)} values")
        bitmap = 0
        for index, value in enumerate(values):
            if value is None:
                bitmap |= 1 << index
        texts = ["" if values[index] is None else values[index] for index in self._by_dtype["text"]]
        lists = [() if values[index] is None else values[index] for index in self._lists]
        try:
            head = self._head.pack(
                self.view.schema_hash,
                event_time_us,
                bitmap.to_bytes(self._bitmap_bytes, "little"),
                *self._scalar_values(values),
                *map(len, lists),
            )
            return head + self._tail(texts, lists)
        except (struct.error, OverflowError, TypeError, UnicodeEncodeError) as error:
            raise DataError(f"view {self.view.name}: cannot store {self._culprit(values)}: {error}") from error

    def _scalar_values(self, values: Sequence[Any]) -> list[Any]:
        return [
            null if values[index] is None else values[index]
            for dtype, (_, null) in _SCALARS.items()
            for index in self._by_dtype[dtype]
        ]

    def _tail(self, texts: Sequence[str], lists: Sequence[Sequence[Any]]) -> bytes:
        """What follows the part of constant size."""
        at, end = self._list_splits
        floats, ints, words = (
            [value for row in rows for value in row] for rows in (lists[:at], lists[at:end], lists[end:])
        )
        numbers = struct.pack(f"<{len(floats)}f{len(ints)}q", *floats, *ints)
        return numbers + "".join([_escape(text) + _END for text in (*texts, *words)]).encode()

    def _culprit(self, values: Sequence[Any]) -> str:
        """The field and value that do not fit, for the error message."""
        for field, value in zip(self.view.fields, values, strict=True):
            if value is not None and not _fits(field.dtype, value):
                return f"{value!r:.80} in field {field.name} ({field.dtype})"
        return "the event time"

    def decode(self, blobs: Sequence[bytes | None], *, now_s: float) -> ViewBlock:
        """A block of one row per blob (None is a missing entity); rows older than the ttl are withheld.

        Raises StageFailure("features_schema") for a blob of another schema, and for a damaged one here or when a
        list or text column is first asked for: both are mistakes of an operator, which a silent "missing" would hide.
        """
        missing = np.zeros(len(blobs), dtype=np.bool_)
        present = cast("Sequence[bytes]", blobs)
        if None in blobs:
            missing = np.array([blob is None for blob in blobs], dtype=np.bool_)
            present = [self._empty if blob is None else blob for blob in blobs]
        head = self._heads(present)
        time_us = head["time"].astype(np.int64)
        stale = stale_rows(self.view, time_us, missing, now_s)
        if stale.any():
            present = [self._empty if old else blob for blob, old in zip(present, stale.tolist(), strict=True)]
            head = self._heads(present)
        columns = _Columns(self.names, self._scalar_columns(head), lambda: self._variable_columns(head, present))
        return ViewBlock(len(blobs), columns, missing, stale, time_us, self._nulls(head["nulls"]))

    def _heads(self, blobs: Sequence[bytes]) -> npt.NDArray[np.void]:
        """The parts of constant size as one structured array of a row per blob."""
        size = self._head.size
        joined = b"".join([blob[:size] for blob in blobs])
        if len(joined) != size * len(blobs):
            raise StageFailure(SCHEMA_FAILURE, f"view {self.view.name}: a blob is shorter than its schema says")
        head = np.frombuffer(joined, self._dtype)
        if (np.ascontiguousarray(head["hash"]).view("<u8") != self._hash).any():
            raise StageFailure(
                SCHEMA_FAILURE,
                f"view {self.view.name}: a stored blob was written with another schema; "
                "a changed view needs a new name (_v2) and a materialization",
            )
        return head

    def _scalar_columns(self, head: npt.NDArray[np.void]) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        for dtype in _SCALARS:
            indexes = self._by_dtype[dtype]
            if indexes:
                matrix = np.ascontiguousarray(head[dtype].T)
                columns.update(zip([self.names[index] for index in indexes], matrix, strict=True))
        return columns

    def _nulls(self, bitmap: npt.NDArray[np.uint8]) -> dict[str, Mask]:
        if not bitmap.any():
            return dict.fromkeys(self.names, np.zeros(len(bitmap), dtype=np.bool_))
        bits = np.unpackbits(bitmap, axis=1, bitorder="little", count=len(self.names)).T.astype(np.bool_, order="C")
        return dict(zip(self.names, bits, strict=True))

    def _variable_columns(self, head: npt.NDArray[np.void], blobs: Sequence[bytes]) -> dict[str, Column]:
        """Lists and text. Raises StageFailure where lengths and bytes do not agree."""
        try:
            return self._cut_columns(head, blobs)
        except ValueError as error:
            raise StageFailure(SCHEMA_FAILURE, f"view {self.view.name}: damaged blob: {error}") from error

    def _cut_columns(self, head: npt.NDArray[np.void], blobs: Sequence[bytes]) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        at, end = self._list_splits
        lists = head["lists"].astype(np.int64)
        counts = {"float32_list": lists[:, :at], "int64_list": lists[:, at:end], "text_list": lists[:, end:]}
        start = np.full(len(blobs), self._head.size, dtype=np.int64)
        for dtype, element in _NUMBER_LISTS.items():
            if self._by_dtype[dtype]:
                stop = start + counts[dtype].sum(axis=1) * element.itemsize
                values: npt.NDArray[Any] = np.frombuffer(_cut(blobs, start, stop), dtype=element)
                columns.update(self._list_columns(dtype, values, counts[dtype]))
                start = stop
        if self._by_dtype["text"] or self._by_dtype["text_list"]:
            strings = _strings(b"".join([blob[at:] for blob, at in zip(blobs, start.tolist(), strict=True)]))
            columns.update(self._text_columns(strings, counts["text_list"]))
        return columns

    def _text_columns(self, strings: npt.NDArray[np.object_], counts: Ints) -> dict[str, Column]:
        """`strings` are row by row the text fields, then the elements of the lists; `counts` is rows x text lists."""
        texts, words = self._by_dtype["text"], counts.sum(axis=1)
        if len(strings) != counts.shape[0] * len(texts) + words.sum():
            raise ValueError(f"{len(strings)} strings present, not as many as announced")
        first = offsets_of(words + len(texts))[:-1]
        columns: dict[str, Column] = {self.names[index]: strings[first + i] for i, index in enumerate(texts)}
        if self._by_dtype["text_list"]:
            elements = strings[spans(first + len(texts), offsets_of(words))]
            columns.update(self._list_columns("text_list", elements, counts))
        return columns

    def _list_columns(self, dtype: str, values: npt.NDArray[Any], counts: Ints) -> dict[str, Column]:
        """Columns of `values`, which are row by row and within a row field by field; `counts` is rows x fields."""
        if counts.sum() != len(values):
            raise ValueError(f"{counts.sum()} elements announced, {len(values)} present")
        names = [self.names[index] for index in self._by_dtype[dtype]]
        starts = (np.cumsum(counts.ravel()) - counts.ravel()).reshape(counts.shape)
        columns: dict[str, Column] = {}
        for field, name in enumerate(names):
            offsets = offsets_of(counts[:, field])
            own = values if len(names) == 1 else values[spans(starts[:, field], offsets)]
            columns[name] = ListColumn(own, offsets)
        return columns


class _Columns(Mapping[str, Column]):
    """Columns in schema order. Lists and text, most of a decode's cost, are cut when the first of them is asked for.

    Recall reads whole profiles of its candidates for one number; see `recgraph bench features`.
    """

    def __init__(
        self, names: Sequence[str], ready: dict[str, Column], variable: Callable[[], dict[str, Column]]
    ) -> None:
        self._names = names
        self._ready = ready
        self._variable = variable

    def __getitem__(self, name: str) -> Column:
        if name not in self._ready and name in self._names:
            self._ready.update(self._variable())
        return self._ready[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@lru_cache(maxsize=256)
def codec_of(view: ViewSchema) -> ViewCodec:
    """The codec of a view, made once per process."""
    return ViewCodec(view)


def stale_rows(view: ViewSchema, time_us: Ints, missing: Mask, now_s: float) -> Mask:
    """Which rows are older than the view's ttl; one exactly as old is not (as in Feast's offline joins)."""
    if not view.ttl_s:
        return np.zeros(len(time_us), dtype=np.bool_)
    oldest = round(now_s * _MICROSECONDS) - view.ttl_s * _MICROSECONDS
    stale: Mask = (time_us < oldest) & ~missing
    return stale


def offsets_of(counts: Ints) -> Ints:
    """Where each list begins, and the end of the last: length of `counts` + 1."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def spans(starts: Ints, offsets: Ints) -> Ints:
    """Positions of all elements of the lists that begin at `starts` and are `diff(offsets)` long, one after another."""
    return np.repeat(starts - offsets[:-1], np.diff(offsets)) + np.arange(offsets[-1])


def _cut(blobs: Sequence[bytes], starts: Ints, ends: Ints) -> bytes:
    return b"".join([blob[at:end] for blob, at, end in zip(blobs, starts.tolist(), ends.tolist(), strict=True)])


def _escape(text: str) -> str:
    if _END in text or _ESCAPE in text:
        return text.replace(_ESCAPE, _ESCAPE_ESCAPED).replace(_END, _END_ESCAPED)
    return text


def _strings(utf8: bytes) -> npt.NDArray[np.object_]:
    """All strings of a text section, in order."""
    text = utf8.decode()
    pieces = text.split(_END)
    if pieces.pop():
        raise ValueError("the last string has no end")
    if _ESCAPE in text:
        pieces = [piece.replace(_END_ESCAPED, _END).replace(_ESCAPE_ESCAPED, _ESCAPE) for piece in pieces]
    strings = np.empty(len(pieces), dtype=np.object_)
    strings[:] = pieces
    return strings


def _fits(dtype: str, value: Any) -> bool:
    """Whether `value` can be stored as `dtype`: tried the way `encode` does it."""
    try:
        if dtype in _SCALARS:
            struct.pack("<" + _SCALARS[dtype][0], value)
        elif dtype in ("text", "text_list"):
            "".join([value] if dtype == "text" else value).encode()
        else:
            struct.pack(f"<{len(value)}{_SCALARS[dtype.removesuffix('_list')][0]}", *value)
    except (struct.error, OverflowError, TypeError, UnicodeEncodeError):
        return False
    return True
