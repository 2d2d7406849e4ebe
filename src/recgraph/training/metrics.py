"""How good lists are, as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def ndcg(ranked: npt.NDArray[np.integer], positives: Ints, k: int) -> float:
    """NDCG@k with binary gains: the ideal list has min(k, number of positives) hits at its head."""
    hits = np.isin(ranked[:k], positives)
    discount = 1.0 / np.log2(np.arange(2, k + 2))
    ideal = float(discount[: min(k, len(positives))].sum())
    return float(discount[: len(hits)][hits].sum()) / ideal if ideal else 0.0


def recall(ranked: npt.NDArray[np.integer], positives: Ints, k: int) -> float:
    """Share of the positives among the first k."""
    return float(np.isin(positives, ranked[:k]).mean()) if len(positives) else 0.0


def auc(scores: npt.NDArray[np.floating], labels: npt.NDArray[np.bool_]) -> float:
    """Chance that a positive scores above a negative, ties counting half; NaN where one of both is missing."""
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]
    return float((ranks[labels].sum() - positives * (positives + 1) / 2.0) / (positives * negatives))


def gauc(scores: Sequence[npt.NDArray[np.floating]], labels: Sequence[npt.NDArray[np.bool_]]) -> float:
    """Mean over requests of each one's AUC, of those that have both positives and negatives."""
    each = np.array([auc(score, label) for score, label in zip(scores, labels, strict=True)])
    known = each[~np.isnan(each)]
    return float(known.mean()) if len(known) else float("nan")


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def paired_bootstrap(left: Floats, right: Floats, *, seed: int, resamples: int = 2000) -> Interval:
    """Mean of left - right over requests, with the percentile bootstrap over requests (Efron, 1979)."""
    difference = left - right
    rng = np.random.default_rng(seed)
    count = len(difference)
    means = np.array([difference[rng.integers(0, count, count)].mean() for _ in range(resamples)])
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(float(difference.mean()), float(low), float(high))
