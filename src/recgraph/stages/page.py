"""Filling a page: fixed places first, then greedily by relevance and diversity, within the category cap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recgraph.scenes import Boost, Cap, Freshness

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Shelf:
    """The candidates for a page, best first: columns of N rows.

    `category` is "" where it is not known; such an item is never capped. `embedding` is f32[N, D], unit length or zero
    where unknown, or None without a model.
    """

    relevance: Floats
    category: list[str]
    embedding: npt.NDArray[Any] | None = None

    def then(self, category: list[str]) -> Shelf:
        """With rows of these categories behind all others, in the order given; nothing else is known of them."""
        if not category:
            return self
        count, embedding = len(category), self.embedding
        if embedding is not None:
            embedding = np.concatenate([embedding, np.zeros((count, embedding.shape[1]), embedding.dtype)])
        return Shelf(np.concatenate([self.relevance, -1e6 - np.arange(count)]), self.category + category, embedding)


def relevance(
    score: Floats,
    items: list[str],
    category: list[str],
    creator: list[str],
    age_s: Floats,
    boosts: tuple[Boost, ...],
    freshness: Freshness,
) -> Floats:
    """Scores brought to [0, 1] over the candidates, plus the freshness boost, times the boosts; float64[N].

    `age_s` is seconds since publishing, NaN where unknown (no freshness boost then).
    """
    score = score / 2.0  # the difference of two finite scores may not be finite
    low, high = (float(score.min()), float(score.max())) if score.size else (0.0, 0.0)
    value = (score - low) / (high - low) if high > low else np.ones_like(score)
    if freshness.weight > 0.0:
        half_lives = np.maximum(age_s, 0.0) / (freshness.half_life_hours * 3600.0)
        value = value + freshness.weight * np.nan_to_num(np.exp2(-half_lives), nan=0.0)
    for boost in boosts:
        column, wanted = (
            (items, boost.item_id)
            if boost.item_id is not None
            else (category, boost.category)
            if boost.category is not None
            else (creator, boost.creator)
        )
        value = value * np.where([entry == wanted for entry in column], boost.factor, 1.0)
    return value


def fill(shelf: Shelf, size: int, *, fixed: Mapping[int, int], cap: Cap | None, mmr_lambda: float) -> list[int]:
    """Rows of the shelf for a page of `size`, place by place; shorter when there are fewer candidates.

    `fixed` is place (0-based) -> row; those rows stand there whatever the cap says. The others follow by maximal
    marginal relevance (Carbonell and Goldstein 1998): (1 - lambda) * relevance - lambda * (greatest cosine to what is
    on the page). Where the cap leaves nobody for a place, it gives way: a full page is worth more.
    """
    codes = _codes(shelf.category)
    page: list[int | None] = [fixed.get(place) for place in range(size)]
    shown = [0 if row is None else int(codes[row]) for row in page]
    free = np.ones(len(shelf.category), dtype=bool)
    value = (1.0 - mmr_lambda) * shelf.relevance
    nearest = np.zeros(len(free))
    for row in fixed.values():
        free[row] = False
        _move_nearer(nearest, shelf.embedding, row, mmr_lambda)
    last_fixed = max((place for place in fixed if place < size), default=-1)
    for place in range(size):
        if page[place] is not None or not free.any():
            continue
        allowed = free if cap is None else free & ~_capped(shown, place, codes, cap, ahead=place < last_fixed)
        if not allowed.any():
            allowed = free
        row = int(np.argmax(np.where(allowed, value - mmr_lambda * nearest, -np.inf)))
        page[place], shown[place] = row, int(codes[row])
        free[row] = False
        _move_nearer(nearest, shelf.embedding, row, mmr_lambda)
    return [row for row in page if row is not None]


def _codes(category: list[str]) -> npt.NDArray[np.int64]:
    """Categories as numbers from 1 on; 0 for unknown."""
    known: dict[str, int] = {"": 0}
    return np.array([known.setdefault(name, len(known)) for name in category], np.int64)


def _move_nearer(nearest: Floats, embedding: npt.NDArray[Any] | None, row: int, mmr_lambda: float) -> None:
    if embedding is not None and mmr_lambda > 0.0:
        np.maximum(nearest, embedding @ embedding[row], out=nearest)


def _capped(
    shown: list[int], place: int, codes: npt.NDArray[np.int64], cap: Cap, *, ahead: bool
) -> npt.NDArray[np.bool_]:
    """Which rows may not stand at `place`: their category is full in some window of places around it; bool[N].

    `shown` is the category at every place of the page, 0 for an empty one.
    """
    # Without fixed places further on, the window that ends here is the fullest one.
    first = max(0, place - cap.window + 1)
    starts = range(first, place + 1) if ahead else (first,)
    near = shown[first : place + cap.window]
    full = np.zeros(len(shown) + len(codes) + 1, dtype=bool)
    for code in set(near) - {0}:
        full[code] = near.count(code) >= cap.max and any(
            shown[start : start + cap.window].count(code) >= cap.max for start in starts
        )
    return full[codes]
