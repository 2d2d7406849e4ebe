"""Statistics of items and of users as of any moment, vectorised: the truth behind the offline sources.

Every function takes entity rows and times (microseconds since the epoch) of one length and counts exactly the events
with time <= t. A training row for an event at t must not count that event: ask for `t - 1`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from recgraph.data.log import DAY_US, HOUR_US, SECOND_US, EventLog, IntArray
from recgraph.data.timeline import Timeline, newest_first
from recgraph.data.world import World, offsets_of
from recgraph.features.reader import Column, ListColumn

ITEM_WINDOWS = {
    "12h": 12 * HOUR_US,
    "1d": DAY_US,
    "2d": 2 * DAY_US,
    "3d": 3 * DAY_US,
    "7d": 7 * DAY_US,
    "14d": 14 * DAY_US,
    "30d": 30 * DAY_US,
    "90d": 90 * DAY_US,
}
USER_WINDOWS = {"7d": 7 * DAY_US, "30d": 30 * DAY_US}
RATING_WINDOW = ("30d", 30 * DAY_US)
TOP_CATEGORIES = 16
_CELLS = 1 << 24
"""Most cells of a (rows x categories) table at a time: 64 MiB of int32."""

Columns = dict[str, Column]


class _Counters:
    """What items and users have in common: running sums over one timeline."""

    def __init__(self, log: EventLog, rows: npt.NDArray[np.int32], entities: int) -> None:
        self.timeline = Timeline(rows, log.time_us, entities)
        rated = log.rated
        rating = np.where(rated, log.rating, 0).astype(np.float64)
        self.clicks = self.timeline.running(log.clicked)
        self.ratings = self.timeline.running(rated)
        self.rating_sum = self.timeline.running(rating)
        self.rating_sq_sum = self.timeline.running(rating * rating)

    def totals(self, begin: IntArray, end: IntArray) -> Columns:
        """Counts over all events of each entity, given the positions between which they lie."""
        some = end > begin
        times = self.timeline.time_us
        last = len(times) - 1
        return {
            "impressions_all": _f32(end - begin),
            "clicks_all": _f32(self.clicks[end] - self.clicks[begin]),
            "rating_sum_all": _f32(self.rating_sum[end] - self.rating_sum[begin]),
            "rating_count_all": _f32(self.ratings[end] - self.ratings[begin]),
            "first_event_time": np.where(some, times[np.minimum(begin, last)] // SECOND_US, 0),
            "last_event_time": np.where(some, times[end - 1] // SECOND_US, 0),
        }

    def window(self, begin: IntArray, end: IntArray, name: str) -> Columns:
        """Impressions and clicks between two positions."""
        return {
            f"impressions_{name}": _f32(end - begin),
            f"clicks_{name}": _f32(self.clicks[end] - self.clicks[begin]),
        }


class ItemStats:
    """`item_stats` of one log; building it costs a sort, each question a few binary searches per row."""

    def __init__(self, log: EventLog) -> None:
        self._counters = _Counters(log, log.item_row, log.items)
        self._last_click = self._counters.timeline.last_true(log.clicked)

    def as_of(self, rows: npt.NDArray[np.integer], times_us: IntArray) -> Columns:
        """The fields of item_stats, float32 or int64, one value per (row, time)."""
        counters = self._counters
        timeline = counters.timeline
        if not len(timeline.time_us):
            return _zeros(len(rows), ITEM_STATS_FIELDS)
        begin, end = timeline.starts[rows], timeline.until(rows, times_us)
        columns = counters.totals(begin, end)
        for name, window in ITEM_WINDOWS.items():
            left = timeline.until(rows, times_us - window)
            columns |= counters.window(left, end, name)
            if name == RATING_WINDOW[0]:
                columns["rating_sum_30d"] = _f32(counters.rating_sum[end] - counters.rating_sum[left])
                columns["rating_count_30d"] = _f32(counters.ratings[end] - counters.ratings[left])
        clicked = self._last_click[end]
        columns["last_click_time"] = np.where(clicked >= begin, timeline.time_us[clicked] // SECOND_US, 0)
        return {name: columns[name] for name in ITEM_STATS_FIELDS}


class UserProfiles:
    """`user_profile` of one world."""

    def __init__(self, world: World) -> None:
        log = world.log
        self._names = world.category_names
        self._counters = _Counters(log, log.user_row, log.users)
        timeline = self._counters.timeline
        day, user = timeline.time_us // DAY_US, log.user_row[timeline.order]
        fresh = np.ones(len(log), np.bool_)
        fresh[1:] = (day[1:] != day[:-1]) | (user[1:] != user[:-1])
        self._days = offsets_of(fresh.astype(np.int64))
        self._clicked_category(world)

    def _clicked_category(self, world: World) -> None:
        """Lays out (click, category) pairs by position: `_pair_until[p]` pairs belong to positions below p."""
        log, order = world.log, self._counters.timeline.order
        items = log.item_row[order]
        begin, end = world.categories.offsets[:-1][items], world.categories.offsets[1:][items]
        lengths = np.where(log.clicked[order], end - begin, 0)
        positions, self._pair_until = newest_first(end, lengths)
        self._pair_category = np.asarray(world.categories.values, np.int64)[positions]

    def as_of(self, rows: npt.NDArray[np.integer], times_us: IntArray) -> Columns:
        """The fields of user_profile; `top_categories` holds str objects. Rows sorted by user are read fastest."""
        counters = self._counters
        timeline = counters.timeline
        if not len(timeline.time_us):
            empty = ListColumn(np.zeros(0, np.float32), np.zeros(len(rows) + 1, np.int64))
            names = ListColumn(np.zeros(0, object), empty.offsets)
            return _zeros(len(rows), USER_PROFILE_FIELDS) | {"top_categories": names, "category_clicks": empty}
        begin, end = timeline.starts[rows], timeline.until(rows, times_us)
        columns = counters.totals(begin, end)
        for name, window in USER_WINDOWS.items():
            columns |= counters.window(timeline.until(rows, times_us - window), end, name)
        columns["rating_sq_sum_all"] = _f32(counters.rating_sq_sum[end] - counters.rating_sq_sum[begin])
        columns["active_days"] = _f32(self._days[end] - self._days[begin])
        codes, clicks = self._top(begin, end)
        columns["category_clicks"] = clicks
        columns["top_categories"] = ListColumn(self._names[codes], clicks.offsets)
        return {name: columns[name] for name in (*USER_PROFILE_FIELDS, "top_categories", "category_clicks")}

    def _top(self, begin: IntArray, end: IntArray) -> tuple[IntArray, ListColumn]:
        """Categories by clicks, most first, equal ones by name; at most 16 per row."""
        first, last = self._pair_until[begin], self._pair_until[end]
        width = len(self._names)
        parts = [np.zeros((3, 0), np.int64)]
        for part in _row_chunks(first, last, max(1, _CELLS // max(width, 1))):
            counts = _category_counts(self._pair_category, first[part], last[part], width)
            best = np.argsort(-counts, axis=1, kind="stable")[:, :TOP_CATEGORIES]
            top = np.take_along_axis(counts, best, axis=1)
            row, place = np.nonzero(top)
            parts.append(np.stack([row + part.start, best[row, place], top[row, place]]))
        rows, codes, clicks = np.concatenate(parts, axis=1)
        offsets = offsets_of(np.bincount(rows, minlength=len(begin)))
        return codes, ListColumn(_f32(clicks), offsets)


def _row_chunks(first: IntArray, last: IntArray, limit: int) -> list[slice]:
    """Slices of at most `limit` rows and, where one row alone has not more, `limit` pairs between them."""
    chunks, begin = [], 0
    while begin < len(first):
        size = min(limit, len(first) - begin)
        while size > 1 and last[begin : begin + size].max() - first[begin : begin + size].min() > limit:
            size = (size + 1) // 2
        chunks.append(slice(begin, begin + size))
        begin += size
    return chunks


def _category_counts(category: IntArray, first: IntArray, last: IntArray, width: int) -> npt.NDArray[np.int32]:
    """Counts (rows x width) of the categories of pairs first <= pair < last."""
    base, stop = int(first.min()), int(last.max())
    running = np.zeros((stop - base + 1, width), np.int32)
    running[np.arange(1, stop - base + 1), category[base:stop]] = 1
    np.cumsum(running, axis=0, out=running)
    counts: npt.NDArray[np.int32] = running[last - base] - running[first - base]
    return counts


def item_stats_as_of(log: EventLog, rows: npt.NDArray[np.integer], times_us: IntArray) -> Columns:
    """`ItemStats(log).as_of(rows, times_us)`, for one question."""
    return ItemStats(log).as_of(rows, times_us)


def user_profile_as_of(world: World, rows: npt.NDArray[np.integer], times_us: IntArray) -> Columns:
    """`UserProfiles(world).as_of(rows, times_us)`, for one question."""
    return UserProfiles(world).as_of(rows, times_us)


def _f32(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    return values.astype(np.float32)


def _zeros(rows: int, names: tuple[str, ...]) -> Columns:
    return {name: np.zeros(rows, np.int64 if name in TIMES else np.float32) for name in names}


TIMES = ("first_event_time", "last_event_time", "last_click_time")
ITEM_STATS_FIELDS = (
    *(f"{kind}_{name}" for name in ITEM_WINDOWS for kind in ("impressions", "clicks")),
    "rating_sum_30d",
    "rating_count_30d",
    "rating_sum_all",
    "rating_count_all",
    "impressions_all",
    "clicks_all",
    *TIMES,
)
USER_PROFILE_FIELDS = (
    "clicks_all",
    "impressions_all",
    *(f"{kind}_{name}" for kind in ("clicks", "impressions") for name in USER_WINDOWS),
    "rating_sum_all",
    "rating_count_all",
    "rating_sq_sum_all",
    "active_days",
    "first_event_time",
    "last_event_time",
)
