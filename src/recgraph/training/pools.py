"""The hot and the fresh pool, now or at any past moment.

A pool at a moment counts only events strictly before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recgraph.bundle import Pools
from recgraph.data.log import DAY_US, EventLog
from recgraph.data.world import World

Ints = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]

POOL_SIZE = 1000


@dataclass(frozen=True)
class HotPool:
    """Items by their clicks in the last days.

    With a half-life, a click counts less the older it is; without, clicks are counted plainly (live popularity).
    `allowed` bool[items] says which items may be in a pool.
    """

    log: EventLog
    allowed: npt.NDArray[np.bool_]
    window_us: int = 3 * DAY_US
    half_life_us: float | None = 1.5 * DAY_US

    @classmethod
    def of(cls, world: World, *, window_us: int = 3 * DAY_US, half_life_us: float | None = 1.5 * DAY_US) -> HotPool:
        """The pool of a data set's clicks, without the items that are not available."""
        return cls(world.log.select(world.log.clicked), world.available, window_us, half_life_us)

    def scores_at(self, time_us: int) -> Scores:
        """The score of every item at a moment, float64[items], 0 for what has no click in the window."""
        part = self.log.between(time_us - self.window_us, time_us)
        weight = None
        if self.half_life_us is not None:
            weight = np.exp2((part.time_us - time_us) / self.half_life_us)
        scores = np.bincount(part.item_row, weights=weight, minlength=part.items).astype(np.float64)
        return np.where(self.allowed, scores, 0.0)

    def at(self, time_us: int, k: int = POOL_SIZE) -> tuple[Ints, Scores]:
        """The best k items at a moment (Unix microseconds): rows and scores, best first, equal ones by row."""
        return best_rows(self.scores_at(time_us), k)


@dataclass(frozen=True)
class FreshPool:
    """Items by newness, with some evidence for them: (1 + clicks of the last days) * 2^(-age / half-life).

    An item is born when it is published or first shown. What was shown often without a click is left out; what was
    never shown stays in, or it would never be.
    """

    log: EventLog
    born_us: Ints
    allowed: npt.NDArray[np.bool_]
    window_us: int = 7 * DAY_US
    half_life_us: float = 5.0 * DAY_US
    patience: int = 20
    """Impressions within the window that may pass without a click."""

    @classmethod
    def of(cls, world: World) -> FreshPool:
        """The pool of a data set, without the items that are not available."""
        born = world.publish_us.copy()
        np.minimum.at(born, world.log.item_row, world.log.time_us)
        return cls(world.log, born, world.available)

    def at(self, time_us: int, k: int = POOL_SIZE) -> tuple[Ints, Scores]:
        """The best k items at a moment: rows and scores, best first.

        Scores are log2 of the formula, so that old items do not all become 0.
        """
        part = self.log.between(time_us - self.window_us, time_us)
        shown = np.bincount(part.item_row, minlength=part.items)
        clicks = np.bincount(part.item_row[part.clicked], minlength=part.items)
        scores = np.log2(1.0 + clicks) - (time_us - self.born_us) / self.half_life_us
        there = self.allowed & (self.born_us < time_us) & ((clicks > 0) | (shown < self.patience))
        return best_rows(np.where(there, scores, -np.inf), k, floor=-np.inf)


def best_rows(scores: Scores, k: int, floor: float = 0.0) -> tuple[Ints, Scores]:
    """Rows of the k highest scores above `floor`, best first, equal ones by row."""
    rows = np.flatnonzero(scores > floor)
    if len(rows) > k:
        values = scores[rows]
        # Everything that ties with the k-th stays for the stable sort, so that the choice among equals is by row.
        rows = rows[values >= np.partition(values, len(values) - k)[len(values) - k]]
    order = np.argsort(-scores[rows], kind="stable")[:k]
    return rows[order].astype(np.int64), scores[rows[order]]


def pool_snapshot(world: World, scenes: Sequence[str], time_us: int | None = None, k: int = POOL_SIZE) -> Pools:
    """Pools of every scene just after a moment (the end of the events where none is given), as pools.json holds them.

    Events do not say where they happened, so all scenes have the same pools. The same lists fill the cache Redis.
    """
    moment = (world.end_us if time_us is None else time_us) + 1
    ids = world.items["item_id"]
    pools = {}
    for name, (rows, scores) in (
        ("hot", HotPool.of(world).at(moment, k)),
        ("fresh", FreshPool.of(world).at(moment, k)),
    ):
        chosen = ids.take(rows).to_pylist()
        pools[name] = list(zip(chosen, np.round(scores, 6).tolist(), strict=True))
    return {scene: pools for scene in scenes}
