"""How good the whole cascade is on the held-out time: the stages' own code, asked at each user's first event.

One request per user with a new click after the split, asked just before the user's first event there; what was known
at that moment is known, nothing later. The list is compared with popularity on the same requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from recgraph.contract import Envelope
from recgraph.data.log import EventLog
from recgraph.errors import DataError
from recgraph.models.base import StageModel
from recgraph.scenes import CHANNELS, Quotas, Rules, Scene
from recgraph.training.baselines import Seen, baselines
from recgraph.training.fit import AtLeast1
from recgraph.training.metrics import auc, gauc, ndcg, paired_bootstrap, recall
from recgraph.training.replay import Replay
from recgraph.training.samples import Request, window_requests

T = TypeVar("T")
PAGE = 20
CHANNEL_K = 500


@dataclass(frozen=True)
class EvaluationConfig:
    """How much to evaluate: the cascade for `requests`, the details of recall and coarse for a sample of those."""

    requests: AtLeast1 = 4000
    sample: AtLeast1 = 500


@dataclass(frozen=True)
class Models:
    """The models of the four stages."""

    recall: StageModel
    coarse: StageModel
    fine: StageModel
    rerank: StageModel


@dataclass(frozen=True)
class _Run:
    """Requests and what every stage passed on for each."""

    requests: list[Request]
    recall: list[Envelope]
    coarse: list[Envelope]
    fine: list[Envelope]
    final: list[Envelope]


def held_out_requests(log: EventLog, split_us: int) -> list[Request]:
    """What there is to evaluate on. Raises DataError where that is nothing."""
    requests = window_requests(log, split_us, log.end_us + 1)
    if not requests:
        raise DataError("no user clicks something new after the split: there is nothing to evaluate on")
    return requests


async def evaluate(
    replay: Replay, models: Models, split_us: int, seed: int, config: EvaluationConfig | None = None
) -> dict[str, Any]:
    """The metrics for the manifest: `recall`, `coarse`, `fine`, `ndcg20`, `final_over_popular_3d_live`, `coverage`.

    `ndcg20` has `final`, the three baselines, and the orders of `coarse` and `fine` as they would have been shown. The
    page of the scene is taken with 20 places, whatever its size.
    """
    config = config or EvaluationConfig()
    log = replay.world.log
    rng = np.random.default_rng(seed)
    requests = _some(held_out_requests(log, split_us), config.requests, rng)
    run = await _cascade(replay, models, requests)
    sample = _some(range(len(requests)), config.sample, rng)
    some = [requests[index] for index in sample]
    quality = _quality(replay, run, split_us)
    final, live = quality["final"], quality["popular_3d_live"]
    return {
        "requests": len(requests),
        "recall": {
            "merged": _recalls(replay, requests, run.recall, (CHANNEL_K, replay.settings.recall.total)),
            **{name: await _channel(replay, models.recall, name, some) for name in CHANNELS},
        },
        "coarse": {
            **await _coarse_auc(replay, models.coarse, some, [run.recall[index] for index in sample]),
            "recall_of_cut": _mean_recall(replay, requests, run.coarse, replay.settings.coarse_keep),
        },
        "fine": _auc(replay, requests, run.fine),
        "ndcg20": {name: float(values.mean()) for name, values in quality.items()},
        "final_over_popular_3d_live": asdict(paired_bootstrap(final, live, seed=seed)),
        "coverage": _coverage(replay, run.final),
    }


def _some(whole: Sequence[T], limit: int, rng: np.random.Generator) -> list[T]:
    """At most `limit` of them, in their order."""
    chosen = np.sort(rng.choice(len(whole), min(limit, len(whole)), replace=False)).tolist()
    return [whole[index] for index in chosen]


async def _cascade(replay: Replay, models: Models, requests: list[Request]) -> _Run:
    scene = replay.settings
    page = scene.model_copy(update={"page_size": PAGE, "rerank_best": max(PAGE, scene.rerank_best)})
    recalled = await _stage(replay, "recall", models.recall, scene, requests, [replay.ask(one) for one in requests])
    cut = await _stage(replay, "coarse", models.coarse, scene, requests, recalled)
    scored = await _stage(replay, "fine", models.fine, scene, requests, cut)
    final = await _stage(replay, "rerank", models.rerank, page, requests, scored)
    return _Run(requests, recalled, cut, scored, final)


async def _stage(
    replay: Replay,
    name: str,
    model: StageModel,
    scene: Scene,
    requests: Sequence[Request],
    envelopes: Sequence[Envelope],
) -> list[Envelope]:
    return await replay.run(f"evaluate {name}", [replay.stage(name, model, scene)], requests, envelopes)


def _quality(replay: Replay, run: _Run, split_us: int) -> dict[str, npt.NDArray[np.float64]]:
    """NDCG@20 by request, of the final list, of the orders before it and of the baselines."""
    log = replay.world.log
    seen = Seen(log)
    known = [seen.before(request.user, request.time_us) for request in run.requests]
    lists = {
        "final": [replay.rows(envelope.items or []) for envelope in run.final],
        "fine": [_by_score(replay, envelope) for envelope in run.fine],
        "coarse": [replay.rows(envelope.items or []) for envelope in run.coarse],
    }
    for name, baseline in baselines(log, replay.world.available, split_us).items():
        lists[name] = [baseline.top(one, items, PAGE) for one, items in zip(run.requests, known, strict=True)]
    return {
        name: np.array([ndcg(ranked, one.positives, PAGE) for ranked, one in zip(column, run.requests, strict=True)])
        for name, column in lists.items()
    }


def _by_score(replay: Replay, envelope: Envelope) -> npt.NDArray[np.int64]:
    order = np.argsort(-np.asarray(envelope.scores, np.float64), kind="stable")
    return replay.rows(envelope.items or [])[order]


async def _channel(replay: Replay, model: StageModel, name: str, requests: list[Request]) -> dict[str, float]:
    """recall@k of one channel alone, by the recall stage with all other quotas at 0."""
    scene = replay.settings
    quotas = Quotas(**{channel: CHANNEL_K if channel == name else 0 for channel in CHANNELS})
    alone = scene.model_copy(update={"recall": quotas, "rules": Rules()})
    asked = [replay.ask(request) for request in requests]
    return _recalls(replay, requests, await _stage(replay, "recall", model, alone, requests, asked), (100, CHANNEL_K))


def _recalls(
    replay: Replay, requests: Sequence[Request], envelopes: Sequence[Envelope], ks: Sequence[int]
) -> dict[str, float]:
    return {f"recall@{k}": _mean_recall(replay, requests, envelopes, k) for k in ks}


def _mean_recall(replay: Replay, requests: Sequence[Request], envelopes: Sequence[Envelope], k: int) -> float:
    pairs = zip(requests, envelopes, strict=True)
    return float(np.mean([recall(replay.rows(answer.items or []), one.positives, k) for one, answer in pairs]))


async def _coarse_auc(
    replay: Replay, model: StageModel, requests: list[Request], recalled: list[Envelope]
) -> dict[str, float]:
    """AUC of coarse over all that recall passes on, by the coarse stage with a cut that keeps everything."""
    scene = replay.settings
    whole = scene.model_copy(update={"coarse_keep": 5000})
    return _auc(replay, requests, await _stage(replay, "coarse", model, whole, requests, recalled))


def _auc(replay: Replay, requests: Sequence[Request], envelopes: Sequence[Envelope]) -> dict[str, float]:
    """AUC over all candidates of all requests, and the mean of each request's own."""
    scores = [np.asarray(envelope.scores, np.float64) for envelope in envelopes]
    labels = [
        np.isin(replay.rows(answer.items or []), one.positives) for one, answer in zip(requests, envelopes, strict=True)
    ]
    return {"auc": auc(np.concatenate(scores), np.concatenate(labels)), "gauc": gauc(scores, labels)}


def _coverage(replay: Replay, final: list[Envelope]) -> float:
    """Share of the available items that are on at least one page."""
    shown = {item for envelope in final for item in envelope.items or []}
    return len(shown) / max(int(replay.world.available.sum()), 1)
