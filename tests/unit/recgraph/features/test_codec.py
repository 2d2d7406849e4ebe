"""Packed blobs: what goes in comes out bit for bit, and what does not fit is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recgraph.errors import DataError, StageFailure
from recgraph.features.codec import codec_of
from recgraph.features.reader import ListColumn, ViewBlock
from recgraph.features.schema import Field, ViewSchema

VIEW = ViewSchema(
    "mixed_v1",
    "item",
    60,
    (
        Field("words", "text_list"),
        Field("score", "float32"),
        Field("numbers", "int64_list"),
        Field("title", "text"),
        Field("exact", "float64"),
        Field("tags", "text_list"),
        Field("count", "int64"),
        Field("weights", "float32_list"),
        Field("creator", "text"),
        Field("more", "float32_list"),
    ),
)
NOW_S = 1_000_000.0
FRESH_US = 1_000_000_000_000

texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\x00\x01AB"), max_size=12)
integers = st.integers(-(2**63), 2**63 - 1)
singles = st.floats(width=32)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "float32": singles,
    "float64": st.floats(),
    "int64": integers,
    "text": texts,
    "float32_list": st.lists(singles, max_size=5),
    "int64_list": st.lists(integers, max_size=5),
    "text_list": st.lists(texts, max_size=5),
}
rows = st.tuples(*(st.none() | VALUES[field.dtype] for field in VIEW.fields))


def bits(value: Any, dtype: str) -> Any:
    """A value in a form that compares equal only where the bits are; any NaN is one NaN."""
    if dtype.startswith("float"):
        kind = np.float32 if dtype.startswith("float32") else np.float64
        array = np.asarray(value, dtype=kind)
        return np.where(np.isnan(array), np.nan, array).astype(kind).tobytes()
    return list(value) if dtype.endswith("list") else value


def value_at(block: ViewBlock, name: str, row: int) -> Any:
    column = block.columns[name]
    return column.row(row) if isinstance(column, ListColumn) else column[row]


PLACEHOLDER: dict[str, Any] = {"float32": math.nan, "float64": math.nan, "int64": 0, "text": ""}


@given(st.lists(st.none() | rows, max_size=6))
def test_values_come_back_bit_for_bit(entities: list[tuple[Any, ...] | None]) -> None:
    codec = codec_of(VIEW)
    block = codec.decode([None if row is None else codec.encode(row, FRESH_US) for row in entities], now_s=NOW_S)

    assert block.missing.tolist() == [row is None for row in entities]
    for at, row in enumerate(entities):
        for field, value in zip(VIEW.fields, row or [None] * len(VIEW.fields), strict=True):
            expected = PLACEHOLDER.get(field.dtype, []) if value is None else value
            assert bits(value_at(block, field.name, at), field.dtype) == bits(expected, field.dtype)
            assert block.nulls[field.name][at] == (value is None)
    assert [column.dtype for column in block.columns.values() if isinstance(column, np.ndarray)] == [
        np.float32,
        np.object_,
        np.float64,
        np.int64,
        np.object_,
    ]


def test_columns_are_in_the_order_of_the_schema() -> None:
    block = codec_of(VIEW).decode([None], now_s=NOW_S)
    assert list(block.columns) == [field.name for field in VIEW.fields]


@pytest.mark.parametrize(("age_us", "stale"), [(60_000_000, False), (60_000_001, True), (-5_000_000, False)])
def test_a_row_is_stale_when_older_than_the_ttl(age_us: int, stale: bool) -> None:
    codec = codec_of(VIEW)
    row = (["w"], 1.0, [1], "t", 2.0, [], 3, [4.0], "c", [])
    block = codec.decode([codec.encode(row, FRESH_US - age_us)], now_s=NOW_S)
    assert block.stale.tolist() == [stale]
    assert not block.missing[0]
    assert block.event_time_us.tolist() == [FRESH_US - age_us]
    assert block.nulls["count"].tolist() == [stale]
    assert block.columns["count"].tolist() == [0 if stale else 3]  # type: ignore[union-attr]
    assert list(value_at(block, "words", 0)) == ([] if stale else ["w"])


def test_no_ttl_never_goes_stale() -> None:
    view = ViewSchema("forever_v1", "user", 0, (Field("count", "int64"),))
    codec = codec_of(view)
    assert not codec.decode([codec.encode([1], 0)], now_s=4e9).stale[0]


def test_a_blob_of_another_schema_names_the_view() -> None:
    other = ViewSchema("mixed_v1", "item", 60, (*VIEW.fields[:-1], Field("more", "int64_list")))
    blob = codec_of(other).encode([None] * len(other.fields), FRESH_US)
    with pytest.raises(StageFailure, match=r"view mixed_v1.*another schema") as failure:
        codec_of(VIEW).decode([blob], now_s=NOW_S)
    assert failure.value.reason == "features_schema"


@given(rows, st.data())
def test_a_cut_blob_is_an_error_not_a_value(row: tuple[Any, ...], data: st.DataObject) -> None:
    codec = codec_of(VIEW)
    blob = codec.encode(row, FRESH_US)
    size = data.draw(st.integers(0, len(blob) - 1))
    with pytest.raises(StageFailure, match="features_schema: view mixed_v1"):
        dict(codec.decode([blob[:size]], now_s=NOW_S).columns)  # text and lists are cut when they are asked for


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("count", 2**63, "9223372036854775808 in field count"),
        ("count", 1.5, "1.5 in field count"),
        ("title", "\ud800", "in field title"),
        ("weights", ["x"], r"\['x'\] in field weights"),
        ("score", 1e39, "1e\\+39 in field score"),
    ],
)
def test_a_value_that_does_not_fit_is_named(field: str, value: Any, named: str) -> None:
    row = [value if own.name == field else None for own in VIEW.fields]
    with pytest.raises(DataError, match=f"view mixed_v1: cannot store .*{named}"):
        codec_of(VIEW).encode(row, FRESH_US)
