"""Reading features: one interface, whatever stands behind it.

Three readers exist: `packed` (our blobs in Redis, the fast one), `feast_hash` (the ordinary hash layout of Feast's
Redis store) and `point_in_time` (the offline sources as of a past moment, for training and evaluation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from recgraph.features.schema import Entity, ViewSchema


@dataclass(frozen=True)
class ListColumn:
    """A column of lists: row i is `values[offsets[i]:offsets[i + 1]]`.

    `values` is float32, int64, or object (of str); `offsets` is int64 of length rows + 1.
    """

    values: npt.NDArray[np.generic]
    offsets: npt.NDArray[np.int64]

    def row(self, index: int) -> npt.NDArray[np.generic]:
        """The list of one row (a view, not a copy)."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]


Column = npt.NDArray[np.generic] | ListColumn


@dataclass(frozen=True)
class ViewBlock:
    """The features of one view for `rows` entities, in the order in which they were asked for.

    Scalars are arrays of length `rows`: float32, float64, int64, or object (of str) for text. Where an entity is
    missing, its blob stale, or a value null, the column holds NaN, 0, "" or an empty list, and the masks say so:
    `missing` (nothing stored), `stale` (older than the view's ttl; its values are withheld), `nulls` (per field: the
    value is not there, for whichever of the three reasons). `event_time_us` is microseconds since the epoch, 0 where
    missing. The arrays may be shared between columns and blocks: do not write into them.
    """

    rows: int
    columns: Mapping[str, Column]
    missing: npt.NDArray[np.bool_]
    stale: npt.NDArray[np.bool_]
    event_time_us: npt.NDArray[np.int64]
    nulls: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)


class FeatureReader(Protocol):
    """Reads views of one entity kind for many entities at once: one round trip, never one per entity."""

    async def read(
        self, entity: Entity, views: Sequence[ViewSchema], ids: Sequence[str], *, now_s: float, timeout_s: float
    ) -> dict[str, ViewBlock]:
        """Blocks by the view's role (`item_stats`, not `item_stats_v1`).

        `now_s` is the data clock's time, for the ttl. Raises StageFailure("features_timeout", "features_unavailable",
        or "features_schema" where a view was stored with another schema) and never waits longer than `timeout_s`
        seconds.
        """
        ...
