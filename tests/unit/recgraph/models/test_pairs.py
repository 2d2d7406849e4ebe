"""The table of pairs against a plain count, and its lookup."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgraph.errors import BundleError
from recgraph.models.pairs import PAIR_FEATURES, PairTable

EVENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=40)


def build(events: list[tuple[int, int]], *, window: int = 50, keep: int = 50) -> PairTable:
    users = np.array([user for user, _ in events], np.int32)
    items = np.array([item for _, item in events], np.int32)
    return PairTable.build(users, items, 7, window=window, keep=keep)


def plain(events: list[tuple[int, int]], window: int) -> Counter[tuple[int, int]]:
    counts: Counter[tuple[int, int]] = Counter()
    for user in {user for user, _ in events}:
        clicks = [item for owner, item in events if owner == user]
        for place, item in enumerate(clicks):
            for other in clicks[max(0, place - window) : place]:
                if other != item:
                    counts[item, other] += 1
                    counts[other, item] += 1
    return counts


@settings(deadline=None)
@given(events=EVENTS, window=st.integers(1, 5), candidates=st.lists(st.integers(-1, 6), max_size=8))
def test_lookup_equals_a_plain_count(events: list[tuple[int, int]], window: int, candidates: list[int]) -> None:
    clicks = [0, 3, -1, 5]
    counts = plain(events, window)
    table = build(events, window=window)
    found = table.lookup(np.array(candidates, np.int64), np.array(clicks, np.int64))
    expected = [[counts[candidate, click] for click in clicks] for candidate in candidates]
    np.testing.assert_array_equal(found, np.array(expected, np.float32).reshape(len(candidates), len(clicks)))


def test_only_the_most_frequent_neighbours_are_kept() -> None:
    table = build([(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 2)], keep=1)
    np.testing.assert_array_equal(table.lookup(np.array([1, 2]), np.array([0])), [[2.0], [0.0]])


def test_features_without_clicks_are_zero() -> None:
    values, cosine = build([(0, 0), (0, 1)]).features(np.array([0, -1]), np.empty(0, np.int64))
    assert values.shape == (2, len(PAIR_FEATURES))
    assert not values.any()
    assert cosine.shape == (2, 0)


def test_related_items_score_higher() -> None:
    table = build([(0, 0), (0, 1), (1, 0), (1, 1), (2, 3)])
    values, cosine = table.features(np.array([1, 3, -1]), np.array([0]))
    assert (values[0, :-1] > values[1, :-1]).all()
    assert cosine[0, 0] > cosine[1, 0] == 0.0
    assert np.isfinite(values).all()


def test_saved_and_loaded(tmp_path: Path) -> None:
    table = build([(0, 0), (0, 1), (1, 1), (1, 5)])
    table.save(tmp_path)
    loaded = PairTable.load(tmp_path)
    np.testing.assert_array_equal(loaded.lookup(np.arange(7), np.arange(7)), table.lookup(np.arange(7), np.arange(7)))
    np.save(tmp_path / "counts.npy", np.zeros(1, np.float32))
    with pytest.raises(BundleError, match="do not belong together"):
        PairTable.load(tmp_path)
    (tmp_path / "counts.npy").unlink()
    with pytest.raises(BundleError, match=r"counts\.npy"):
        PairTable.load(tmp_path)
