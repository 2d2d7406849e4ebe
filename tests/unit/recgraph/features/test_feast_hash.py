"""Values of Feast's hash layout that are not whole: a failure that names the view and the field, never a guess."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from recgraph.errors import StageFailure
from recgraph.features.feast_hash import _block
from recgraph.features.reader import ListColumn
from recgraph.features.schema import DType, Field, ViewSchema

# Values as protobuf writes them (feast.types.Value), so that this needs no Feast.
LONG = ("x" * 200).encode()
WHOLE: dict[DType, tuple[bytes, Any]] = {
    "text": (b"\x12\xc8\x01" + LONG, LONG.decode()),
    "int64": (b"\x20" + b"\xff" * 9 + b"\x01", -1),
    "float64": (b"\x29" + struct.pack("<d", 2.5), 2.5),
    "float32": (b"\x35" + struct.pack("<f", 1.5), 1.5),
    "text_list": (b"\x62\xd0\x01" + b"\x0a\xc8\x01" + LONG + b"\x0a\x03\xc3\xa9a", [LONG.decode(), "éa"]),
    "int64_list": (b"\x72\x05" + b"\x0a\x03\x01\xac\x02", [1, 300]),
    "float32_list": (b"\x82\x01\x0a" + b"\x0a\x08" + struct.pack("<2f", 0.5, 1.5), [0.5, 1.5]),
}
STAMP = b"\x08\x5f\x10\xe8\x07"
NULL = b"\x98\x01\x00"


def read(dtype: DType, value: bytes, stamp: bytes = STAMP) -> Any:
    """The value, and whether it is null, of the first of two entities; of the second everything is whole."""
    view = ViewSchema("view_v1", "item", 0, (Field("field", dtype),))
    block = _block(view, [(value, WHOLE[dtype][0]), (stamp, STAMP)], 100.0)
    column = block.columns["field"]
    for row, nulls in enumerate(block.nulls["field"].tolist()):
        found = column.row(row).tolist() if isinstance(column, ListColumn) else column[row]
        assert row == 0 or (found, nulls) == (WHOLE[dtype][1], False)
    first = column.row(0).tolist() if isinstance(column, ListColumn) else column[0]
    return first, bool(block.nulls["field"][0])


@pytest.mark.parametrize("dtype", WHOLE)
def test_a_whole_value_is_read_and_a_null_is_one_however_it_is_written(dtype: DType) -> None:
    assert read(dtype, WHOLE[dtype][0]) == (WHOLE[dtype][1], False)
    assert read(dtype, NULL)[1]
    assert read(dtype, b"")[1]


@pytest.mark.parametrize("dtype", WHOLE)
def test_a_value_that_is_cut_or_has_more_is_refused(dtype: DType) -> None:
    whole = WHOLE[dtype][0]
    for value in [*(whole[:end] for end in range(1, len(whole))), whole + b"\x00", whole + whole]:
        with pytest.raises(StageFailure, match="features_schema: view view_v1, field field"):
            read(dtype, value)


def test_a_list_of_something_else_is_refused() -> None:
    for dtype, value in (
        ("text_list", b"\x62\x03\x12\x01a"),
        ("int64_list", b"\x72\x03\x12\x01\x01"),
        ("int64_list", b"\x72\x0d\x0a\x0b" + b"\xff" * 10 + b"\x7f"),
    ):
        with pytest.raises(StageFailure, match="features_schema"):
            read(dtype, value)  # type: ignore[arg-type]


@pytest.mark.parametrize("stamp", [b"\x08", b"\x08\xff", b"\x10\xe8", b"nonsense\xff"])
def test_a_damaged_event_time_is_refused(stamp: bytes) -> None:
    with pytest.raises(StageFailure, match="features_schema: view view_v1: an event time is damaged"):
        read("int64", WHOLE["int64"][0], stamp)
