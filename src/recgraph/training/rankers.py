"""Training of coarse, fine and rerank, each on what the stage before it really passes on.

Coarse learns from recall's candidates, fine from the best of coarse, rerank from the best of fine, all of them asked by
the stages' own code at past moments with the features of those moments. Users whose requests rerank learns from are not
among fine's, so that rerank sees the scores that fine gives to strangers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from recgraph.bundle import IdMap
from recgraph.contract import Envelope
from recgraph.data.log import DAY_US
from recgraph.errors import DataError
from recgraph.features.assembly import coarse_inputs, fine_inputs, rerank_inputs
from recgraph.models import coarse, fine, rerank
from recgraph.models.base import StageModel, Tensors
from recgraph.models.nn import Normalizer
from recgraph.models.pairs import PairTable
from recgraph.training.fit import AtLeast0, AtLeast1, FitConfig, Share, batch_of, calibrate, fit, reproducible
from recgraph.training.metrics import ndcg
from recgraph.training.replay import Replay
from recgraph.training.samples import Choice, Request, SampleBuilder, Samples, choose, past_requests

_SHARES = (0.0, 0.25, 0.5, 1.0)
_PAGE = 20


@dataclass(frozen=True)
class RankingConfig:
    """Sizes of the training. Chosen on MovieTweetings, for about five minutes on two cores."""

    requests: AtLeast1 = 8000
    """Past requests to learn from. With 8000 instead of 5000, coarse's cut to 300 kept 0.635 instead of 0.629 of what
    was clicked in the last tenth of MovieTweetings' history."""
    rerank_share: Share = 0.2
    """Share of the users that rerank, instead of fine, learns from."""
    step_us: AtLeast1 = 2 * DAY_US + DAY_US // 2
    """Distance of the cuts of the history."""
    coarse_head: AtLeast0 = 300
    coarse_negatives: tuple[AtLeast0, AtLeast0] = (32, 32)
    """Negatives among the hottest `coarse_head` candidates and among the rest."""
    fine_head: AtLeast0 = 100
    fine_negatives: tuple[AtLeast0, AtLeast0] = (20, 20)
    """Negatives among the `fine_head` that coarse likes best and among the rest."""
    pair_window: AtLeast1 = 50
    pair_neighbours: AtLeast1 = 200
    coarse_fit: FitConfig = field(default_factory=lambda: FitConfig(epochs=5))
    fine_fit: FitConfig = field(default_factory=lambda: FitConfig(epochs=3, learning_rate=2e-3))
    """Shorter and slower than coarse's. NDCG@20 on the last tenth of MovieTweetings' history (live popularity 0.162),
    one fit each: 0.1744 with 5 epochs at 4e-3, 0.1757 with 3, 0.1772 with 3 at 2e-3; two fits differ by about 0.002."""
    rerank_fit: FitConfig = field(default_factory=lambda: FitConfig(epochs=4, learning_rate=1e-3))
    rerank_held_out: Share = 0.4
    """Share of rerank's lists that decide how much its correction counts."""
    threads: AtLeast1 = 1


@dataclass(frozen=True)
class PastRecall:
    """A recall model that knows only what was before `from_us`, and so may be asked from then on."""

    from_us: int
    model: StageModel


@dataclass(frozen=True)
class RankingJob:
    """What the training of the rankers is given.

    `split_us` ends the history, `horizon_us` is how long after a request its clicks count. `recalls` are by time; no
    request is asked before the first. `folder` is the bundle's, in which `ids/items` is there already.
    """

    replay: Replay
    recalls: Sequence[PastRecall]
    items: IdMap
    split_us: int
    horizon_us: int
    folder: Path
    seed: int
    config: RankingConfig = RankingConfig()


@dataclass(frozen=True)
class Rankers:
    """The trained models, as serving would load them."""

    coarse: coarse.CoarseModel
    fine: fine.FineModel
    rerank: rerank.RerankModel


@dataclass(frozen=True)
class _Lists:
    """Requests and what a stage passed on for each."""

    requests: list[Request]
    envelopes: list[Envelope]

    def where(self, mask: npt.NDArray[np.bool_]) -> _Lists:
        chosen = np.flatnonzero(mask).tolist()
        return _Lists([self.requests[i] for i in chosen], [self.envelopes[i] for i in chosen])


async def train_rankers(job: RankingJob, item_vectors: npt.NDArray[np.float32]) -> Rankers:
    """Train and write the folders `coarse`, `fine` and `rerank`. The same job gives the same bytes."""
    with reproducible(job.seed, job.config.threads):
        recalled = await _recalled(job)
        coarse_model = await _train_coarse(job, recalled)
        cut = await _passed(job, "coarse rank of the training requests", "coarse", coarse_model, recalled)
        users = np.array([request.user for request in cut.requests])
        reserved = _reserved(users, job.config.rerank_share, job.seed)
        fine_model = await _train_fine(job, cut.where(~reserved))
        scored = await _passed(job, "fine rank of the training requests", "fine", fine_model, cut.where(reserved))
        rerank_model = await _train_rerank(job, scored, item_vectors)
    return Rankers(coarse_model, fine_model, rerank_model)


def _reserved(users: npt.NDArray[np.int64], share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Which requests are kept for rerank: those of a random share of the users, of one at least and never of all.

    Raises DataError where there is one user only.
    """
    known = np.unique(users)
    if len(known) < 2:
        raise DataError("one user alone comes back within the history: fine and rerank learn from different users")
    chosen = np.random.default_rng(seed).random(len(known)) < share
    if chosen.all():
        chosen[0] = False
    elif not chosen.any():
        chosen[-1] = True
    return chosen[np.searchsorted(known, users)]


async def _recalled(job: RankingJob) -> _Lists:
    """Past requests with recall's candidates, each from the last recall model that did not know its answer."""
    config = job.config
    requests = past_requests(
        job.replay.world.log,
        start_us=job.recalls[0].from_us,
        end_us=job.split_us,
        horizon_us=job.horizon_us,
        step_us=config.step_us,
        limit=config.requests,
        seed=job.seed,
    )
    if not requests:
        raise DataError("no user comes back within the history and clicks something new: nothing to learn ranking from")
    starts = np.array([past.from_us for past in job.recalls])
    stages = [job.replay.stage("recall", past.model) for past in job.recalls]
    which = np.searchsorted(starts, [request.time_us for request in requests], side="right") - 1
    envelopes = [job.replay.ask(request) for request in requests]
    per_request = [stages[index] for index in which.tolist()]
    task = "recall for the training requests"
    return _Lists(requests, await job.replay.run(task, per_request, requests, envelopes))


async def _passed(job: RankingJob, task: str, stage: str, model: StageModel, lists: _Lists) -> _Lists:
    running = [job.replay.stage(stage, model)]
    return _Lists(lists.requests, await job.replay.run(task, running, lists.requests, lists.envelopes))


async def _train_coarse(job: RankingJob, lists: _Lists) -> coarse.CoarseModel:
    config, folder = job.config, job.folder / coarse.STAGE
    rng = np.random.default_rng(job.seed)
    builder = SampleBuilder({})
    for request, envelope in zip(lists.requests, lists.envelopes, strict=True):
        sources = np.array(envelope.sources or [], object)
        hot = np.flatnonzero(sources == "hot")[: config.coarse_head]
        rest = np.setdiff1d(np.arange(len(sources)), hot)
        wanted = _choose(job, request, envelope, (hot, rest), config.coarse_negatives, rng)
        user, item, context = await job.replay.blocks("coarse", request, wanted.items)
        inputs = coarse_inputs(wanted.user_id, wanted.items, user, item, context)
        builder.add(coarse.encode(inputs), wanted.choice)
    samples = builder.build()
    item_log, user_log = coarse.log_masks()
    item_dense = Normalizer.fit(_rows(samples, "item_dense"), item_log)
    user_dense = Normalizer.fit(samples.arrays["user_dense"][:, 0], user_log)
    shape = coarse.CoarseConfig(item_indicators=len(item_dense.indicated), user_indicators=len(user_dense.indicated))
    network = coarse.CoarseNetwork(shape, item_dense, user_dense)
    fit(network, samples, config.coarse_fit, clicks={}, seed=job.seed)
    coarse.write(folder, network, shape)
    return coarse.load_folder(folder, "training")


async def _train_fine(job: RankingJob, lists: _Lists) -> fine.FineModel:
    config, folder = job.config, job.folder / fine.STAGE
    world = job.replay.world
    categories = IdMap.build(folder / "categories", sorted(_texts(world.items["category"])))
    creators = IdMap.build(folder / "creators", sorted(_texts(world.items["creator"])))
    tables = _PastPairs(job)
    encoder = fine.FineEncoder(job.items, categories, creators, tables.at(job.split_us))
    samples = await _fine_samples(job, lists, encoder, tables)
    dense = Normalizer.fit(_fine_dense(samples), fine.log_mask())
    shape = fine.FineConfig(
        items=len(job.items), categories=len(categories), creators=len(creators), indicators=len(dense.indicated)
    )
    network = fine.FineNetwork(shape, dense)
    fit(network, samples, config.fine_fit, clicks=fine.CLICK_AXES, seed=job.seed)
    fine.write(folder, network, shape, tables.at(job.split_us))
    return fine.load_folder(folder, job.items, "training")


async def _fine_samples(job: RankingJob, lists: _Lists, encoder: fine.FineEncoder, tables: _PastPairs) -> Samples:
    config = job.config
    rng = np.random.default_rng(job.seed)
    builder = SampleBuilder(fine.CLICK_AXES)
    for request, envelope in zip(lists.requests, lists.envelopes, strict=True):
        places = np.arange(len(envelope.items or []))
        strata = (places[: config.fine_head], places[config.fine_head :])
        wanted = _choose(job, request, envelope, strata, config.fine_negatives, rng)
        user, item, context = await job.replay.blocks("fine", request, wanted.items)
        inputs = fine_inputs(wanted.user_id, wanted.items, user, item, context)
        builder.add(encoder.encode(inputs, tables.at(request.time_us)), wanted.choice)
    return builder.build()


async def _train_rerank(job: RankingJob, lists: _Lists, item_vectors: npt.NDArray[np.float32]) -> rerank.RerankModel:
    config, folder = job.config, job.folder / rerank.STAGE
    builder = SampleBuilder({})
    for request, envelope in zip(lists.requests, lists.envelopes, strict=True):
        inputs, labels = await _rerank_list(job, request, envelope)
        everything = np.arange(len(labels))
        builder.add(rerank.encode(inputs), Choice(everything, labels, np.zeros(len(labels), np.float32)))
    samples = builder.build()
    user = np.broadcast_to(samples.arrays["user_dense"], (*samples.label.shape, samples.arrays["user_dense"].shape[2]))
    valid = np.isfinite(samples.log_weight)
    columns = (samples.arrays["item_dense"][valid], user[valid], samples.arrays["list_dense"][valid])
    dense = Normalizer.fit(np.concatenate(columns, axis=1), rerank.log_mask())
    shape = rerank.RerankConfig(indicators=len(dense.indicated))
    network = rerank.RerankNetwork(shape, dense)
    held_out = np.random.default_rng(job.seed).random(len(samples)) < config.rerank_held_out
    if not held_out.all():
        fit(network, samples.where(~held_out), config.rerank_fit, clicks={}, seed=job.seed)
    _set_share(network, samples.where(held_out))
    calibrate(network, samples, config.rerank_fit.batch, {})
    rerank.write(folder, network, shape)
    return rerank.load_folder(folder, job.items, item_vectors, "training")


def _set_share(network: rerank.RerankNetwork, samples: Samples) -> None:
    """The share of the correction that gains most on lists it was not fitted on.

    A gain within one standard error of nothing is taken for chance, and fine's order stays as it is; so it does where
    no list was held out.
    """
    if not len(samples):
        network.share.fill_(0.0)
        return
    batch = batch_of(samples, np.arange(len(samples)), {})
    padding = np.isneginf(samples.log_weight)
    gains = {}
    with torch.inference_mode():
        for share in _SHARES:
            network.share.fill_(share)
            logits = np.where(padding, -np.inf, network(batch).numpy())
            order = np.argsort(-logits, axis=1, kind="stable")
            gains[share] = np.array(
                [ndcg(ranked, np.flatnonzero(label), _PAGE) for ranked, label in zip(order, samples.label, strict=True)]
            )
    better = {share: gain - gains[0.0] for share, gain in gains.items() if share}
    best = max(better, key=lambda share: float(better[share].mean()))
    error = float(better[best].std()) / np.sqrt(len(samples))
    network.share.fill_(best if float(better[best].mean()) > error else 0.0)


async def _rerank_list(
    job: RankingJob, request: Request, envelope: Envelope
) -> tuple[Tensors, npt.NDArray[np.float32]]:
    """The best of fine as the rerank stage hands them to its model, and which were clicked."""
    items, scores = envelope.items or [], np.asarray(envelope.scores, np.float64)
    best = np.argsort(-scores, kind="stable")[: job.replay.settings.rerank_best]
    chosen = [items[row] for row in best.tolist()]
    user, item, context = await job.replay.blocks("rerank", request, chosen)
    before = np.asarray(envelope.coarse_scores, np.float64)[best]
    inputs = rerank_inputs(chosen, scores[best], before, user, item, context)
    return inputs, np.isin(job.replay.rows(chosen), request.positives).astype(np.float32)


@dataclass(frozen=True)
class _Wanted:
    user_id: str
    items: list[str]
    choice: Choice


def _choose(
    job: RankingJob,
    request: Request,
    envelope: Envelope,
    strata: Sequence[npt.NDArray[np.int64]],
    counts: Sequence[int],
    rng: np.random.Generator,
) -> _Wanted:
    items = envelope.items or []
    choice = choose(job.replay.rows(items), request.positives, strata, counts, rng)
    return _Wanted(envelope.user.user_id, [items[row] for row in choice.positions.tolist()], choice)


class _PastPairs:
    """Tables of pairs of the past: as old at a training request as the bundle's is at a request in serving.

    The history is cut every horizon, counted back from the split; a request gets the table of the last cut before it.
    """

    def __init__(self, job: RankingJob) -> None:
        self._job = job
        self._clicks = job.replay.world.log.select(job.replay.world.log.clicked)
        self._tables: dict[int, PairTable] = {}

    def at(self, time_us: int) -> PairTable:
        """The table for a moment; at the split it is the bundle's."""
        job = self._job
        periods = -(-max(job.split_us - time_us, 0) // job.horizon_us)
        cut = job.split_us - periods * job.horizon_us
        if cut not in self._tables:
            clicks = self._clicks.before(cut)
            self._tables[cut] = PairTable.build(
                clicks.user_row,
                clicks.item_row,
                clicks.items,
                window=job.config.pair_window,
                keep=job.config.pair_neighbours,
            )
        return self._tables[cut]


def _rows(samples: Samples, name: str) -> npt.NDArray[np.float32]:
    """All rows of an array that are not padding."""
    rows: npt.NDArray[np.float32] = samples.arrays[name][np.isfinite(samples.log_weight)]
    return rows


def _fine_dense(samples: Samples) -> npt.NDArray[np.float32]:
    user = samples.arrays["user_dense"]
    valid = np.isfinite(samples.log_weight)
    spread = np.broadcast_to(user, (*valid.shape, user.shape[2]))
    return np.concatenate([samples.arrays["item_dense"][valid], spread[valid], samples.arrays["pair_dense"][valid]], 1)


def _texts(column: object) -> set[bytes]:
    """The distinct texts of an Arrow column, without the empty one: it means unknown."""
    values: list[str | None] = column.unique().to_pylist()  # type: ignore[attr-defined]
    return {value.encode() for value in values if value}
