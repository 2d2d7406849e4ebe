"""Training of recall: the towers, the index over the item vectors, and item-to-item neighbours.

Sampled softmax over in-batch and uniform negatives with the log-Q correction (Yi et al., RecSys 2019; mixed negatives:
Yang et al., WWW 2020): without it the positives of a batch, drawn by popularity, would teach that popular is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from recgraph.bundle import IdMap
from recgraph.data.log import DAY_US, SECOND_US, EventLog
from recgraph.data.progress import Progress, silent
from recgraph.data.sequences import UserSequences
from recgraph.data.stats import UserProfiles
from recgraph.data.world import World
from recgraph.errors import DataError
from recgraph.features.assembly import MAX_CLICKS, USER_FEATURES
from recgraph.features.reader import ListColumn
from recgraph.models.index import ItemIndex
from recgraph.models.item_to_item import ItemToItem, build_item_to_item
from recgraph.models.recall import BASES, VECTORS, RecallModel
from recgraph.models.towers import ItemContent, Towers, TowerSizes
from recgraph.training.fit import Above0, AtLeast1, reproducible

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class RetrievalConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the training of recall can be told; the defaults suit worlds of a thousand to a million items."""

    epochs: AtLeast1 = 6
    batch: AtLeast1 = 512
    uniform_negatives: AtLeast1 = 1024
    temperature: Above0 = 0.1
    learning_rate: Above0 = 3e-3
    embedding: AtLeast1 = 32
    dim: AtLeast1 = 64
    max_examples: AtLeast1 = 200_000
    """The newest clicks are taken."""
    half_life_days: Above0 = 14.0
    """How fast a click loses its chance to be an example: older ones say less of what is wanted now."""
    history: AtLeast1 = 20
    """Newest clicks of a user that training looks at."""
    index_queries: AtLeast1 = 300
    neighbours: AtLeast1 = 100
    threads: AtLeast1 = 1


@dataclass(frozen=True)
class Requests:
    """Users at moments, as recall sees them: clicks newest first as item rows, and USER_FEATURES."""

    clicks: ListColumn
    ages_s: Floats
    """By position in `clicks.values`."""
    dense: Floats

    def __len__(self) -> int:
        return len(self.dense)


@dataclass(frozen=True)
class Retrieval:
    """What training makes of recall; `save` writes the bundle's `recall` folder."""

    towers: Towers
    bases: Floats
    vectors: Floats
    index: ItemIndex
    item_to_item: ItemToItem

    def save(self, folder: Path) -> None:
        """Write weights, arrays and index."""
        self.towers.save(folder)
        np.save(folder / BASES, self.bases)
        np.save(folder / VECTORS, self.vectors)
        self.index.save(folder)
        self.item_to_item.save(folder)

    def model(self, ids: IdMap, version: str) -> RecallModel:
        """The model as serving would have it, without a bundle between."""
        return RecallModel(version, ids, self.towers, self.bases, self.index, self.item_to_item)


def train_retrieval(
    world: World, until_us: int, seed: int, config: RetrievalConfig | None = None, progress: Progress = silent
) -> Retrieval:
    """Fit recall on the events before `until_us` (Unix microseconds).

    The index is tuned on users asked after that moment, which the towers have not seen, or on the last ones before it
    where none follows. The same arguments give the same result. Raises DataError where nothing was
    clicked before that moment.
    """
    config = config or RetrievalConfig()
    with reproducible(seed, config.threads):
        return _train_retrieval(world, until_us, seed, config, progress)


def _train_retrieval(world: World, until_us: int, seed: int, config: RetrievalConfig, progress: Progress) -> Retrieval:
    log = world.log.before(until_us)
    if not log.clicked.any():
        raise DataError(f"nothing was clicked before {_iso(until_us)}: there is nothing to learn recall from")
    content, sizes = item_content(world, until_us, config)
    examples = np.flatnonzero(log.clicked)[-config.max_examples :]
    requests = requests_at(world, log.user_row[examples], log.time_us[examples])
    weights = np.exp2((log.time_us[examples] - until_us) / (config.half_life_days * DAY_US))
    positives = log.item_row[examples].astype(np.int64)
    towers = _fit_towers(_Fit(Towers(sizes), content, requests, positives, weights, seed, config), progress)
    blocks = list(towers.embed_items(content))
    bases, vectors = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    progress("build the index", 0.0)
    queries = _tuning_queries(world, until_us, towers, bases, config.index_queries)
    index = ItemIndex.build(vectors, queries, seed=seed, threads=config.threads)
    progress("build the index", 1.0)
    return Retrieval(towers, bases, vectors, index, _neighbours(log, config))


def _iso(time_us: int) -> str:
    return datetime.fromtimestamp(time_us // SECOND_US, UTC).isoformat()


def _neighbours(log: EventLog, config: RetrievalConfig) -> ItemToItem:
    clicks = log.select(log.clicked)
    return build_item_to_item(
        clicks.user_row, clicks.item_row, clicks.time_us, clicks.items, neighbours=config.neighbours
    )


def item_content(world: World, until_us: int, config: RetrievalConfig) -> tuple[ItemContent, TowerSizes]:
    """What the item tower sees of every item, and the table sizes.

    Ids clicked less than twice and creators without a click before `until_us` are unknown (row 0): their embeddings
    would be noise.
    """
    log = world.log.before(until_us)
    clicks = np.bincount(log.item_row[log.clicked], minlength=log.items)
    known = clicks >= 2
    creator = world.creator_code.astype(np.int64)
    creator_clicks = np.bincount(creator, weights=clicks)
    content = ItemContent(
        id_row=np.where(known, np.cumsum(known), 0),
        creator=np.where(creator_clicks > 0, np.cumsum(creator_clicks > 0), 0)[creator],
        categories=np.asarray(world.categories.values, np.int64) + 1,
        offsets=world.categories.offsets,
        age_days=np.maximum((until_us - world.publish_us) / DAY_US, 0).astype(np.float32),
    )
    sizes = TowerSizes(
        ids=int(known.sum()) + 1,
        categories=len(world.category_names) + 1,
        creators=int((creator_clicks > 0).sum()) + 1,
        embedding=config.embedding,
        output=config.dim,
    )
    return content, sizes


def requests_at(world: World, user_rows: npt.NDArray[np.integer], times_us: Ints) -> Requests:
    """Users as they were just before a moment: the event at that very moment does not count."""
    before = times_us - 1
    clicks = UserSequences.clicks(world.log).as_of(user_rows, before)
    lengths = np.diff(clicks.item_row.offsets)
    ages = np.repeat(times_us / 1e6, lengths) - clicks.time_s.values.astype(np.float64)
    dense = _dense_rows(world, user_rows, times_us, lengths)
    return Requests(clicks.item_row, np.maximum(ages, 0.0).astype(np.float32), dense)


def _dense_rows(world: World, user_rows: npt.NDArray[np.integer], times_us: Ints, clicks: Ints) -> Floats:
    """USER_FEATURES of many users at once, bit for bit what `assembly.user_dense` gives for each (a test says so):
    that one reads blocks of one user and would take minutes here."""
    columns = {
        name: np.asarray(column, np.float64)
        for name, column in UserProfiles(world).as_of(user_rows, times_us - 1).items()
        if not isinstance(column, ListColumn)
    }
    now_s = times_us / 1e6
    rated = columns["rating_count_all"]
    count = np.where(rated > 0, rated, np.nan)
    mean = columns["rating_sum_all"] / count
    days, rest = np.divmod(now_s.astype(np.int64), 86_400)
    values = {
        **columns,
        "rating_mean": mean,
        "rating_std": np.sqrt(np.maximum(columns["rating_sq_sum_all"] / count - mean * mean, 0.0)),
        "recent_clicks": clicks,
    }
    for name in ("first_event", "last_event"):
        times = columns[f"{name}_time"]
        values[f"since_{name}_s"] = np.where(times > 0, np.maximum(now_s - times, 0.0), np.nan)
    for name, angle in (("hour", rest // 3600 / 24), ("weekday", (days + 3) % 7 / 7)):
        values[f"{name}_sin"], values[f"{name}_cos"] = np.sin(2.0 * np.pi * angle), np.cos(2.0 * np.pi * angle)
    return np.stack([values[name].astype(np.float32) for name in USER_FEATURES], axis=1)


def padded(requests: Requests, rows: Ints, limit: int) -> tuple[Ints, Floats, npt.NDArray[np.bool_]]:
    """Click rows int64[B, L], ages and mask, L the most clicks of one request, at most `limit`; 0 if masked."""
    begin = requests.clicks.offsets[rows]
    lengths = np.minimum(requests.clicks.offsets[rows + 1] - begin, limit)
    width = max(1, int(lengths.max(initial=0)))
    mask = np.arange(width) < lengths[:, None]
    positions = np.where(mask, begin[:, None] + np.arange(width), 0)
    if not len(requests.ages_s):
        return np.zeros(mask.shape, np.int64), np.zeros(mask.shape, np.float32), mask
    values = np.asarray(requests.clicks.values, np.int64)[positions]
    return np.where(mask, values, 0), np.where(mask, requests.ages_s[positions], 0), mask


@torch.inference_mode()
def embed_users(towers: Towers, bases: Floats, requests: Requests) -> Floats:
    """Unit vectors f32[R, D] of all requests."""
    parts = []
    for rows in _batches(np.arange(len(requests)), 1024):
        clicks, ages, mask = padded(requests, rows, MAX_CLICKS)
        dense = torch.from_numpy(requests.dense[rows])
        history = torch.from_numpy(bases[clicks])
        parts.append(towers.user(history, torch.from_numpy(ages), torch.from_numpy(mask), dense).numpy())
    return np.concatenate(parts)


@dataclass
class _Fit:
    """The examples, and the loss of a batch of them. `weights` are the examples' chances to be drawn."""

    towers: Towers
    content: ItemContent
    requests: Requests
    positives: Ints
    weights: npt.NDArray[np.float64]
    seed: int
    config: RetrievalConfig

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.generator = torch.Generator().manual_seed(self.seed)
        self.chance = self.weights / self.weights.sum()
        share = np.bincount(self.positives, weights=self.chance, minlength=len(self.content))
        # How often an item is expected among the negatives of a batch: by popularity and uniformly.
        expected = self.config.batch * share + self.config.uniform_negatives / len(self.content)
        self.log_q = torch.from_numpy(np.log(expected).astype(np.float32))

    def batches(self) -> Iterator[Ints]:
        """One epoch."""
        yield from _batches(self.rng.choice(len(self.positives), self.draws, p=self.chance), self.config.batch)

    @property
    def steps(self) -> int:
        """Batches per epoch."""
        return -(-self.draws // self.config.batch)

    @property
    def draws(self) -> int:
        """Examples per epoch: as many as the newest ones weigh together."""
        return math.ceil(float(self.weights.sum() / self.weights.max()))

    def loss(self, rows: Ints) -> Tensor:
        """Mean softmax loss of the examples `rows`."""
        clicks, ages, mask = padded(self.requests, rows, self.config.history)
        negatives = self.rng.integers(0, len(self.content), self.config.uniform_negatives)
        shown = np.concatenate([self.positives[rows], negatives])
        items, where = np.unique(np.concatenate([shown, clicks.ravel()]), return_inverse=True)
        base = self.towers.item.base(self.content.take(items), self.generator)
        vectors = self.towers.item.vectors(base[torch.from_numpy(where[: len(shown)])])
        history = base[torch.from_numpy(where[len(shown) :].reshape(clicks.shape))]
        dense = torch.from_numpy(self.requests.dense[rows])
        users = self.towers.user(history, torch.from_numpy(ages), torch.from_numpy(mask), dense)
        logits = users @ vectors.T / self.config.temperature - self.log_q[torch.from_numpy(shown)]
        same = shown[: len(rows), None] == shown
        np.fill_diagonal(same, False)
        logits = logits.masked_fill(torch.from_numpy(same), -1e9)
        return functional.cross_entropy(logits, torch.arange(len(rows)))


def _fit_towers(fit: _Fit, progress: Progress) -> Towers:
    towers, config = fit.towers, fit.config
    towers.user.fit_scale(fit.requests.dense)
    optimizer = torch.optim.Adam(towers.parameters(), lr=config.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.learning_rate, total_steps=config.epochs * fit.steps
    )
    for epoch in range(config.epochs):
        for rows in fit.batches():
            optimizer.zero_grad()
            fit.loss(rows).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        progress("train the towers", (epoch + 1) / config.epochs)
    return towers.eval()


def _batches(rows: Ints, size: int) -> Iterator[Ints]:
    for begin in range(0, len(rows), size):
        yield rows[begin : begin + size]


def _tuning_queries(world: World, until_us: int, towers: Towers, bases: Floats, count: int) -> Floats:
    """Vectors of users at their first event after the training events."""
    users, times = first_requests(world.log, until_us)
    if not len(users):
        last = slice(max(0, len(world.log) - count), None)
        users, times = world.log.user_row[last].astype(np.int64), world.log.time_us[last]
    step = max(1, len(users) // count)
    return embed_users(towers, bases, requests_at(world, users[::step][:count], times[::step][:count]))


def first_requests(log: EventLog, since_us: int) -> tuple[Ints, Ints]:
    """Every user who comes at or after a moment, and when it is first: user rows and times, by user."""
    later = log.select(slice(int(np.searchsorted(log.time_us, since_us, side="left")), None))
    users, first = np.unique(later.user_row, return_index=True)
    return users.astype(np.int64), later.time_us[first]
