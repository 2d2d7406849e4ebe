"""Popularity baselines: what they may look at."""

from __future__ import annotations

import numpy as np

from recgraph.data.log import DAY_US, EventLog
from recgraph.training.baselines import Seen, baselines
from recgraph.training.samples import Request


def log() -> EventLog:
    """Item 0 was popular long ago, 1 in the week before day 30, 2 lately; item 3 was only shown."""
    days = [1] * 6 + [25] * 4 + [39] * 2 + [39] * 9
    items = [0] * 6 + [1] * 4 + [2] * 2 + [3] * 9
    count = len(days)
    return EventLog(
        np.arange(count, dtype=np.int32),
        np.array(items, np.int32),
        np.array(days, np.int64) * DAY_US,
        np.array([item != 3 for item in items]),
        np.full(count, np.nan, np.float32),
        users=count,
        items=5,
    )


REQUEST = Request(0, 40 * DAY_US, np.array([2]))


def test_each_counts_its_own_days() -> None:
    made = baselines(log(), np.ones(5, bool), 30 * DAY_US)
    nothing = np.empty(0, np.int64)
    assert made["popular_all"].top(REQUEST, nothing, 2).tolist() == [0, 1]
    assert made["popular_7d"].top(REQUEST, nothing, 1).tolist() == [1]
    assert made["popular_3d_live"].top(REQUEST, nothing, 1).tolist() == [2]


def test_live_stops_before_the_request() -> None:
    live = baselines(log(), np.ones(5, bool), 30 * DAY_US)["popular_3d_live"]
    early = Request(0, 39 * DAY_US, np.array([2]))
    assert live.top(early, np.empty(0, np.int64), 5).tolist() == [0, 1, 2, 3, 4]


def test_seen_and_unavailable_items_are_left_out() -> None:
    allowed = np.array([True, False, True, True, True])
    overall = baselines(log(), allowed, 40 * DAY_US)["popular_all"]
    assert overall.top(REQUEST, np.array([0]), 5).tolist() == [2, 3, 4]


def test_seen_is_what_was_clicked_or_rated_before() -> None:
    seen = Seen(log())
    assert seen.before(0, 2 * DAY_US).tolist() == [0]
    assert seen.before(0, 1 * DAY_US).tolist() == []
    assert seen.before(20, 40 * DAY_US).tolist() == []
