"""The latent side of the synthetic world: what items are like and what users want."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recgraph.data.log import BoolArray, Floats, Rows

CATEGORIES = (
    "animals", "art", "beauty", "books", "business", "cars", "comedy", "cooking", "dance", "diy", "education", "family",
    "fashion", "films", "fitness", "gaming", "health", "history", "music", "news", "science", "sport", "tech", "travel",
)  # fmt: skip
DIMENSIONS = 16
_LIKENESS = 0.75
"""How much of an item's vector is its category, the rest being its own."""
_ARCHIVE_SHARE, _ARCHIVE_DAYS = 0.55, 400.0
_UNAVAILABLE_SHARE = 0.03
_BURST_SHARE = 0.03


def _unit(vectors: Floats) -> Floats:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: Floats = (vectors / np.maximum(norms, 1e-9)).astype(np.float32)
    return unit


@dataclass(frozen=True)
class Items:
    """Items in order of their publish times. Times are in days since the start of the events (float32)."""

    published: npt.NDArray[np.float64]
    category: npt.NDArray[np.int8]
    second: npt.NDArray[np.int8]
    """Second category, -1 for none."""
    creator: Rows
    creators: int
    vector: Floats
    quality: Floats
    reach: Floats
    """How much an item is shown at its peak: the long tail."""
    lifetime: Floats
    """Days after which what is shown of an item has fallen to 1/e."""
    removed: Floats
    """When an unavailable item was taken away; infinite for the others."""
    burst: Floats
    """When an item trends a second time; infinite for most."""

    @property
    def available(self) -> BoolArray:
        """Whether an item may still be shown at the end."""
        return np.isinf(self.removed)

    def category_order(self) -> npt.NDArray[np.int64]:
        """Rows grouped by category, by publish time within one."""
        return np.argsort(self.category, kind="stable")


@dataclass(frozen=True)
class Users:
    """Users in order of sign-up. Tastes move from `early` to `late` over the days of the events."""

    joined: npt.NDArray[np.float64]
    early: Floats
    late: Floats
    activity: Floats
    bias: Floats
    """Added to the logit of every click of a user."""

    def taste(self, rows: npt.NDArray[np.integer], share: npt.NDArray[np.floating]) -> Floats:
        """Taste vectors (len(rows) x 16) at the given share (0 to 1) of the time."""
        weight = share.astype(np.float32)[:, None]
        return _unit(self.early[rows] * (1 - weight) + self.late[rows] * weight)


def make_centres(rng: np.random.Generator) -> Floats:
    """A direction per category (24 x 16)."""
    return _unit(rng.standard_normal((len(CATEGORIES), DIMENSIONS), dtype=np.float32))


def make_items(rng: np.random.Generator, count: int, days: float, centres: Floats) -> Items:
    """`count` items: a bit more than half older than the events, the others appearing while they run."""
    published = np.sort(
        np.where(
            rng.random(count) < _ARCHIVE_SHARE, -rng.exponential(_ARCHIVE_DAYS / 3, count), rng.random(count) * days
        )
    )
    creators = max(10, count // 40)
    share = (np.arange(creators) + 5.0) ** -0.9
    creator = rng.choice(creators, count, p=share / share.sum()).astype(np.int32)
    main = _zipf_choice(rng, creators)
    creator_quality = rng.standard_normal(creators, dtype=np.float32)
    category = np.where(rng.random(count) < 0.8, main[creator], _zipf_choice(rng, count)).astype(np.int8)
    second = np.where(rng.random(count) < 0.4, rng.integers(0, len(CATEGORIES), count), -1).astype(np.int8)
    second[second == category] = -1
    quality = 0.5 * creator_quality[creator] + 0.87 * rng.standard_normal(count, dtype=np.float32)
    reach = np.exp(0.5 * quality + 1.1 * rng.standard_normal(count, dtype=np.float32))
    lifetime = np.exp(1.4 + 0.8 * rng.standard_normal(count, dtype=np.float32))
    return Items(
        published=published,
        category=category,
        second=second,
        creator=creator,
        creators=creators,
        vector=_item_vectors(rng, category, second, centres),
        quality=quality.astype(np.float32),
        reach=reach.astype(np.float32),
        lifetime=lifetime.astype(np.float32),
        removed=_some_time(rng, _UNAVAILABLE_SHARE, published, days),
        burst=_some_time(rng, _BURST_SHARE, published, days),
    )


def make_users(rng: np.random.Generator, count: int, days: float, centres: Floats) -> Users:
    """`count` users, seven in ten there before the events start."""
    joined = np.sort(
        np.where(rng.random(count) < 0.7, -rng.exponential(180.0, count) - 0.01, rng.random(count) * days * 0.95)
    )
    joined[0] = min(joined[0], -1.0)  # someone must be there for the first session
    early = _tastes(rng, count, centres)
    drift = rng.random((count, 1), dtype=np.float32)
    late = _unit((1 - drift) * early + drift * _tastes(rng, count, centres))
    activity = np.exp(0.9 * rng.standard_normal(count, dtype=np.float32))
    return Users(joined, early, late, activity, 0.4 * rng.standard_normal(count, dtype=np.float32))


def _zipf_choice(rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
    share = (np.arange(len(CATEGORIES)) + 3.0) ** -0.8
    return rng.permutation(len(CATEGORIES))[rng.choice(len(CATEGORIES), count, p=share / share.sum())]


def _item_vectors(
    rng: np.random.Generator, category: npt.NDArray[np.int8], second: npt.NDArray[np.int8], centres: Floats
) -> Floats:
    own = rng.standard_normal((len(category), DIMENSIONS), dtype=np.float32) / np.float32(np.sqrt(DIMENSIONS))
    mixed = centres[category] + np.where(second >= 0, 0.5, 0).astype(np.float32)[:, None] * centres[second]
    return _unit(_LIKENESS * _unit(mixed) + (1 - _LIKENESS) * 2 * own)


def _tastes(rng: np.random.Generator, count: int, centres: Floats) -> Floats:
    """Two or three categories with weights, and something of one's own."""
    taste = 0.25 * rng.standard_normal((count, DIMENSIONS), dtype=np.float32)
    for weight in (1.0, 0.7, 0.4):
        strength = weight * (0.5 + rng.random((count, 1), dtype=np.float32))
        taste += strength * centres[rng.integers(0, len(CATEGORIES), count)]
    return _unit(taste)


def _some_time(
    rng: np.random.Generator, share: float, published: npt.NDArray[np.float64], days: float
) -> npt.NDArray[np.float32]:
    """For a share of the items a moment after their publication, infinity for the others."""
    begin = np.maximum(published, 0)
    moment = begin + rng.random(len(published)) * (days - begin)
    return np.where(rng.random(len(published)) < share, moment, np.inf).astype(np.float32)


def numbered(prefix: str, count: int) -> pa.Array:
    """Ids such as `i_00042`, of one width, so that their order as text is the order of their numbers."""
    width = len(str(max(count - 1, 0)))
    return pc.binary_join_element_wise(
        prefix, pc.utf8_lpad(pa.array(np.arange(count)).cast(pa.string()), width, "0"), "_"
    )
