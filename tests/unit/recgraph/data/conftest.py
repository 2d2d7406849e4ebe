"""A small data set with everything that a large one has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from recgraph.data.log import DAY_US, HOUR_US, SECOND_US, sorted_log
from recgraph.data.population import numbered
from recgraph.data.world import ITEMS, TIMESTAMP, USERS, Counts, Meta, World

START_US = 1_700_000_000 * SECOND_US
Events = list[tuple[int, int, int, bool, float]]
"""(user row, item row, microseconds after START_US, clicked, rating or NaN)"""
MakeWorld = Callable[[Events], World]
CATEGORIES = [["a", "b"], ["b"], [], ["c", "a"], ["a"]]


def build_world(events: Events, users: int = 4) -> World:
    """A world of five items and `users` users with these events."""
    items = len(CATEGORIES)
    columns = [np.array(column) for column in zip(*events, strict=True)] or [np.zeros(0)] * 5
    log = sorted_log(
        columns[0].astype(np.int64),
        columns[1].astype(np.int64),
        columns[2].astype(np.int64) + START_US,
        columns[3].astype(np.bool_),
        columns[4].astype(np.float32),
        users=users,
        items=items,
    )
    published = [START_US - 30 * DAY_US, START_US, START_US + HOUR_US, START_US + DAY_US, START_US]
    item_table = pa.table(
        {
            "item_id": numbered("i", items),
            "title": [f"Title {row}" for row in range(items)],
            "category": [names[0] if names else "" for names in CATEGORIES],
            "categories": CATEGORIES,
            "creator": ["c1", "c2", "", "c1", "c2"],
            "publish_time": pa.array(published).cast(TIMESTAMP),
            "available": [True, False, True, True, True],
        },
        schema=ITEMS,
    )
    user_table = pa.table([numbered("u", users), pa.array([START_US] * users).cast(TIMESTAMP)], schema=USERS)
    end = (log.end_us if len(log) else START_US) / SECOND_US
    counts = Counts(users, items, len(log), int(log.clicked.sum()))
    return World(user_table, item_table, log, Meta("synthetic", 1, {}, counts, START_US / SECOND_US, end))


@pytest.fixture(scope="session")
def make_world() -> MakeWorld:
    return build_world


@pytest.fixture(scope="session")
def small_world() -> World:
    """300 events of 4 users and 5 items over 40 days; some rated, some clicked, many repeated."""
    rng = np.random.default_rng(5)
    events: Events = []
    for _ in range(300):
        rating = float(rng.integers(1, 11)) if rng.random() < 0.5 else float("nan")
        events.append(
            (
                int(rng.integers(4)),
                int(rng.integers(5)),
                int(rng.integers(40 * 24)) * HOUR_US + int(rng.integers(3)),
                bool(rng.random() < 0.4),
                rating,
            )
        )
    return build_world(events)
