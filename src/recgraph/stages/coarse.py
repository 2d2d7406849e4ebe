"""Coarse rank: a cheap score for every candidate of recall; the best ones go on."""

from __future__ import annotations

import asyncio

import numpy as np

from recgraph.features.assembly import coarse_inputs
from recgraph.stages.base import Outcome, Run, Stage, scores_of, take


class CoarseStage(Stage):
    """1-2k -> `coarse_keep` (300). Falls back to the order of recall, cut to as many.

    Pinned items pass whatever their score. Candidates whose score is not finite are removed.
    """

    name = "coarse"

    async def work(self, run: Run) -> Outcome:
        """Reads, scores and cuts."""
        items = run.items
        if not items:
            return Outcome([], [], [])
        user_blocks, item_blocks = await asyncio.gather(
            self.read(run, "user", [run.user_id]), self.read(run, "item", items)
        )
        inputs = coarse_inputs(run.user_id, items, user_blocks, item_blocks, run.context)
        score = scores_of(await self.predict(run, inputs), len(items))
        finite = np.isfinite(score)
        order = np.argsort(np.where(finite, -score, np.inf), kind="stable").tolist()
        good = order[: int(finite.sum())]
        keep = cut(good, run.envelope.sources, run.scene.coarse_keep)
        kept_scores = score[keep].tolist()
        outcome = _outcome(run, keep, good, kept_scores)
        outcome.removed["not_finite"] = [items[row] for row in order[len(good) :]]
        return outcome

    async def fallback(self, run: Run, reason: str) -> Outcome:
        """The order of recall, cut."""
        rows = list(range(len(run.items)))
        run.degrade(self.name, reason, "order_of_recall")
        return _outcome(run, cut(rows, run.envelope.sources, run.scene.coarse_keep), rows, None)


def cut(order: list[int], sources: list[str] | None, keep: int) -> list[int]:
    """The first `keep` rows of `order`, in that order; pinned rows come along at the expense of the last others."""
    if len(order) <= keep or sources is None or "pin" not in sources:
        return order[:keep]
    pinned = {row for row in order if sources[row] == "pin"}
    free = max(0, keep - len(pinned))
    others = [row for row in order if row not in pinned][:free]
    chosen = pinned.union(others)
    return [row for row in order if row in chosen][:keep]


def _outcome(run: Run, keep: list[int], order: list[int], scores: list[float] | None) -> Outcome:
    items, kept = run.items, set(keep)
    return Outcome(
        items=[items[row] for row in keep],
        scores=scores,
        sources=take(run.envelope.sources, keep),
        coarse_scores=scores,
        removed={"below_cut": [items[row] for row in order if row not in kept]},
    )
