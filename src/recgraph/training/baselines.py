"""Popularity, as what the cascade has to beat. Popular is what was clicked or rated; ties go to the lower row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recgraph.data.log import DAY_US, EventLog
from recgraph.training.samples import Request

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Popularity:
    """Items by their events in the days before a moment. `window_us` None counts everything; `frozen_us` is the moment
    where the counting stops for all requests, None where each request's own moment counts (live)."""

    log: EventLog
    allowed: npt.NDArray[np.bool_]
    window_us: int | None
    frozen_us: int | None

    def top(self, request: Request, seen: Ints, k: int) -> Ints:
        """The best k item rows for a request, less what the user has seen; fewer where there are not so many."""
        end = request.time_us if self.frozen_us is None else self.frozen_us
        start = 0 if self.window_us is None else max(0, end - self.window_us)
        part = self.log.between(start, end)
        counts = np.bincount(part.item_row, minlength=self.log.items).astype(np.float64)
        counts[~self.allowed] = -1.0
        counts[seen] = -1.0
        order = np.argsort(-counts, kind="stable")[:k].astype(np.int64)
        return order[counts[order] >= 0.0]


def baselines(log: EventLog, allowed: npt.NDArray[np.bool_], split_us: int) -> dict[str, Popularity]:
    """`popular_all` and `popular_7d` as of the split, and `popular_3d_live` before each request."""
    counted = log.select(log.clicked | log.rated)
    return {
        "popular_all": Popularity(counted, allowed, None, split_us),
        "popular_7d": Popularity(counted, allowed, 7 * DAY_US, split_us),
        "popular_3d_live": Popularity(counted, allowed, 3 * DAY_US, None),
    }


class Seen:
    """What each user had clicked or rated before a moment."""

    def __init__(self, log: EventLog) -> None:
        known = log.select(log.clicked | log.rated)
        order = np.argsort(known.user_row, kind="stable")
        self._items = known.item_row[order].astype(np.int64)
        self._times = known.time_us[order]
        self._starts = np.searchsorted(known.user_row[order], np.arange(log.users + 1))

    def before(self, user: int, time_us: int) -> Ints:
        """Item rows, oldest first."""
        part = slice(self._starts[user], self._starts[user + 1])
        count = int(np.searchsorted(self._times[part], time_us, side="left"))
        return self._items[part][:count]
