"""Warm-up: recorded requests that a process answers before it is ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from recgraph.cache import NoCache
from recgraph.contract import Envelope
from recgraph.errors import BadRequest, BundleError
from recgraph.features.codec import codec_of
from recgraph.features.reader import ViewBlock
from recgraph.features.schema import Entity, ViewSchema
from recgraph.settings import Budgets
from recgraph.stages.base import StageDeps
from recgraph.stages.cascade import STAGES

ROUNDS = 3
# A cold call may take long, a dead dependency must not stop the start.
PATIENT = Budgets(recall=2000.0, coarse=2000.0, fine=2000.0, rerank=2000.0, whole=10_000.0)


class MissingReader:
    """A reader that finds nothing: every entity is missing. For the warm-up of predictors, which have no store."""

    async def read(
        self, entity: Entity, views: Sequence[ViewSchema], ids: Sequence[str], *, now_s: float, timeout_s: float
    ) -> dict[str, ViewBlock]:
        """See FeatureReader."""
        return {view.role: codec_of(view).decode([None] * len(ids), now_s=now_s) for view in views}


def recorded(bundle: Path, stage: str) -> list[Envelope]:
    """The bundle's recorded envelopes of a stage. Raises BundleError where there are none."""
    path = bundle / "warmup" / f"{stage}.json"
    try:
        envelopes = msgspec.json.decode(path.read_bytes(), type=list[Envelope])
    except OSError as error:
        raise BundleError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise BundleError(f"{path}: {error}") from error
    if not envelopes:
        raise BundleError(f"{path}: no warm-up requests")
    return envelopes


async def warm_up(stage: str, deps: StageDeps, bundle: Path) -> list[Envelope]:
    """Answers the recorded requests a few times and returns the last round's answers.

    Nothing is written to the cache. A request of a scene that is not configured any more is passed over.
    """
    patient = STAGES[stage](replace(deps, cache=NoCache(), budgets=PATIENT))
    answers: list[Envelope] = []
    for _ in range(ROUNDS):
        answers = []
        for envelope in recorded(bundle, stage):
            # Recorded deadlines are long past, and a warm-up leaves no record.
            envelope.deadline_ms = envelope.remaining_ms = msgspec.UNSET
            envelope.record = False
            envelope.bundle = None
            try:
                answers.append(await patient.run(envelope))
            except BadRequest:
                continue
    return answers
