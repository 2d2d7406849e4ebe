"""Metrics against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recgraph.training.metrics import auc, gauc, ndcg, paired_bootstrap, recall


def test_ndcg_of_a_perfect_list_is_one() -> None:
    assert ndcg(np.array([4, 2, 9]), np.array([2, 4]), 3) == pytest.approx(1.0)


def test_ndcg_discounts_by_place() -> None:
    assert ndcg(np.array([9, 2]), np.array([2]), 20) == pytest.approx(1.0 / np.log2(3))


def test_ndcg_counts_what_is_beyond_the_list_as_missed() -> None:
    assert ndcg(np.array([2]), np.arange(30), 20) == pytest.approx(1.0 / sum(1 / np.log2(n + 2) for n in range(20)))
    assert ndcg(np.array([9, 2]), np.array([2]), 1) == 0.0


def test_recall() -> None:
    assert recall(np.array([1, 2, 3]), np.array([3, 7]), 3) == 0.5
    assert recall(np.array([1, 2, 3]), np.array([3, 7]), 2) == 0.0


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=30))
def test_auc_equals_the_count_of_pairs(rows: list[tuple[int, bool]]) -> None:
    scores = np.array([score for score, _ in rows], np.float64)
    labels = np.array([label for _, label in rows])
    pairs = [np.sign(p - n) / 2 + 0.5 for p in scores[labels] for n in scores[~labels]]
    expected = np.mean(pairs) if pairs else np.nan
    assert auc(scores, labels) == pytest.approx(expected, nan_ok=True)


def test_gauc_leaves_out_requests_without_both_kinds() -> None:
    scores = [np.array([1.0, 2.0]), np.array([1.0, 2.0])]
    assert gauc(scores, [np.array([False, True]), np.array([True, True])]) == 1.0


def test_bootstrap_of_a_constant_difference_has_no_width() -> None:
    interval = paired_bootstrap(np.array([0.3, 0.5]), np.array([0.2, 0.4]), seed=0)
    assert (interval.mean, interval.low, interval.high) == pytest.approx((0.1, 0.1, 0.1))


def test_bootstrap_covers_zero_where_there_is_no_difference() -> None:
    rng = np.random.default_rng(0)
    interval = paired_bootstrap(rng.random(500), rng.random(500), seed=0)
    assert interval.low < 0.0 < interval.high
    assert interval == paired_bootstrap(*(np.random.default_rng(0).random((2, 500))), seed=0)
