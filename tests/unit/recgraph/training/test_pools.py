"""Pools at a moment: counted from what was before it, and from nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recgraph.data import synthetic
from recgraph.data.log import DAY_US, HOUR_US, sorted_log
from recgraph.training.pools import FreshPool, HotPool, best_rows, pool_snapshot

ITEMS = 6


def log_of(events):
    """Events as (item, hour, clicked)."""
    columns = np.array(events, np.int64).reshape(-1, 3)
    return sorted_log(
        np.zeros(len(columns), np.int64),
        columns[:, 0],
        columns[:, 1] * HOUR_US,
        columns[:, 2].astype(bool),
        np.full(len(columns), np.nan, np.float32),
        users=1,
        items=ITEMS,
    )


def hot(events, allowed=None, **options) -> HotPool:
    log = log_of(events)
    return HotPool(log.select(log.clicked), np.ones(ITEMS, bool) if allowed is None else allowed, **options)


EVENTS = st.lists(st.tuples(st.integers(0, ITEMS - 1), st.integers(0, 200), st.booleans()), max_size=40)


@given(EVENTS, st.integers(0, 210))
def test_plain_counts_are_live_popularity(events, hour):
    pool = hot(events, half_life_us=None)
    expected = [sum(i == item and c and hour - 72 <= h < hour for i, h, c in events) for item in range(ITEMS)]
    assert pool.scores_at(hour * HOUR_US).tolist() == expected
    rows, scores = pool.at(hour * HOUR_US, 3)
    ranked = sorted((item for item in range(ITEMS) if expected[item]), key=lambda item: (-expected[item], item))
    assert rows.tolist() == ranked[:3]
    assert scores.tolist() == [expected[item] for item in ranked[:3]]


@given(EVENTS, st.integers(0, 210))
def test_what_happens_later_changes_nothing(events, hour):
    moment = hour * HOUR_US
    past = [event for event in events if event[1] < hour]
    assert hot(events).at(moment)[0].tolist() == hot(past).at(moment)[0].tolist()
    born, allowed = np.zeros(ITEMS, np.int64), np.ones(ITEMS, bool)
    later, before = (FreshPool(log_of(part), born, allowed).at(moment) for part in (events, past))
    assert later[0].tolist() == before[0].tolist()
    assert later[1].tolist() == before[1].tolist()


def test_a_newer_click_is_hotter_and_an_unavailable_item_is_not_there():
    events = [(0, 1, 1), (1, 40, 1), (2, 2, 1), (2, 3, 1), (3, 40, 0)]
    assert hot(events).at(48 * HOUR_US)[0].tolist() == [1, 2, 0]
    allowed = np.array([True, False, True, True, True, True])
    assert hot(events, allowed).at(48 * HOUR_US)[0].tolist() == [2, 0]


def test_fresh_prefers_new_items_and_drops_what_was_shown_in_vain():
    events = [(1, 10, 1), *[(2, 11, 0)] * 20, *[(3, 11, 0)] * 19]
    born = np.array([0, 0, 9, 9, 30, 100]) * HOUR_US
    allowed = np.array([True, True, True, True, True, True])
    rows, _ = FreshPool(log_of(events), born, allowed).at(48 * HOUR_US)
    # 5 is not born yet, 2 was shown in vain, 1 has a click, and the rest follow by newness.
    assert rows.tolist() == [1, 4, 3, 0]


@given(st.lists(st.integers(-3, 3), max_size=30), st.integers(1, 10))
def test_best_rows_equals_sorting_everything(values, k):
    scores = np.array(values, np.float64)
    expected = [row for row in np.argsort(-scores, kind="stable").tolist() if scores[row] > 0][:k]
    rows, found = best_rows(scores, k)
    assert rows.tolist() == expected
    assert found.tolist() == scores[expected].tolist()


@pytest.fixture(scope="module")
def small_world():
    return synthetic.make_world(synthetic.parameters(1000, 50, 5000, days=20, seed=3))


def test_a_snapshot_is_the_pool_of_the_end_for_every_scene(small_world):
    pools = pool_snapshot(small_world, ["a", "b"], k=50)
    assert pools["a"] == pools["b"]
    rows, _ = HotPool.of(small_world).at(small_world.end_us + 1, 50)
    assert [item for item, _ in pools["a"]["hot"]] == small_world.item_ids[rows].tolist()
    assert len(pools["a"]["fresh"]) == 50
    shown = {item for pool in pools["a"].values() for item, _ in pool}
    gone = set(small_world.item_ids[~small_world.available].tolist())
    assert gone
    assert not shown & gone
    earlier = pool_snapshot(small_world, ["a"], small_world.end_us - 10 * DAY_US, k=50)
    assert earlier["a"]["hot"] != pools["a"]["hot"]
