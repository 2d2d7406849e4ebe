"""How often items were clicked by the same users: a sparse table in the bundle, looked up inside the model.

It is built from the clicks before a moment, so that training can use tables of the past: a table that contains the very
click to be predicted would give the answer away.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from recgraph.errors import BundleError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

PAIR_FEATURES = (
    "count_log",
    "cosine_sum",
    "cosine_max",
    "cosine_recent",
    "cosine_newest",
    "conditional_sum",
    "conditional_max",
    "conditional_decayed",
    "lift_log",
)
_SHRINK = 10.0
"""Added to counts of clicks, so that rare items do not seem related by one accident."""
_FILES = ("offsets", "neighbours", "counts", "clicks")


@dataclass(frozen=True)
class PairTable:
    """Row i's neighbours are `neighbours[offsets[i]:offsets[i + 1]]` with their `counts` of users who clicked both.

    `clicks` is the number of clicks by item row. Thread-safe, memory-mapped when loaded.
    """

    offsets: Ints
    neighbours: npt.NDArray[np.int32]
    counts: Floats
    clicks: Floats

    @classmethod
    def build(
        cls, users: npt.NDArray[np.integer], items: npt.NDArray[np.integer], rows: int, *, window: int, keep: int
    ) -> PairTable:
        """Count pairs among each user's clicks that are at most `window` clicks apart.

        `users` and `items` are rows, one per click, by time. The `keep` most frequent neighbours of an item are kept.
        """
        order = np.argsort(users, kind="stable")
        user, item = users[order], items[order].astype(np.int64)
        found: list[Ints] = []
        for lag in range(1, min(window, len(item) - 1) + 1):
            same = (user[lag:] == user[:-lag]) & (item[lag:] != item[:-lag])
            left, right = item[lag:][same], item[:-lag][same]
            found.append(np.minimum(left, right) * rows + np.maximum(left, right))
        codes, counts = np.unique(np.concatenate([*found, np.empty(0, np.int64)]), return_counts=True)
        left, right = codes // rows, codes % rows
        return cls._from_pairs(
            np.concatenate([left, right]),
            np.concatenate([right, left]),
            np.concatenate([counts, counts]),
            np.bincount(item, minlength=rows),
            keep,
        )

    @classmethod
    def _from_pairs(cls, left: Ints, right: Ints, counts: Ints, clicks: Ints, keep: int) -> PairTable:
        rows = len(clicks)
        order = np.lexsort((right, -counts, left))
        left, right, counts = left[order], right[order], counts[order]
        starts = np.searchsorted(left, np.arange(rows))
        kept = np.arange(len(left)) - starts[left] < keep
        left, right, counts = left[kept], right[kept], counts[kept]
        offsets = np.searchsorted(left, np.arange(rows + 1)).astype(np.int64)
        return cls(offsets, right.astype(np.int32), counts.astype(np.float32), clicks.astype(np.float32))

    def save(self, folder: Path) -> None:
        """Write the arrays as .npy files."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def load(cls, folder: Path) -> PairTable:
        """Map the files of a folder. Raises BundleError when one is missing or they do not fit each other."""
        try:
            arrays = [np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in _FILES]
        except (OSError, ValueError) as error:
            raise BundleError(f"{folder}: not a table of pairs: {error}") from error
        table = cls(*arrays)
        sizes = (len(table.clicks) + 1, len(table.neighbours))
        if sizes != (len(table.offsets), len(table.counts)) or table.offsets[-1] != sizes[1]:
            raise BundleError(f"{folder}: the arrays of this table of pairs do not belong together")
        return table

    @cached_property
    def _all_clicks(self) -> float:
        return float(self.clicks.sum())

    def lookup(self, candidates: npt.NDArray[np.integer], clicks: npt.NDArray[np.integer]) -> Floats:
        """Counts of every candidate with every click, float32[N, L]; rows of -1 have none."""
        unique, inverse = np.unique(candidates, return_inverse=True)
        found = np.zeros((len(unique), len(clicks)), np.float32)
        known = np.flatnonzero(clicks >= 0)
        starts = self.offsets[clicks[known]]
        sizes = self.offsets[clicks[known] + 1] - starts
        total = int(sizes.sum())
        if total == 0 or len(unique) == 0:
            return found[inverse]
        firsts = np.cumsum(sizes) - sizes
        where = np.repeat(starts - firsts, sizes) + np.arange(total)
        neighbour = self.neighbours[where]
        place = np.minimum(np.searchsorted(unique, neighbour), len(unique) - 1)
        hit = unique[place] == neighbour
        found[place[hit], np.repeat(known, sizes)[hit]] = self.counts[where[hit]]
        return found[inverse]

    def features(self, candidates: npt.NDArray[np.integer], clicks: npt.NDArray[np.integer]) -> tuple[Floats, Floats]:
        """PAIR_FEATURES float32[N, P], and the cosine of every candidate with every click float32[N, L].

        `clicks` are newest first. All zero for a user without known clicks.
        """
        counts = self.lookup(candidates, clicks)
        values = np.zeros((len(candidates), len(PAIR_FEATURES)), np.float32)
        if not (counts.size and len(self.clicks)):
            return values, counts
        own = np.where(candidates >= 0, self.clicks[candidates], 0).astype(np.float32)[:, None]
        other = np.where(clicks >= 0, self.clicks[clicks], 0).astype(np.float32)[None, :]
        cosine = counts / np.sqrt((own + _SHRINK) * (other + _SHRINK))
        conditional = counts / (other + _SHRINK)
        root = np.sqrt(len(clicks))
        decay = 1.0 / np.sqrt(1.0 + np.arange(len(clicks)))
        expected = 3.0 * (own * other).sum(axis=1) / max(self._all_clicks, 1.0)
        together = counts.sum(axis=1)
        columns = (
            np.log1p(together),
            cosine.sum(axis=1) / root,
            cosine.max(axis=1),
            cosine[:, :5].sum(axis=1),
            cosine[:, 0],
            conditional.sum(axis=1) / root,
            conditional.max(axis=1),
            conditional @ (decay / decay.sum()),
            np.log((together + 1.0) / (expected + 1.0)),
        )
        for index, column in enumerate(columns):
            values[:, index] = column
        return values, cosine.astype(np.float32)
