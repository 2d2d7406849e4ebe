"""A seeded synthetic world: sessions of impressions and clicks over some weeks.

A feed shows what is popular now, what fits the user's interest of the moment, and a little of everything. A click
depends on the match of taste and item, the interest of the session, quality, freshness, trends, the hour, the position
and chance: popularity and recency carry far, a model that knows the user farther.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recgraph.data.log import DAY_US, SECOND_US, EventLog, Floats, IntArray, sorted_log
from recgraph.data.population import CATEGORIES, Items, Users, make_centres, make_items, make_users, numbered
from recgraph.data.progress import Progress, silent
from recgraph.data.world import ITEMS, TIMESTAMP, USERS, Counts, Meta, World
from recgraph.errors import DataError

DEFAULT_END_S = 1_767_225_600
"""2026-01-01T00:00Z: fixed, so that a seed gives the same files on any day."""
MIN_ITEMS, MAX_ITEMS = 1_000, 10_000_000
_FEWEST_PER_DAY = 20
"""Impressions. Sessions are rounded per quarter of a day: with fewer, whole days go empty."""
_SLOTS = (0.12, 0.24, 0.29, 0.35)
"""Shares of a day's sessions in its four quarters (UTC)."""
_PAGE = 10
_SECONDS_PER_ITEM = 7
_INTEREST_DAYS = 2
_FLOOR = 0.03
"""What an old item is still shown, relative to its peak."""


@dataclass(frozen=True)
class WorldParameters:
    """Sizes and seed. `events` is about the number of impressions; `ctr` the share of them that is clicked."""

    items: int
    users: int
    events: int
    days: int
    seed: int
    end: int
    ctr: float = 0.12


def parameters(
    items: int = 20_000,
    users: int | None = None,
    events: int | None = None,
    *,
    days: int = 60,
    seed: int = 0,
    end: int = DEFAULT_END_S,
) -> WorldParameters:
    """Parameters with defaults that follow the number of items: a user per four items (at most 500,000) and 160
    impressions per user (at least 20 a day, at most 10 million). Raises DataError for sizes that make no world."""
    users = users if users is not None else min(500_000, max(250, items // 4))
    fewest = max(1_000, _FEWEST_PER_DAY * days)
    events = events if events is not None else min(10_000_000, max(fewest, 160 * users))
    limits = {
        "items": (items, MIN_ITEMS, MAX_ITEMS),
        "users": (users, 10, 10_000_000),
        "days": (days, 7, 365),
        "events": (events, fewest, 200_000_000),
        "seed": (seed, 0, 2**63 - 1),
        "end": (end, 400 * 86_400, 4_102_444_800),
    }
    for name, (value, low, high) in limits.items():
        if not low <= value <= high:
            raise DataError(f"{name} {value} is not between {low} and {high}")
    return WorldParameters(items, users, events, days, seed, end)


def make_world(size: WorldParameters, progress: Progress = silent) -> World:
    """The world of these parameters: the same on every call."""
    rng = np.random.default_rng(size.seed)
    progress("make users and items", 0.0)
    centres = make_centres(rng)
    items = make_items(rng, size.items, size.days, centres)
    users = make_users(rng, size.users, size.days, centres)
    progress("make users and items", 1.0)
    log = _Simulation(rng, size, items, users, centres).run(progress)
    meta = Meta(
        kind="synthetic",
        seed=size.seed,
        parameters=asdict(size),
        counts=Counts(size.users, size.items, len(log), int(log.clicked.sum())),
        start=float(size.end - size.days * 86_400),
        end=float(size.end),
    )
    return World(_user_table(users, size), _item_table(items, size), log, meta)


@dataclass(frozen=True)
class _Shown:
    """Impressions: parallel arrays. `day` is days since the start (float64), `interest` the session's category."""

    user: IntArray
    item: IntArray
    day: npt.NDArray[np.float64]
    place: IntArray
    interest: IntArray


class _Simulation:
    def __init__(
        self, rng: np.random.Generator, size: WorldParameters, items: Items, users: Users, centres: Floats
    ) -> None:
        self.rng, self.size, self.items, self.users, self.centres = rng, size, items, users, centres
        self.order = items.category_order()
        self.ends = np.cumsum(np.bincount(items.category, minlength=len(CATEGORIES)))
        self.published = items.published[self.order].astype(np.float32)
        self.lifetime = items.lifetime[self.order]
        self.reach = items.reach[self.order]
        self.burst_at = np.flatnonzero(np.isfinite(items.burst[self.order]))
        self.removed_at = np.flatnonzero(np.isfinite(items.removed[self.order]))
        periods = size.days // _INTEREST_DAYS + 1
        self.mood = rng.random((size.users, periods), dtype=np.float32)
        self.hours = rng.normal(0, 0.3, (len(CATEGORIES), 24)).astype(np.float32)

    def run(self, progress: Progress) -> EventLog:
        slots = self.size.days * len(_SLOTS)
        parts = []
        for slot in range(slots):
            parts.append(self._slot(slot))
            progress("simulate sessions", (slot + 1) / slots)
        columns = zip(*((p.user, p.item, p.day, p.place, p.interest) for p in parts), strict=True)
        shown = _Shown(*(np.concatenate(c) for c in columns))
        clicked = self._clicks(shown)
        start_us = (self.size.end - self.size.days * 86_400) * SECOND_US
        time_us = start_us + np.minimum((shown.day * DAY_US).astype(np.int64), self.size.days * DAY_US - SECOND_US)
        rating = np.full(len(clicked), np.nan, np.float32)
        log = sorted_log(shown.user, shown.item, time_us, clicked, rating, users=self.size.users, items=self.size.items)
        return log.select(_not_clicked_before(log))

    def _slot(self, slot: int) -> _Shown:
        """All sessions that begin in one quarter of a day."""
        begin = slot / len(_SLOTS)
        sessions = round(self.size.events / _PAGE / self.size.days * _SLOTS[slot % len(_SLOTS)])
        user = self._visitors(begin, sessions)
        start = begin + self.rng.random(sessions) * (1 / len(_SLOTS) - 0.002)
        interest = self._interest(user, begin)
        item = self._feed(begin, interest)
        place = np.tile(np.arange(_PAGE), sessions)
        shown = _Shown(
            np.repeat(user, _PAGE),
            item,
            np.repeat(start, _PAGE) + place * (_SECONDS_PER_ITEM / 86_400),
            place,
            np.repeat(interest, _PAGE),
        )
        return _without_repeats(shown)

    def _visitors(self, begin: float, sessions: int) -> IntArray:
        """Users who have joined, by their activity."""
        joined = int(np.searchsorted(self.users.joined, begin))
        return _draw(self.rng, np.cumsum(self.users.activity[:joined], dtype=np.float64), sessions)

    def _interest(self, user: IntArray, begin: float) -> IntArray:
        """The category on a user's mind; it stays for two days."""
        period = int(begin) // _INTEREST_DAYS
        taste = self.users.taste(user, np.full(len(user), begin / self.size.days))
        weight = np.exp(5 * (taste @ self.centres.T)).cumsum(axis=1)
        point = self.mood[user, period] * weight[:, -1]
        category: IntArray = np.minimum((weight < point[:, None]).sum(axis=1), len(CATEGORIES) - 1)
        return category

    def _feed(self, begin: float, interest: IntArray) -> IntArray:
        """Ten items per session: half popular now, four in ten from the category of interest, the rest at random."""
        weight = self._weights(begin)
        total = np.cumsum(weight, dtype=np.float64)
        present = np.flatnonzero(weight)
        count = len(interest) * _PAGE
        kind = self.rng.random(count)
        place = _draw(self.rng, total, count)
        ends = np.concatenate([[0.0], total[self.ends - 1]])
        wanted = np.repeat(interest, _PAGE)
        low, high = ends[wanted], ends[wanted + 1]
        point = low + self.rng.random(count) * (high - low)
        special = np.minimum(np.searchsorted(total, point, side="right"), self.ends[wanted] - 1)
        fits = (kind < 0.4) & (high > low) & (weight[special] > 0)
        place = np.where(fits, special, place)
        anything = present[self.rng.integers(0, len(present), count)]
        return self.order[np.where(kind > 0.9, anything, place)]

    def _weights(self, begin: float) -> Floats:
        """How much each item (by category order) is shown now; 0 for what is not there yet or no more."""
        age = np.float32(begin) - self.published
        weight: Floats = (np.exp(np.maximum(age, 0) / -self.lifetime) + np.float32(_FLOOR)) * self.reach
        since = np.float32(begin) - self.items.burst[self.order[self.burst_at]]
        weight[self.burst_at] += np.where(since > 0, 3 * self.reach[self.burst_at] * np.exp(-np.maximum(since, 0)), 0)
        weight[self.removed_at[self.items.removed[self.order[self.removed_at]] <= begin]] = 0
        weight[age <= 1e-4] = 0  # float32 knows moments to some seconds only
        return weight

    def _clicks(self, shown: _Shown) -> npt.NDArray[np.bool_]:
        logit = np.empty(len(shown.user), np.float32)
        for begin in range(0, len(logit), 1 << 20):
            part = slice(begin, begin + (1 << 20))
            logit[part] = self._logit(_Shown(*(c[part] for c in vars(shown).values())))
        logit += 0.6 * self.rng.standard_normal(len(logit), dtype=np.float32)
        chance = 1 / (1 + np.exp(-(logit + _offset(logit, self.size.ctr))))
        clicked: npt.NDArray[np.bool_] = self.rng.random(len(logit), dtype=np.float32) < chance
        return clicked

    def _logit(self, shown: _Shown) -> Floats:
        items, users = self.items, self.users
        vector = items.vector[shown.item]
        match = (users.taste(shown.user, shown.day / self.size.days) * vector).sum(axis=1)
        interest = (self.centres[shown.interest] * vector).sum(axis=1)
        age = (shown.day - items.published[shown.item]).astype(np.float32)
        since = shown.day - items.burst[shown.item]
        trend = np.where(since > 0, np.exp(-np.maximum(since, 0) / 2), 0)
        hour = (shown.day * 24).astype(np.int64) % 24
        logit: Floats = 2.8 * match + 1.2 * interest + 0.8 * items.quality[shown.item] + 0.9 * np.exp(age / -3)
        logit += 0.8 * trend - 0.07 * shown.place + users.bias[shown.user]
        logit += self.hours[items.category[shown.item], hour]
        return logit.astype(np.float32)


def _draw(rng: np.random.Generator, total: npt.NDArray[np.float64], count: int) -> IntArray:
    """Indices by weight, given running totals."""
    found = np.searchsorted(total, rng.random(count) * total[-1], side="right")
    inside: IntArray = np.minimum(found, len(total) - 1)
    return inside


def _without_repeats(shown: _Shown) -> _Shown:
    """Each item once per session; sessions are pages of ten in a row."""
    session = np.arange(len(shown.item)) // _PAGE
    order = np.lexsort((shown.item, session))
    keep = np.ones(len(order), np.bool_)
    keep[order[1:]] = (shown.item[order][1:] != shown.item[order][:-1]) | (session[order][1:] != session[order][:-1])
    return _Shown(*(column[keep] for column in vars(shown).values()))


def _not_clicked_before(log: EventLog) -> npt.NDArray[np.bool_]:
    """False for what a user is shown again after having clicked it: a feed does not do that."""
    order = np.lexsort((log.item_row, log.user_row))
    user, item, clicked = log.user_row[order], log.item_row[order], log.clicked[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (user[1:] != user[:-1]) | (item[1:] != item[:-1])
    before: IntArray = np.cumsum(clicked) - clicked
    group = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    keep = np.empty(len(order), np.bool_)
    keep[order] = before == before[group]
    return keep


def _offset(logit: Floats, ctr: float) -> float:
    """What to add to all logits so that the mean chance is `ctr` (by bisection, on every n-th event)."""
    sample = logit[:: max(1, len(logit) // 200_000)].astype(np.float64)
    low, high = -30.0, 30.0
    for _ in range(50):
        middle = (low + high) / 2
        mean = float((1 / (1 + np.exp(-(sample + middle)))).mean())
        low, high = (middle, high) if mean < ctr else (low, middle)
    return middle


def _moments(days: npt.NDArray[np.float64], size: WorldParameters) -> pa.Array:
    start_us = (size.end - size.days * 86_400) * SECOND_US
    seconds = np.floor(days * 86_400).astype(np.int64)
    return pa.array(start_us + seconds * SECOND_US).cast(TIMESTAMP)


def _user_table(users: Users, size: WorldParameters) -> pa.Table:
    return pa.table([numbered("u", size.users), _moments(users.joined, size)], schema=USERS)


def _item_table(items: Items, size: WorldParameters) -> pa.Table:
    ids = numbered("i", size.items)
    names = pa.array(CATEGORIES)
    category = names.take(pa.array(items.category))
    two = np.stack([items.category, items.second], axis=1)
    present = two >= 0
    offsets = np.zeros(len(two) + 1, np.int32)
    np.cumsum(present.sum(axis=1), out=offsets[1:])
    categories = pa.ListArray.from_arrays(pa.array(offsets), names.take(pa.array(two[present])))
    title = pc.binary_join_element_wise(pc.utf8_capitalize(category), pc.utf8_slice_codeunits(ids, 2), " ")
    creator = numbered("c", items.creators).take(pa.array(items.creator))
    published = _moments(items.published, size)
    return pa.table([ids, title, category, categories, creator, published, pa.array(items.available)], schema=ITEMS)
