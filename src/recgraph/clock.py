"""The clock of the data.

Deadlines use the wall clock. What depends on the age of data (freshness, item age, hour of day) uses this
clock instead, so that a data set of the past (a seeded world, MovieTweetings of 2013) is served as if its last
event had just happened. In production the offset is 0 and both are the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class DataClock:
    """Wall clock plus a fixed offset in seconds (setting `RECGRAPH_CLOCK_OFFSET_S`)."""

    offset_s: float = 0.0

    def now_s(self) -> float:
        """Seconds since the epoch, in the time of the data."""
        return time.time() + self.offset_s
