"""Statistics as of a moment, against a slow count of every event."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgraph.data.log import DAY_US, HOUR_US, SECOND_US
from recgraph.data.sequences import UserSequences
from recgraph.data.stats import (
    ITEM_WINDOWS,
    USER_WINDOWS,
    ItemStats,
    UserProfiles,
    item_stats_as_of,
    user_profile_as_of,
)
from recgraph.data.timeline import change_times
from recgraph.data.world import World
from recgraph.features.reader import ListColumn

# Times on the edges of windows, and a microsecond beside them, are where mistakes are.
EDGES = [0, *ITEM_WINDOWS.values(), DAY_US + HOUR_US]
moments = st.builds(
    lambda a, b, c: a + b + c, st.sampled_from(EDGES), st.sampled_from(EDGES), st.sampled_from([-1, 0, 1, 7])
)
events = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, 4),
        moments,
        st.booleans(),
        st.sampled_from([float("nan"), 0.5, 7.0, 10.0, 3.3]),
    ),
    min_size=0,
    max_size=40,
)
questions = st.lists(st.tuples(st.integers(0, 3), moments), min_size=1, max_size=12)


def rows_before(world: World, of: str, row: int, time_us: int, window_us: int | None = None) -> list[int]:
    """Positions in the log of an entity's events with time <= t (and > t - window)."""
    rows = world.log.user_row if of == "user" else world.log.item_row
    since = -(2**62) if window_us is None else time_us - window_us
    return [k for k, t in enumerate(world.log.time_us.tolist()) if rows[k] == row and since < t <= time_us]


def brute_force_totals(world: World, hits: list[int]) -> dict[str, float]:
    log = world.log
    ratings = [float(log.rating[k]) for k in hits if not np.isnan(log.rating[k])]
    return {
        "impressions_all": len(hits),
        "clicks_all": sum(bool(log.clicked[k]) for k in hits),
        "rating_sum_all": sum(ratings),
        "rating_count_all": len(ratings),
        "first_event_time": log.time_us[hits[0]] // SECOND_US if hits else 0,
        "last_event_time": log.time_us[hits[-1]] // SECOND_US if hits else 0,
    }


def brute_force_windows(world: World, of: str, row: int, at: int, windows: dict[str, int]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, window in windows.items():
        hits = rows_before(world, of, row, at, window)
        found[f"impressions_{name}"] = len(hits)
        found[f"clicks_{name}"] = sum(bool(world.log.clicked[k]) for k in hits)
    return found


def brute_force_item(world: World, row: int, at: int) -> dict[str, float]:
    log, hits = world.log, rows_before(world, "item", row, at)
    month = [float(log.rating[k]) for k in rows_before(world, "item", row, at, 30 * DAY_US)]
    clicks = [int(log.time_us[k]) for k in hits if log.clicked[k]]
    return {
        **brute_force_totals(world, hits),
        **brute_force_windows(world, "item", row, at, ITEM_WINDOWS),
        "rating_sum_30d": sum(rating for rating in month if not np.isnan(rating)),
        "rating_count_30d": sum(not np.isnan(rating) for rating in month),
        "last_click_time": clicks[-1] // SECOND_US if clicks else 0,
    }


def brute_force_user(world: World, row: int, at: int) -> dict[str, Any]:
    log, hits = world.log, rows_before(world, "user", row, at)
    lists = world.items["categories"].to_pylist()
    counts = Counter(name for k in hits if log.clicked[k] for name in lists[log.item_row[k]])
    top = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:16]
    return {
        **brute_force_totals(world, hits),
        **brute_force_windows(world, "user", row, at, USER_WINDOWS),
        "rating_sq_sum_all": sum(float(log.rating[k]) ** 2 for k in hits if not np.isnan(log.rating[k])),
        "active_days": len({int(log.time_us[k]) // DAY_US for k in hits}),
        "top_categories": [name for name, _ in top],
        "category_clicks": [count for _, count in top],
    }


def row_of(columns: dict[str, Any], index: int) -> dict[str, Any]:
    return {n: c.row(index).tolist() if isinstance(c, ListColumn) else c[index].item() for n, c in columns.items()}


def asked(questions: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([row for row, _ in questions]), np.array([t for _, t in questions]) + 1_700_000_000 * SECOND_US


@settings(deadline=None)
@given(events=events, questions=questions)
def test_item_stats_equal_a_slow_count(make_world: Any, events: Any, questions: Any) -> None:
    world = make_world(events)
    rows, times = asked(questions)
    found = item_stats_as_of(world.log, rows, times)
    for index in range(len(rows)):
        assert row_of(found, index) == pytest.approx(brute_force_item(world, rows[index], times[index]), rel=1e-6)


@settings(deadline=None)
@given(events=events, questions=questions)
def test_user_profiles_equal_a_slow_count(make_world: Any, events: Any, questions: Any) -> None:
    world = make_world(events)
    rows, times = asked(questions)
    found = user_profile_as_of(world, rows, times)
    for index in range(len(rows)):
        row, expected = row_of(found, index), brute_force_user(world, rows[index], times[index])
        assert row.pop("top_categories") == expected.pop("top_categories")
        assert row.pop("category_clicks") == expected.pop("category_clicks")
        assert row == pytest.approx(expected, rel=1e-6)


@settings(deadline=None)
@given(events=events, questions=questions, limit=st.integers(1, 5), distinct=st.booleans())
def test_sequences_are_newest_first(make_world: Any, events: Any, questions: Any, limit: int, distinct: bool) -> None:
    world = make_world(events)
    log = world.log
    rows, times = asked(questions)
    found = UserSequences(log, log.clicked, limit=limit, distinct=distinct).as_of(rows, times)
    for index in range(len(rows)):
        hits = [k for k in reversed(rows_before(world, "user", rows[index], times[index])) if log.clicked[k]]
        items = [int(log.item_row[k]) for k in hits]
        first = [place for place, item in enumerate(items) if not distinct or item not in items[:place]][:limit]
        assert found.item_row.row(index).tolist() == [items[place] for place in first]
        assert found.time_s.row(index).tolist() == [int(log.time_us[hits[place]]) // SECOND_US for place in first]


@settings(deadline=None)
@given(events=events, cadence=st.sampled_from([0, 1, HOUR_US, DAY_US]), end=moments)
def test_between_two_changes_nothing_changes(make_world: Any, events: Any, cadence: int, end: int) -> None:
    """The value at each tick of the cadence is that of the last change before it: no change is missed."""
    world = make_world(events)
    log = world.log
    end_us = end + 1_700_000_000 * SECOND_US
    windows = tuple(ITEM_WINDOWS.values())
    rows, times = change_times(log.item_row, log.time_us, windows, cadence_us=cadence, end_us=end_us)
    assert len(set(zip(rows.tolist(), times.tolist(), strict=True))) == len(rows)
    assert all(t == end_us or t % max(cadence, 1) == 0 for t in times.tolist())
    assert (times <= end_us).all()
    stats = ItemStats(log)
    probes = [end_us, *(end_us - edge for edge in EDGES)]
    for item in range(log.items):
        for probe in probes:
            at = probe if probe == end_us else probe // max(cadence, 1) * max(cadence, 1)
            before = times[(rows == item) & (times <= at)]
            now = row_of(stats.as_of(np.array([item]), np.array([at])), 0)
            if not len(before):
                assert now["impressions_all"] == 0
            else:
                assert row_of(stats.as_of(np.array([item]), before[-1:]), 0) == now


def test_keys_too_large_for_one_integer_are_sorted_all_the_same() -> None:
    rows = np.array([10_000_000, 3, 3, 3], np.int32)
    times = np.array([5, 10**15, 10**15, 2])
    found = change_times(rows, np.sort(times), (), cadence_us=0, end_us=10**15)
    # Sorted times belong to rows 10000000, 3, 3, 3 in this order.
    assert [column.tolist() for column in found] == [[3, 3, 10_000_000], [5, 10**15, 2]]


@pytest.mark.parametrize("start", [5, 7])
def test_only_the_last_change_before_the_start_stays(start: int) -> None:
    rows, times = np.array([0, 0, 1, 0, 0], np.int32), np.array([1, 2, 3, 7, 9])
    found = change_times(rows, times, (), cadence_us=0, end_us=8, start_us=start)
    assert [column.tolist() for column in found] == [[0, 0, 1], [2, 7, 3]]


def test_profiles_are_the_same_in_small_pieces(small_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.repeat(np.arange(4), 30)
    times = np.tile(np.linspace(small_world.log.start_us, small_world.log.end_us, 30).astype(np.int64), 4)
    whole = UserProfiles(small_world).as_of(rows, times)
    monkeypatch.setattr("recgraph.data.stats._CELLS", 40)
    pieces = UserProfiles(small_world).as_of(rows, times)
    for index in range(len(rows)):
        assert row_of(whole, index) == row_of(pieces, index)
