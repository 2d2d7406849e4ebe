"""Item to item: neighbours are what the same users click within a while."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recgraph.models.item_to_item import ItemToItem, build_item_to_item

DAY = 86_400_000_000
CLICKS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 60)), max_size=60)


def build(clicks, **options) -> ItemToItem:
    columns = np.array(clicks, np.int64).reshape(-1, 3)
    return build_item_to_item(columns[:, 0], columns[:, 1], columns[:, 2] * DAY, 8, **options)


def neighbours(model: ItemToItem, item: int) -> list[int]:
    return model.neighbours[model.offsets[item] : model.offsets[item + 1]].tolist()


def test_items_that_more_users_share_come_first():
    clicks = [(user, item, 0) for user in range(3) for item in (0, 1)] + [(9, 0, 0), (9, 2, 0)]
    model = build(clicks)
    assert neighbours(model, 0) == [1, 2]
    assert neighbours(model, 1) == [0]
    assert neighbours(model, 3) == []


def test_clicks_too_far_apart_in_time_do_not_count():
    assert neighbours(build([(0, 0, 0), (0, 1, 31)]), 0) == []
    assert neighbours(build([(0, 0, 0), (0, 1, 29)]), 0) == [1]
    assert neighbours(build([(0, 0, 0), (1, 1, 0)]), 0) == []


def test_newer_pairs_count_more():
    model = build([(0, 0, 0), (0, 1, 0), (1, 0, 40), (1, 2, 40)])
    assert neighbours(model, 0) == [2, 1]


def test_the_limit_keeps_the_best():
    clicks = [(user, item, 0) for user in range(3) for item in (0, 1)] + [(9, 0, 0), (9, 2, 0)]
    assert neighbours(build(clicks, neighbours=1), 0) == [1]


@given(CLICKS)
def test_rows_are_sorted_by_score_without_the_item_itself_or_repeats(clicks):
    model = build(clicks)
    assert len(model.offsets) == 9
    for item in range(8):
        part = slice(int(model.offsets[item]), int(model.offsets[item + 1]))
        rows, scores = model.neighbours[part], model.scores[part]
        assert item not in rows
        assert len(set(rows.tolist())) == len(rows)
        assert (np.diff(scores) <= 0).all()
        assert ((scores > 0) & (scores <= 1)).all()


@given(CLICKS, st.lists(st.integers(-1, 7), max_size=10), st.integers(0, 5))
def test_recall_returns_new_items_best_first(clicks, history, k):
    ages = np.linspace(0, 30 * 86_400, len(history)).astype(np.float32)
    rows, scores = build(clicks).recall(np.array(history, np.int64), ages, k)
    assert len(rows) == len(scores) <= k
    assert len(set(rows.tolist())) == len(rows)
    assert not set(rows.tolist()) & set(history)
    assert (np.diff(scores) <= 0).all()


@given(CLICKS, st.lists(st.integers(-1, 7), max_size=10))
def test_similarity_agrees_with_recall(clicks, history):
    model = build(clicks)
    past = np.array(history, np.int64)
    ages = np.linspace(0, 30 * 86_400, len(history)).astype(np.float32)
    rows, scores = model.recall(past, ages, 100)
    candidates = np.array([-1, *range(8), 3], np.int64)
    found = model.similarity(past, ages, candidates)
    expected = dict(zip(rows.tolist(), scores.tolist(), strict=True))
    for row, value in zip(candidates.tolist(), found[:, 0].tolist(), strict=True):
        if row not in history:
            assert value == np.float32(expected.get(row, 0.0))
    assert (found[:, 1] <= found[:, 0] + 1e-6).all()


def test_a_newer_click_leads_to_more(tmp_path: Path):
    build([(0, 0, 0), (0, 1, 0), (1, 2, 0), (1, 3, 0)]).save(tmp_path)
    model = ItemToItem.load(tmp_path)
    day = 86_400.0
    assert model.recall(np.array([0, 2]), np.array([day, 30 * day], np.float32), 2)[0].tolist() == [1, 3]
    assert model.recall(np.array([2, 0]), np.array([day, 30 * day], np.float32), 2)[0].tolist() == [3, 1]
