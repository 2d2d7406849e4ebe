"""The events of a data set as plain arrays: integer codes instead of ids, sorted by time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recgraph.errors import DataError

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
DAY_US = 24 * HOUR_US


@dataclass(frozen=True)
class EventLog:
    """Impressions in order of time; five arrays of one length.

    `user_row` and `item_row` (int32) are rows of the world's users and items, `time_us` (int64) is microseconds
    since the epoch, never decreasing, `rating` (float32) is NaN where there is none. `users` and `items` are the
    numbers of entities, whether or not they have events.
    """

    user_row: Rows
    item_row: Rows
    time_us: IntArray
    clicked: BoolArray
    rating: Floats
    users: int
    items: int

    def __post_init__(self) -> None:
        """Raises DataError for arrays of different length, times out of order, or rows out of range."""
        lengths = {len(a) for a in (self.user_row, self.item_row, self.time_us, self.clicked, self.rating)}
        if len(lengths) != 1:
            raise DataError(f"the columns of an event log differ in length: {sorted(lengths)}")
        if not len(self):
            return
        if bool((self.time_us[1:] < self.time_us[:-1]).any()):
            raise DataError("the events of a log are not sorted by time")
        for name, rows, count in (("user", self.user_row, self.users), ("item", self.item_row, self.items)):
            if int(rows.min()) < 0 or int(rows.max()) >= count:
                raise DataError(f"a {name} row of the event log is not between 0 and {count - 1}")

    def __len__(self) -> int:
        return len(self.time_us)

    @property
    def rated(self) -> BoolArray:
        """Which events carry a rating."""
        return ~np.isnan(self.rating)

    @property
    def start_us(self) -> int:
        """Time of the first event. The log must not be empty."""
        return int(self.time_us[0])

    @property
    def end_us(self) -> int:
        """Time of the last event. The log must not be empty."""
        return int(self.time_us[-1])

    def select(self, which: BoolArray | IntArray | slice) -> EventLog:
        """A part of the log, by mask, ascending positions or slice."""
        columns = (self.user_row, self.item_row, self.time_us, self.clicked, self.rating)
        user, item, time, clicked, rating = (column[which] for column in columns)
        return EventLog(user, item, time, clicked, rating, self.users, self.items)  # type: ignore[arg-type]

    def before(self, time_us: int) -> EventLog:
        """The events strictly before a moment, as views of the arrays."""
        return self.select(slice(0, int(np.searchsorted(self.time_us, time_us, side="left"))))

    def between(self, start_us: int, end_us: int) -> EventLog:
        """The events with start <= time < end, as views of the arrays."""
        first, last = np.searchsorted(self.time_us, [start_us, end_us], side="left")
        return self.select(slice(int(first), int(last)))


def sorted_log(
    user_row: npt.NDArray[np.integer],
    item_row: npt.NDArray[np.integer],
    time_us: IntArray,
    clicked: BoolArray,
    rating: Floats,
    *,
    users: int,
    items: int,
) -> EventLog:
    """A log of events in any order. Events of one moment keep the order in which they came."""
    order = np.argsort(time_us, kind="stable")
    return EventLog(
        user_row[order].astype(np.int32),
        item_row[order].astype(np.int32),
        time_us[order],
        clicked[order],
        rating[order].astype(np.float32),
        users,
        items,
    )
