"""The compatible reader: the ordinary hash layout of Feast's Redis online store, for those who already run Feast.

One hash per entity and project holds all its views. Its key is Feast's entity key (serialization version 3) followed by
the project; a field is named by murmur3_32 of "{view}:{feature}", and `_ts:{view}` holds the event time. Values are
protobuf messages (feast.types.Value, google.protobuf.Timestamp); their bytes are read here without protobuf, since
building 9,000 message objects is what makes `get_online_features` slow.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import mmh3
import numpy as np
import numpy.typing as npt

from recgraph.errors import StageFailure
from recgraph.features.codec import SCHEMA_FAILURE, offsets_of, stale_rows
from recgraph.features.reader import Column, ListColumn, ViewBlock
from recgraph.features.redis_client import OnlineStoreClient
from recgraph.features.schema import Entity, Field, ViewSchema

Mask = npt.NDArray[np.bool_]

_STRING = 2  # feast.types.ValueType.STRING
# Field number and wire type of each kind of Value (feast/protos/feast/types/Value.proto), as the first bytes.
_TAGS = {
    "text": b"\x12",
    "int64": b"\x20",
    "float64": b"\x29",
    "float32": b"\x35",
    "text_list": b"\x62",
    "int64_list": b"\x72",
    "float32_list": b"\x82\x01",
}
_NULL = b"\x98\x01\x00"
"""Value(null_val=NULL), which some writers store where Feast's own store an empty Value."""
_ELEMENT = 0x0A  # the tag of what the lists hold: repeated field 1
_FIXED: dict[str, np.dtype[np.generic]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
_MICROSECONDS = 1_000_000
_DAMAGED = (ValueError, IndexError, OverflowError)
"""What reading a damaged value raises."""


class FeastHashReader:
    """See `reader.FeatureReader` for the contract."""

    def __init__(self, url: str, project: str) -> None:
        self._store = OnlineStoreClient(url)
        self._project = project.encode()

    async def read(
        self, entity: Entity, views: Sequence[ViewSchema], ids: Sequence[str], *, now_s: float, timeout_s: float
    ) -> dict[str, ViewBlock]:
        """Blocks by role, by one pipeline of one HMGET per entity."""
        fields = [name for view in views for name in _hash_fields(view)]
        prefix = _entity_prefix(entity)
        rows: list[list[bytes | None]] = []
        if ids and views:
            keys = [
                prefix + struct.pack("<I", len(encoded)) + encoded + self._project
                for encoded in (entity_id.encode() for entity_id in ids)
            ]
            rows = await self._store.ask([("HMGET", key, *fields) for key in keys], timeout_s)
        columns = list(zip(*rows, strict=True)) if rows else [() for _ in fields]
        blocks, at = {}, 0
        for view in views:
            end = at + len(view.fields) + 1
            blocks[view.role] = _block(view, columns[at:end], now_s)
            at = end
        return blocks

    async def warm_up(self, timeout_s: float = 5.0) -> None:
        """Connects, so that the first request does not."""
        await self._store.warm_up(timeout_s)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._store.aclose()


@lru_cache(maxsize=16)
def _entity_prefix(entity: Entity) -> bytes:
    """What the serialized key of every entity of a kind begins with: number of keys, the key's name, type of value."""
    name = f"{entity}_id".encode()
    return struct.pack("<III", 1, _STRING, len(name)) + name + struct.pack("<I", _STRING)


@lru_cache(maxsize=256)
def _hash_fields(view: ViewSchema) -> tuple[bytes, ...]:
    """The fields of a view in an entity's hash, the event time last."""
    names = (mmh3.hash(f"{view.name}:{field.name}", signed=False) for field in view.fields)
    return (*(struct.pack("<I", name) for name in names), f"_ts:{view.name}".encode())


def _block(view: ViewSchema, columns: Sequence[Sequence[bytes | None]], now_s: float) -> ViewBlock:
    """A block of the raw values of a view's fields and, last, its event times."""
    try:
        times = np.array([_timestamp_us(stamp) if stamp else 0 for stamp in columns[-1]], dtype=np.int64)
    except _DAMAGED as error:
        raise StageFailure(SCHEMA_FAILURE, f"view {view.name}: an event time is damaged: {error}") from error
    missing = np.array([stamp is None for stamp in columns[-1]], dtype=np.bool_)
    stale = stale_rows(view, times, missing, now_s)
    withheld = (missing | stale).tolist() if missing.any() or stale.any() else None
    decoded: dict[str, Column] = {}
    nulls: dict[str, Mask] = {}
    for field, raw in zip(view.fields, columns, strict=False):
        values = [value or b"" for value in raw]
        if _NULL in raw:
            values = [b"" if value == _NULL else value for value in values]
        if withheld:
            values = [b"" if hidden else value for value, hidden in zip(values, withheld, strict=True)]
        nulls[field.name] = np.array([not value for value in values], dtype=np.bool_)
        try:
            decoded[field.name] = _decode(field, values, nulls[field.name])
        except _DAMAGED as error:
            raise StageFailure(SCHEMA_FAILURE, f"view {view.name}, field {field.name}: {error}") from error
    return ViewBlock(len(times), decoded, missing, stale, times, nulls)


def _decode(field: Field, values: Sequence[bytes], nulls: Mask) -> Column:
    """A column of serialized Values; an empty one is null. Raises one of _DAMAGED where one is cut short, has bytes too
    many, or is of another type."""
    if field.dtype in _FIXED:
        return _fixed(field.dtype, values, nulls)
    if field.dtype == "int64":
        return _int64_column(values, nulls)
    tag = _TAGS[field.dtype]
    if other := [value for value in values if value and not value.startswith(tag)]:
        raise ValueError(f"stored as another type than {field.dtype}: {other[0][:12].hex()}")
    if field.dtype == "text":
        return _objects([_text(value) for value in values])
    parse = _LIST_PARSERS[field.dtype]
    parsed = [parse(value) if value else () for value in values]
    offsets = offsets_of(np.array([len(row) for row in parsed], dtype=np.int64))
    flat = [element for row in parsed for element in row]
    if field.dtype == "text_list":
        return ListColumn(_objects(flat), offsets)
    return ListColumn(np.array(flat, dtype=field.dtype.removesuffix("_list")), offsets)


def _fixed(name: str, values: Sequence[bytes], nulls: Mask) -> npt.NDArray[np.generic]:
    """float32 or float64: a tag byte and the number, all of one size."""
    dtype = _FIXED[name]
    size = 1 + dtype.itemsize
    joined = b"".join(values)
    present = ~nulls
    if len(joined) != size * int(present.sum()):
        raise ValueError(f"a value is not {size} bytes long, as {name} is")
    records = np.frombuffer(joined, dtype=np.dtype([("tag", "u1"), ("value", dtype)]))
    if (records["tag"] != _TAGS[name][0]).any():
        raise ValueError(f"a value is stored as another type than {name}")
    column = np.full(len(values), np.nan, dtype=dtype)
    column[present] = records["value"]
    return column


def _int64_column(values: Sequence[bytes], nulls: Mask) -> npt.NDArray[np.int64]:
    """int64: a tag byte and a varint of 1 to 10 bytes, 7 bits each, lowest first; all decoded at once."""
    column = np.zeros(len(values), dtype=np.uint64)
    present = np.flatnonzero(~nulls)
    lengths = np.array([len(value) for value in values], dtype=np.int64)[present]
    data = np.frombuffer(b"".join(values), dtype=np.uint8)
    starts = np.cumsum(lengths) - lengths
    if (data[starts] != _TAGS["int64"][0]).any():
        raise ValueError("a value is stored as another type than int64")
    if len(lengths) and (lengths.min() < 2 or lengths.max() > 11 or (data[starts + lengths - 1] >= 0x80).any()):
        raise ValueError("a value is not one whole number")
    for at in range(1, int(lengths.max(initial=0))):
        longer = lengths > at
        septet = (data[starts[longer] + at] & 0x7F).astype(np.uint64)
        column[present[longer]] |= septet << np.uint64(7 * (at - 1))
    return column.view(np.int64)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned protobuf number, and where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _text(value: bytes) -> str:
    return value[_content(value, 1) :].decode() if value else ""


def _texts(value: bytes) -> list[str]:
    at = _content(value, 1)
    texts = []
    while at < len(value):
        _check_element(value[at])
        size, start = _varint(value, at + 1)
        at = start + size
        texts.append(value[start:at].decode())
    if at != len(value):
        raise ValueError("the last text of a list is cut short")
    return texts


def _int64s(value: bytes) -> list[int]:
    at = _packed(value, 1)
    numbers = []
    while at < len(value):
        number, at = _varint(value, at)
        numbers.append(_signed(number))
    return numbers


def _float32s(value: bytes) -> npt.NDArray[np.float32]:
    at = _packed(value, 2)
    return np.frombuffer(value, dtype="<f4", offset=at) if at < len(value) else np.zeros(0, dtype=np.float32)


def _packed(value: bytes, at: int) -> int:
    """Where the numbers of a list begin: it is a message with one packed field, or without any."""
    at = _content(value, at)
    if at == len(value):
        return at
    _check_element(value[at])
    return _content(value, at + 1)


def _content(value: bytes, at: int) -> int:
    """Where the content begins whose length is at `at`, and which must reach to the end of the value."""
    # Up to 127 bytes, as nearly all texts are, the length is one byte.
    size, start = (value[at], at + 1) if value[at] < 0x80 else _varint(value, at)
    if start + size != len(value):
        raise ValueError(f"{len(value) - start} bytes stored of {size}")
    return start


def _check_element(tag: int) -> None:
    if tag != _ELEMENT:
        raise ValueError(f"a list holds field {tag >> 3} instead of {_ELEMENT >> 3}")


_LIST_PARSERS: dict[str, Callable[[bytes], Sequence[Any] | npt.NDArray[Any]]] = {
    "text_list": _texts,
    "int64_list": _int64s,
    "float32_list": _float32s,
}


@lru_cache(maxsize=1 << 16)
def _timestamp_us(stamp: bytes) -> int:
    """google.protobuf.Timestamp: 1 seconds, 2 nanos, each left out when 0."""
    parts = {0x08: 0, 0x10: 0}
    at = 0
    while at < len(stamp):
        tag = stamp[at]
        number, at = _varint(stamp, at + 1)
        parts[tag] = _signed(number)
    return parts[0x08] * _MICROSECONDS + parts[0x10] // 1000


def _objects(values: Sequence[Any]) -> npt.NDArray[np.object_]:
    column = np.empty(len(values), dtype=np.object_)
    column[:] = values
    return column
