"""Fine rank: the deep model's probability for every candidate it gets; nothing is cut and nothing changes place."""

from __future__ import annotations

import asyncio

import numpy as np

from recgraph.features.assembly import fine_inputs
from recgraph.stages.base import Outcome, Run, Stage, scores_of


class FineStage(Stage):
    """`scores[i]` belongs to `items[i]` of the request. Falls back to the order of coarse."""

    name = "fine"

    async def work(self, run: Run) -> Outcome:
        """Reads and scores in one forward pass."""
        items = run.items
        if not items:
            return self._all(run, [])
        user_blocks, item_blocks = await asyncio.gather(
            self.read(run, "user", [run.user_id]), self.read(run, "item", items)
        )
        inputs = fine_inputs(run.user_id, items, user_blocks, item_blocks, run.context)
        score = scores_of(await self.predict(run, inputs), len(items))
        if not np.isfinite(score).all():
            run.degrade(self.name, "predictor_not_finite", "scored_zero")
            # A probability is never below 0, so what was not finite cannot win.
            score = np.where(np.isfinite(score), score, 0.0)
        return self._all(run, score.tolist())

    async def fallback(self, run: Run, reason: str) -> Outcome:
        """The order of coarse, as scores that fall from 1 towards 0 by place."""
        run.degrade(self.name, reason, "order_of_coarse")
        count = len(run.items)
        return self._all(run, [1.0 - place / count for place in range(count)])

    def _all(self, run: Run, scores: list[float]) -> Outcome:
        envelope = run.envelope
        return Outcome(run.items, scores, envelope.sources, envelope.coarse_scores)
