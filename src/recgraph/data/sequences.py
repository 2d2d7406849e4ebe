"""A user's recent clicks and seen items as of any moment, as lists of item rows, newest first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recgraph.data.log import SECOND_US, BoolArray, EventLog, IntArray
from recgraph.data.timeline import Timeline, newest_first
from recgraph.data.world import offsets_of
from recgraph.features.reader import ListColumn

MAX_CLICKS = 50
MAX_SEEN = 1000


@dataclass(frozen=True)
class Sequences:
    """`item_row` (int32) and `time_s` (int64, Unix s), lists of the same lengths, one per question."""

    item_row: ListColumn
    time_s: ListColumn


class UserSequences:
    """The last `limit` events of each user among those that `which` marks.

    With `distinct`, an item counts once, at its latest event.
    """

    def __init__(self, log: EventLog, which: BoolArray, *, limit: int, distinct: bool) -> None:
        part = log.select(which)
        self._limit = limit
        self._timeline = Timeline(part.user_row, part.time_us, part.users)
        self._items = part.item_row[self._timeline.order]
        users = part.user_row[self._timeline.order]
        self._again = _next_occurrence(users, self._items) if distinct else None
        if self._again is not None:
            # Beyond the limit a user's list must look back further by as many events as are repeated later.
            repeated = users[self._again < len(users)]
            self._repeats = np.bincount(repeated, minlength=part.users)

    @classmethod
    def clicks(cls, log: EventLog) -> UserSequences:
        """What user_clicks holds."""
        return cls(log, log.clicked, limit=MAX_CLICKS, distinct=False)

    @classmethod
    def seen(cls, log: EventLog) -> UserSequences:
        """What user_seen holds: clicked or rated, each item once."""
        return cls(log, log.clicked | log.rated, limit=MAX_SEEN, distinct=True)

    def as_of(self, rows: npt.NDArray[np.integer], times_us: IntArray) -> Sequences:
        """One list per (user row, time), of events with time <= t."""
        ends = self._timeline.until(rows, times_us)
        lengths = np.minimum(ends - self._timeline.starts[rows], self._reach(rows))
        positions, offsets = newest_first(ends, lengths)
        if self._again is not None:
            positions, offsets = self._distinct(self._again, positions, offsets, ends)
        return Sequences(
            ListColumn(self._items[positions], offsets),
            ListColumn(self._timeline.time_us[positions] // SECOND_US, offsets),
        )

    def _reach(self, rows: npt.NDArray[np.integer]) -> IntArray | int:
        return self._limit if self._again is None else self._limit + self._repeats[rows]

    def _distinct(
        self, again: IntArray, positions: IntArray, offsets: IntArray, ends: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Drops events whose item comes again before the list's end, then cuts to the limit."""
        row = np.repeat(np.arange(len(ends)), np.diff(offsets))
        latest = again[positions] >= ends[row]
        kept = np.cumsum(latest)
        before = np.concatenate([[0], kept])[offsets[:-1]]
        keep = latest & (kept - before[row] <= self._limit)
        return positions[keep], offsets_of(np.bincount(row[keep], minlength=len(ends)))

    def longest(self) -> int:
        """The most events that a list may have to look through; bounds the memory of one question per row."""
        if not len(self._items):
            return 1
        reach = np.minimum(np.diff(self._timeline.starts), self._reach(np.arange(len(self._timeline.starts) - 1)))
        return int(reach.max())


def _next_occurrence(users: npt.NDArray[np.int32], items: npt.NDArray[np.int32]) -> IntArray:
    """For each position (users grouped, each by time) where the same pair comes next; the length if never."""
    again = np.full(len(users), len(users), np.int64)
    order = np.lexsort((items, users))
    same = (users[order][1:] == users[order][:-1]) & (items[order][1:] == items[order][:-1])
    again[order[:-1][same]] = order[1:][same]
    return again
