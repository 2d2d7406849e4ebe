"""Conditions: which paths are understood. What they mean is held against the real router in tests/contract."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recgraph.errors import DataError
from recgraph.graph.condition import parse_condition


@pytest.mark.parametrize(
    "text", ["a.*", "a?", "a.#", "@this", "a|b", "a.#(x==1)", "{a}", "[a]", "!a", "a..b", ".a", "a.", "", "a\\"]
)
def test_what_gjson_would_read_differently_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="condition"):
        parse_condition(text)


def test_the_error_names_the_character() -> None:
    with pytest.raises(DataError, match=r"condition 'a\.\*' uses '\*'"):
        parse_condition("a.*")


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4))
def test_any_keys_can_be_written_with_backslashes(keys: list[str]) -> None:
    text = ".".join("".join("\\" + c for c in key) for key in keys)
    document: object = 0
    for key in reversed(keys):
        document = {key: document}
    condition = parse_condition(text)
    assert condition.parts == tuple(keys)
    assert condition.exists(document)
    assert not condition.exists({})
