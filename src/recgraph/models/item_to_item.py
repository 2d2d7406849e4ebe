"""Item to item: which items are clicked by the same users at about the same time.

Neighbours lie in compressed rows (`offsets` int64[N + 1], `neighbours` int32, `scores` float32, best first), and are
memory-mapped in serving.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from recgraph.models.index import best

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

RECENCY_DAYS = 7.0
"""Half-life of a click's weight, in days."""
_RANK_DECAY = 0.95


@dataclass(frozen=True)
class ItemToItem:
    """Neighbours of items by row, with scores between 0 and 1."""

    offsets: Ints
    neighbours: npt.NDArray[np.int32]
    scores: Floats

    @classmethod
    def load(cls, folder: Path) -> ItemToItem:
        """Map the three arrays of a folder."""
        arrays = (np.load(folder / f"i2i_{name}.npy", mmap_mode="r") for name in ("offsets", "neighbours", "scores"))
        return cls(*(np.asarray(array) for array in arrays))

    def save(self, folder: Path) -> None:
        """Write the three arrays."""
        np.save(folder / "i2i_offsets.npy", self.offsets)
        np.save(folder / "i2i_neighbours.npy", self.neighbours)
        np.save(folder / "i2i_scores.npy", self.scores)

    def recall(self, history: Ints, ages_s: Floats, k: int) -> tuple[Ints, Floats]:
        """The best k neighbours of a user's clicks: rows int64[<=k] and scores, best first.

        `history` holds item rows newest first, -1 for unknown ones. A neighbour's score is the sum over the clicks
        that lead to it, each weighted by its age and its place. Clicked items themselves are left out.
        """
        found, total = _summed(*self._spread(history, click_weights(ages_s)))
        if not len(found):
            return found, total
        place = np.minimum(np.searchsorted(found, history), len(found) - 1)
        total[place[found[place] == history]] = -1.0
        top = best(total, k)
        top = top[total[top] >= 0.0]
        return found[top], total[top]

    def similarity(self, history: Ints, ages_s: Floats, candidates: Ints) -> Floats:
        """How near candidates are to a user's clicks: f32[N, 2], the weighted sum over the clicks and the best one.

        Rows may be -1 (unknown) on both sides and candidates may repeat.
        """
        out = np.zeros((len(candidates), 2), np.float32)
        rows, values = self._spread(history, click_weights(ages_s))
        unique, where = np.unique(candidates, return_inverse=True)
        if not len(rows) or not len(unique):
            return out
        place = np.minimum(np.searchsorted(unique, rows), len(unique) - 1)
        hit = unique[place] == rows
        place, values = place[hit], values[hit]
        best = np.zeros(len(unique), np.float32)
        np.maximum.at(best, place, values)
        out[:, 0] = np.bincount(place, weights=values, minlength=len(unique))[where]
        out[:, 1] = best[where]
        return out

    def _spread(self, history: Ints, weights: Floats) -> tuple[npt.NDArray[np.int32], Floats]:
        """Neighbours of every click, with their weighted scores."""
        known = history >= 0
        rows, weights = history[known], weights[known]
        begin = self.offsets[rows]
        lengths = self.offsets[rows + 1] - begin
        ends = np.cumsum(lengths)
        within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
        positions = np.repeat(begin, lengths) + within
        return self.neighbours[positions], self.scores[positions] * np.repeat(weights, lengths)


def _summed(rows: npt.NDArray[np.int32], values: Floats) -> tuple[Ints, Floats]:
    """The different rows in their order, int64, and the sum of each one's values."""
    # Sorted together with their places, which is faster than a stable sort of places.
    bits = len(rows).bit_length()
    keys = np.sort(rows.astype(np.int64) << bits | np.arange(len(rows)))
    ordered = keys >> bits
    firsts = np.flatnonzero(np.diff(ordered, prepend=-1))
    sums = np.add.reduceat(values[keys & (1 << bits) - 1], firsts, dtype=np.float64) if len(rows) else values
    return ordered[firsts], sums.astype(np.float32)


def click_weights(ages_s: Floats) -> Floats:
    """Weights of clicks, newest first: halved by every RECENCY_DAYS (down to a quarter) and less by place."""
    decay = np.maximum(np.exp2(-ages_s / (RECENCY_DAYS * 86_400)), 0.25)
    weights: Floats = (decay * _RANK_DECAY ** np.arange(len(ages_s))).astype(np.float32)
    return weights


def build_item_to_item(
    user_row: npt.NDArray[np.integer],
    item_row: npt.NDArray[np.integer],
    time_us: Ints,
    items: int,
    *,
    window_days: float = 30.0,
    reach: int = 20,
    half_life_days: float = 14.0,
    shrinkage: float = 30.0,
    neighbours: int = 100,
) -> ItemToItem:
    """Neighbours from clicks (three arrays of one length, any order).

    Two clicks of a user count together when they lie within `window_days` and at most `reach` clicks apart; newer
    pairs count more. Scores are cosines, damped by `shrinkage` so that one common user does not make twins:
    w(i,j) / (sqrt(w(i) w(j)) + shrinkage).
    """
    order = np.lexsort((time_us, user_row))
    user, item, time = user_row[order], item_row[order].astype(np.int64), time_us[order]
    newest = int(time.max()) if len(time) else 0
    weight = np.exp2((time - newest) / (half_life_days * 86_400e6))
    keys, values = _pairs(user, item, time, weight, items, window_days, reach)
    left, right = np.divmod(keys, items)
    mass = np.bincount(item, weights=weight, minlength=items)
    score = np.minimum(values / (np.sqrt(mass[left] * mass[right]) + shrinkage), 1.0).astype(np.float32)
    return _compress(left, right, score, items, neighbours)


def _pairs(
    user: npt.NDArray[np.integer],
    item: Ints,
    time: Ints,
    weight: npt.NDArray[np.float64],
    items: int,
    window_days: float,
    reach: int,
) -> tuple[Ints, npt.NDArray[np.float64]]:
    """Ordered pairs as left * items + right, and their summed weights; both directions."""
    keys: Ints = np.zeros(0, np.int64)
    values: npt.NDArray[np.float64] = np.zeros(0, np.float64)
    for step in range(1, reach + 1):
        near = (user[step:] == user[:-step]) & (time[step:] - time[:-step] <= window_days * 86_400e6)
        near &= item[step:] != item[:-step]
        a, b = item[:-step][near], item[step:][near]
        value = weight[step:][near] / np.log2(1 + step)
        keys, where = np.unique(np.concatenate([keys, a * items + b, b * items + a]), return_inverse=True)
        sums = np.bincount(where, weights=np.concatenate([values, value, value]), minlength=len(keys))
        values = sums.astype(np.float64)
    return keys, values


def _compress(left: Ints, right: Ints, score: Floats, items: int, limit: int) -> ItemToItem:
    order = np.lexsort((right, -score, left))
    left, right, score = left[order], right[order], score[order]
    begin = np.searchsorted(left, np.arange(items))
    keep = np.arange(len(left)) - begin[left] < limit
    offsets = np.zeros(items + 1, np.int64)
    np.cumsum(np.bincount(left[keep], minlength=items), out=offsets[1:])
    return ItemToItem(offsets, right[keep].astype(np.int32), score[keep])
