"""The logic of every stage, without a server: envelope in, envelope out."""

from recgraph.stages.base import Outcome, Run, Stage, StageDeps
from recgraph.stages.cascade import STAGES, Cascade, SetClock, local_predict
from recgraph.stages.coarse import CoarseStage
from recgraph.stages.entry import EntryStage
from recgraph.stages.fine import FineStage
from recgraph.stages.guard import Guard, Predict, Tensors
from recgraph.stages.recall import RecallStage
from recgraph.stages.rerank import RerankStage

__all__ = [
    "STAGES",
    "Cascade",
    "CoarseStage",
    "EntryStage",
    "FineStage",
    "Guard",
    "Outcome",
    "Predict",
    "RecallStage",
    "RerankStage",
    "Run",
    "SetClock",
    "Stage",
    "StageDeps",
    "Tensors",
    "local_predict",
]
