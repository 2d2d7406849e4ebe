"""What one fine rank costs: all candidates in one forward pass on one core, and what item by item would take."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from recgraph.bundle import Bundle, IdMap
from recgraph.features.assembly import ITEM_FEATURES, MAX_CLICKS, USER_FEATURES
from recgraph.models import fine
from recgraph.models.base import Tensors
from recgraph.models.pairs import PAIR_FEATURES

TARGET_MS = 15.0
_PASSES = 100
_WARM_UP = 10
_SINGLES = 3


class FineBench(msgspec.Struct, frozen=True):
    """Milliseconds. `predict` is all of the predictor's work (ids, pairs, network), `forward` the network alone.

    `item_by_item` is the whole list as one prediction per candidate.
    """

    candidates: int
    clicks: int
    features: int
    threads: int
    forward_p50_ms: float
    forward_p99_ms: float
    predict_p50_ms: float
    predict_p99_ms: float
    item_by_item_p50_ms: float
    item_by_item_ratio: float
    target_ms: float = TARGET_MS


def run(bundle: Path, candidates: int = 300, seed: int = 0) -> FineBench:
    """Measure the fine model of a bundle on random candidates and the longest click sequence. One thread."""
    opened = Bundle.open(bundle)
    return _measure(opened, fine.load(opened, threads=1), candidates, seed)


def _measure(bundle: Bundle, model: fine.FineModel, candidates: int, seed: int) -> FineBench:
    inputs = fine_request(bundle, candidates, seed)
    encoded = model.encode(inputs)
    singles = [one_item(inputs, row) for row in range(candidates)]
    forward = _timed(lambda: model.score(encoded), _PASSES)
    predict = _timed(lambda: model.predict(inputs), _PASSES)
    single = _timed(lambda: [model.predict(one) for one in singles], _SINGLES)
    return FineBench(
        candidates=candidates,
        clicks=MAX_CLICKS,
        features=len(ITEM_FEATURES) + len(USER_FEATURES) + len(PAIR_FEATURES),
        threads=1,
        forward_p50_ms=_percentile(forward, 50),
        forward_p99_ms=_percentile(forward, 99),
        predict_p50_ms=_percentile(predict, 50),
        predict_p99_ms=_percentile(predict, 99),
        item_by_item_p50_ms=_percentile(single, 50),
        item_by_item_ratio=round(_percentile(single, 50) / _percentile(predict, 50), 1),
    )


def fine_request(bundle: Bundle, candidates: int, seed: int) -> Tensors:
    """Inputs of a fine rank over random items of the bundle (repeated where it has fewer), with 50 clicks."""
    rng = np.random.default_rng(seed)
    folder = bundle.stage_dir(fine.STAGE)
    categories, creators = IdMap.open(folder / "categories"), IdMap.open(folder / "creators")
    return {
        "user_id": _texts([b"someone"]),
        "item_id": _sample(bundle.item_ids, candidates, rng),
        "category": _sample(categories, candidates, rng),
        "creator": _sample(creators, candidates, rng),
        "item_dense": rng.exponential(10.0, (candidates, len(ITEM_FEATURES))).astype(np.float32),
        "user_dense": rng.exponential(10.0, (1, len(USER_FEATURES))).astype(np.float32),
        "clicks_id": _sample(bundle.item_ids, MAX_CLICKS, rng),
        "clicks_category": _sample(categories, MAX_CLICKS, rng),
        "clicks_age_s": np.sort(rng.exponential(86400.0, MAX_CLICKS)).astype(np.float32),
    }


def one_item(inputs: Tensors, row: int) -> Tensors:
    """The same request for one candidate alone."""
    own = ("item_id", "category", "creator", "item_dense")
    return {name: value[row : row + 1] if name in own else value for name, value in inputs.items()}


def _sample(ids: IdMap, count: int, rng: np.random.Generator) -> npt.NDArray[np.object_]:
    if not len(ids):
        return _texts([b""] * count)
    return _texts(ids.ids(rng.choice(len(ids), count, replace=len(ids) < count)))


def _texts(values: list[bytes]) -> npt.NDArray[np.object_]:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def _timed(work: Callable[[], Any], times: int) -> npt.NDArray[np.float64]:
    for _ in range(min(_WARM_UP, times)):
        work()
    taken = np.empty(times)
    for index in range(times):
        start = time.perf_counter()
        work()
        taken[index] = (time.perf_counter() - start) * 1000.0
    return taken


def _percentile(times: npt.NDArray[np.float64], percent: float) -> float:
    return round(float(np.percentile(times, percent)), 3)
