"""Tensors on the wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgraph import tensors
from recgraph.errors import DataError


def _round(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    datatype, raw = tensors.encode("t", array)
    return tensors.decode("t", datatype, array.shape, raw)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "bool"])
def test_numbers_arrive_bit_for_bit(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    found = _round(array)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    assert found.flags.writeable


def test_a_strided_and_a_big_endian_array_arrive() -> None:
    array = np.arange(12, dtype=">f4").reshape(3, 4)[:, ::2]
    np.testing.assert_array_equal(_round(array), array)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=30))
def test_bytes_arrive(values: list[bytes]) -> None:
    array = np.empty(len(values), object)
    array[:] = values
    assert _round(array).tolist() == values


@pytest.mark.parametrize(
    ("datatype", "shape", "raw", "says"),
    [
        ("FP32", [2], b"\0" * 7, "7 bytes are no FP32"),
        ("FP32", [3], b"\0" * 8, "2 values for the shape"),
        ("BYTES", [1], b"\x05\0\0\0ab", "end within a value"),
        ("BYTES", [1], b"\x05\0", "end within a length"),
        ("FP16", [1], b"\0\0", "unknown datatype"),
    ],
)
def test_what_does_not_fit_is_named(datatype: str, shape: list[int], raw: bytes, says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        tensors.decode("score", datatype, shape, raw)
    assert "'score'" in str(caught.value)


def test_an_unsendable_dtype_is_refused() -> None:
    with pytest.raises(DataError, match="complex128"):
        tensors.encode("t", np.zeros(2, complex))
