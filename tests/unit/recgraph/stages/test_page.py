"""Filling a page."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recgraph.scenes import Boost, Cap, Freshness
from recgraph.stages.page import Floats, Shelf, fill, relevance


def _shelf(categories: str, values: list[float] | None = None, embedding: list[list[float]] | None = None) -> Shelf:
    scores = np.array(values if values is not None else np.linspace(1, 0, len(categories)))
    vectors = None if embedding is None else np.array(embedding, np.float32)
    return Shelf(scores, ["" if name == "-" else name for name in categories], vectors)


def test_by_relevance_where_no_rule_speaks() -> None:
    assert fill(_shelf("aaa", [0.1, 0.9, 0.5]), 3, fixed={}, cap=None, mmr_lambda=0.0) == [1, 2, 0]


def test_the_cap_counts_in_every_window() -> None:
    rows = fill(_shelf("aaaaabbbbb"), 6, fixed={}, cap=Cap(max=2, window=3), mmr_lambda=0.0)
    assert ["aaaaabbbbb"[row] for row in rows] == ["a", "a", "b", "a", "a", "b"]


def test_the_cap_looks_ahead_to_fixed_places() -> None:
    rows = fill(_shelf("aaabb"), 4, fixed={1: 2}, cap=Cap(max=1, window=2), mmr_lambda=0.0)
    assert rows[1] == 2
    assert ["aaabb"[row] for row in rows] == ["b", "a", "b", "a"]


def test_the_cap_gives_way_before_a_place_stays_empty() -> None:
    rows = fill(_shelf("aaaa"), 4, fixed={}, cap=Cap(max=1, window=4), mmr_lambda=0.0)
    assert rows == [0, 1, 2, 3]


def test_unknown_categories_are_not_capped() -> None:
    assert fill(_shelf("---"), 3, fixed={}, cap=Cap(max=1, window=3), mmr_lambda=0.0) == [0, 1, 2]


def test_diversity_prefers_what_is_different() -> None:
    shelf = _shelf("---", [1.0, 0.95, 0.5], [[1, 0], [1, 0], [0, 1]])
    assert fill(shelf, 2, fixed={}, cap=None, mmr_lambda=0.0) == [0, 1]
    assert fill(shelf, 2, fixed={}, cap=None, mmr_lambda=0.5) == [0, 2]
    assert fill(shelf, 2, fixed={1: 0}, cap=None, mmr_lambda=0.5) == [2, 0], "fixed items count as well"


def test_relevance_is_scaled_then_freshened_then_boosted() -> None:
    score: Floats = np.array([2.0, 4.0, 3.0])
    ages: Floats = np.array([0.0, 3600.0, np.nan])
    fresh = Freshness(weight=1.0, half_life_hours=1.0)
    boosts = (Boost(category="x", factor=2.0), Boost(item_id="c", factor=10.0), Boost(creator="m", factor=3.0))
    value = relevance(score, ["a", "b", "c"], ["x", "y", "y"], ["n", "m", "n"], ages, boosts, fresh)
    np.testing.assert_allclose(value, [(0.0 + 1.0) * 2, (1.0 + 0.5) * 3, 0.5 * 10])
    np.testing.assert_allclose(relevance(np.ones(2), ["a", "b"], ["", ""], ["", ""], np.zeros(2), (), Freshness()), 1.0)


@settings(deadline=None, max_examples=150)
@given(
    st.text("abc-", max_size=25),
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(1, 6),
    st.floats(0, 1),
    st.dictionaries(st.integers(0, 14), st.integers(0, 24), max_size=3),
)
def test_page_invariants(
    categories: str, size: int, most: int, window: int, mmr_lambda: float, wished: dict[int, int]
) -> None:
    count = len(categories)
    fixed: dict[int, int] = {}
    for place, row in wished.items():
        if place < size and row < count and row not in fixed.values():
            fixed[place] = row
    rng = np.random.default_rng(count)
    vectors = rng.normal(size=(count, 3))
    shelf = _shelf(
        categories, rng.random(count).tolist(), (vectors / (np.linalg.norm(vectors, axis=1)[:, None])).tolist()
    )
    if not count:
        shelf = Shelf(np.zeros(0), [], None)
    cap = Cap(max=most, window=window)
    rows = fill(shelf, size, fixed=fixed, cap=cap, mmr_lambda=mmr_lambda)
    assert len(rows) == min(size, count), "a page is full whenever there are enough candidates"
    assert len(set(rows)) == len(rows)
    if len(rows) == size:
        assert all(rows[place] == row for place, row in fixed.items())
    if not fixed:
        _check_cap(rows, categories, cap)


def _check_cap(rows: list[int], categories: str, cap: Cap) -> None:
    """A place breaks the cap only where every candidate that was left would have."""
    for place in range(len(rows)):
        before = Counter(categories[row] for row in rows[max(0, place - cap.window + 1) : place])
        full = {name for name, number in before.items() if number >= cap.max and name != "-"}
        if categories[rows[place]] in full:
            left = set(range(len(categories))) - set(rows[:place])
            assert all(categories[row] in full for row in left)
