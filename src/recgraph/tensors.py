"""Tensors on the wire: numpy arrays as the Open Inference Protocol v2 writes them (raw, little-endian).

No import of a server or of generated code: the shells put these parts into their messages.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from recgraph.errors import DataError

_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "BOOL": np.dtype("?"),
}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}
_LENGTH: Final = struct.Struct("<I")


def encode(name: str, array: npt.NDArray[Any]) -> tuple[str, bytes]:
    """Datatype and raw content of an array; an object array of bytes is BYTES. Raises DataError for other dtypes."""
    if array.dtype == object:
        return "BYTES", _pack(array.ravel().tolist())
    datatype = _NAMES.get(array.dtype.newbyteorder("<"))
    if datatype is None:
        raise DataError(f"tensor {name!r}: dtype {array.dtype} cannot be sent")
    return datatype, np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()


def decode(name: str, datatype: str, shape: Sequence[int], raw: bytes) -> npt.NDArray[Any]:
    """The array of a tensor. Raises DataError where datatype, shape and content do not fit."""
    if datatype == "BYTES":
        values = _unpack(name, raw)
        array: npt.NDArray[Any] = np.empty(len(values), object)
        array[:] = values
    elif datatype in _DTYPES:
        dtype = _DTYPES[datatype]
        if len(raw) % dtype.itemsize:
            raise DataError(f"tensor {name!r}: {len(raw)} bytes are no {datatype}")
        # A copy: a view of bytes is read-only, which torch does not take.
        array = np.frombuffer(raw, dtype).copy()
    else:
        raise DataError(f"tensor {name!r}: unknown datatype {datatype!r}")
    try:
        return array.reshape(tuple(shape))
    except ValueError as error:
        raise DataError(f"tensor {name!r}: {array.size} values for the shape {list(shape)}") from error


def _pack(values: list[bytes]) -> bytes:
    pack = _LENGTH.pack
    return b"".join([part for value in values for part in (pack(len(value)), value)])


def _unpack(name: str, raw: bytes) -> list[bytes]:
    return _equally_long(raw) or _one_by_one(name, raw)


def _equally_long(raw: bytes) -> list[bytes]:
    """The values where all are of one length, as ids often are: no loop, several times faster. Else nothing."""
    length = int.from_bytes(raw[: _LENGTH.size], "little")
    if not length or not raw or len(raw) % (_LENGTH.size + length):
        return []
    rows = np.frombuffer(raw, [("length", "<u4"), ("value", f"V{length}")])
    values: list[bytes] = rows["value"].tolist() if (rows["length"] == length).all() else []
    return values


def _one_by_one(name: str, raw: bytes) -> list[bytes]:
    values: list[bytes] = []
    at, end, unpack = 0, len(raw), _LENGTH.unpack_from
    while at < end:
        if at + _LENGTH.size > end:
            raise DataError(f"tensor {name!r}: BYTES end within a length")
        stop = at + _LENGTH.size + unpack(raw, at)[0]
        if stop > end:
            raise DataError(f"tensor {name!r}: BYTES end within a value")
        values.append(raw[at + _LENGTH.size : stop])
        at = stop
    return values


def as_bytes(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An object array of text or bytes as one of bytes: JSON has no bytes."""
    out: npt.NDArray[Any] = np.empty(array.shape, object)
    out.ravel()[:] = [value if isinstance(value, bytes) else str(value).encode() for value in array.ravel().tolist()]
    return out
