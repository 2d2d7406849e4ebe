"""JSON in Go's spelling; the exact bytes are also compared with the real router in tests/contract."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recgraph.graph import gojson


@pytest.mark.parametrize("body", [b"", b"NaN", b"[1,]", b"{} x", b"\xef\xbb\xbf{}", b"[01]", b'"\x01"', b"{'a':1}"])
def test_invalid(body: bytes) -> None:
    assert gojson.parse(body) is gojson.INVALID


@pytest.mark.parametrize("body", [b"null", b' {"a": 1} ', b'"\xff"', b'"\\ud800"', b"[1e999]", b"9" * 400, b"-0"])
def test_valid(body: bytes) -> None:
    assert gojson.parse(body) is not gojson.INVALID


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1.0, "1"),
        (-0.0, "-0"),
        (1e-6, "0.000001"),
        (9.99e-7, "9.99e-7"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (-1.5e300, "-1.5e+300"),
        (123456.789, "123456.789"),
        (5e-324, "5e-324"),
    ],
)
def test_numbers_as_go_writes_float64(number: float, text: str) -> None:
    assert gojson.marshal(number) == text.encode()


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(json_values)
def test_what_is_written_reads_back_equal(value: object) -> None:
    text = gojson.marshal(value)
    assert json.loads(text, parse_int=float) == value
    assert not set("<>&\u2028\u2029") & set(text.decode())


def test_keys_are_sorted_unless_a_struct_is_written() -> None:
    assert gojson.marshal({"b": 1, "a": {"d": 1, "c": 2}}) == b'{"a":{"c":2,"d":1},"b":1}'
    assert gojson.marshal({"b": 1, "a": 2}, sort_keys=False) == b'{"b":1,"a":2}'
