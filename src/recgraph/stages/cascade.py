"""The whole cascade in one process: for evaluation, which asks at past moments, and for warm-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from recgraph.contract import Envelope
from recgraph.models.base import StageModel
from recgraph.stages.base import Stage, StageDeps
from recgraph.stages.coarse import CoarseStage
from recgraph.stages.fine import FineStage
from recgraph.stages.guard import Predict, Tensors
from recgraph.stages.recall import RecallStage
from recgraph.stages.rerank import RerankStage

STAGES: dict[str, type[Stage]] = {
    "recall": RecallStage,
    "coarse": CoarseStage,
    "fine": FineStage,
    "rerank": RerankStage,
}
"""The ranking stages by name, in the order of the graph."""


class Runs(Protocol):
    """A stage, as far as the cascade cares."""

    async def run(self, envelope: Envelope) -> Envelope:
        """The envelope after this stage."""
        ...


class Cascade:
    """Runs stages in order, each on what the stage before really passes on."""

    def __init__(self, stages: Sequence[Runs]) -> None:
        self.stages = tuple(stages)

    @classmethod
    def of(cls, deps: Callable[[str], StageDeps]) -> Cascade:
        """recall, coarse, fine, rerank, each with the dependencies that `deps(stage)` gives."""
        return cls([kind(deps(name)) for name, kind in STAGES.items()])

    async def run(self, envelope: Envelope) -> Envelope:
        """The envelope after the last stage: the page."""
        for stage in self.stages:
            envelope = await stage.run(envelope)
        return envelope


@dataclass
class SetClock:
    """A data clock that is told its time: evaluation sets it to the moment of each request."""

    at_s: float = 0.0

    def now_s(self) -> float:
        """Seconds since the epoch."""
        return self.at_s


def local_predict(model: StageModel) -> Predict:
    """A model as the stages call it, without a server between; it runs on the event loop and ignores the timeout."""

    async def predict(inputs: Tensors, timeout_s: float) -> Tensors:
        return model.predict(inputs)

    return predict
