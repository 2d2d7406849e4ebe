"""What the ranking stages share: dependencies, time, the way from a failure to the fallback, trace and record."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import UnsetType

from recgraph import records
from recgraph.bundle.store import Pools
from recgraph.cache import Cache
from recgraph.contract import BundleRef, Degraded, Envelope, TraceEntry
from recgraph.deadline import Deadline
from recgraph.errors import BadRequest, StageFailure
from recgraph.features.assembly import Blocks, Context
from recgraph.features.reader import FeatureReader
from recgraph.features.schema import Entity, FeatureSet
from recgraph.pools import PoolSource
from recgraph.records import StageRecord
from recgraph.scenes import Scene, Scenes
from recgraph.settings import Budgets, StageName
from recgraph.stages.guard import Guard, Predict, Tensors

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Clock(Protocol):
    """The clock of the data (recgraph.clock); evaluation brings one that can be set to a past moment."""

    def now_s(self) -> float:
        """Seconds since the epoch."""
        ...


class BundleView(Protocol):
    """What the stages need of a bundle (recgraph.bundle.Bundle)."""

    @property
    def version(self) -> str: ...
    @property
    def features(self) -> FeatureSet: ...
    @property
    def pools(self) -> Pools: ...


@dataclass(frozen=True)
class StageDeps:
    """Everything that a ranking stage reaches outside of itself."""

    reader: FeatureReader
    predict: Predict
    cache: Cache
    pools: PoolSource
    scenes: Scenes
    bundle: BundleView
    clock: Clock
    budgets: Budgets = field(default_factory=Budgets)
    guard: Guard = field(default_factory=Guard)
    max_in_flight: int = 64


@dataclass
class Outcome:
    """What a stage made of its candidates. Columns are of one length; `removed` has ids by reason."""

    items: list[str]
    scores: list[float] | None = None
    sources: list[str] | None = None
    coarse_scores: list[float] | None = None
    removed: dict[str, list[str]] = field(default_factory=dict)
    short: int = 0


@dataclass
class Run:
    """One request in one stage: its scene, its moment and its time."""

    envelope: Envelope
    scene: Scene
    context: Context
    deadline: Deadline
    reserve_ms: float
    fallback_ms: float
    read_share: float
    misrouted: str = ""
    """The bundle that the request belongs to, where it is not the one that this stage serves."""
    started: float = field(default_factory=time.perf_counter)
    degraded: list[Degraded] = field(default_factory=list)

    @property
    def user_id(self) -> str:
        """The user who asks."""
        return self.envelope.user.user_id

    @property
    def items(self) -> list[str]:
        """The candidates received; parsing made sure of them where the stage needs any."""
        return self.envelope.items or []

    def elapsed_ms(self) -> float:
        """Wall time since the stage began."""
        return (time.perf_counter() - self.started) * 1000.0

    def left_ms(self) -> float:
        """What the stage may still use, ms: all until the deadline but what belongs to the stages after it."""
        return self.deadline.remaining_ms() - self.reserve_ms

    def read_ms(self) -> float:
        """Time for reads: their share, so that the fallback or the prediction still fits."""
        return self.left_ms() * self.read_share

    def predict_ms(self) -> float:
        """Time for the prediction: all that is left but the fallback's part."""
        return self.left_ms() - self.fallback_ms

    def degrade(self, stage: str, reason: str, action: str) -> None:
        """Notes a fallback of this stage."""
        self.degraded.append(Degraded(stage=stage, reason=reason, action=action))


class Stage(ABC):
    """One ranking stage. `run` answers within its budget and never raises for a fault of a dependency."""

    name: ClassVar[StageName]
    needs_items: ClassVar[bool] = True
    fallback_read_ms: ClassVar[float] = 0.0
    """Time for what the fallback itself has to read, kept back beside `Budgets.fallback_ms`."""

    def __init__(self, deps: StageDeps) -> None:
        self.deps = deps
        self._in_flight = 0

    async def run(self, envelope: Envelope) -> Envelope:
        """The envelope with this stage's candidates, scores, trace and fallbacks.

        Raises BadRequest for an unknown scene, and from a direct caller for a bundle that this stage does not serve.
        """
        run = self._begin(envelope)
        self._in_flight += 1
        try:
            outcome = await self._attempt(run)
        except StageFailure as failure:
            outcome = await self.fallback(run, failure.reason)
        except Exception:  # noqa: BLE001  # whatever it was: a stage that answers 500 ends the request
            _log.exception("a fault of our own, answered with the fallback")
            outcome = await self.fallback(run, "internal")
        finally:
            self._in_flight -= 1
        return self._finish(run, outcome)

    @abstractmethod
    async def work(self, run: Run) -> Outcome:
        """The stage's proper work. Raises StageFailure where it cannot be done in time."""

    @abstractmethod
    async def fallback(self, run: Run, reason: str) -> Outcome:
        """What is answered instead; notes itself with `run.degrade`. Never raises."""

    async def read(self, run: Run, entity: Entity, ids: Sequence[str]) -> Blocks:
        """The blocks of the views of this stage's feature service, by role. Raises StageFailure."""
        views = self.deps.bundle.features.of_stage(self.name, entity)
        now_s = run.context.now_s
        return await self.deps.guard.call(
            "features",
            lambda timeout_s: self.deps.reader.read(entity, views, ids, now_s=now_s, timeout_s=timeout_s),
            run.read_ms(),
        )

    async def predict(self, run: Run, inputs: Tensors) -> Tensors:
        """What the predictor makes of the inputs. Raises StageFailure."""
        return await self.deps.guard.call(
            "predictor", lambda timeout_s: self.deps.predict(inputs, timeout_s), run.predict_ms()
        )

    async def _attempt(self, run: Run) -> Outcome:
        if self._in_flight > self.deps.max_in_flight:
            raise StageFailure("overload", f"{self._in_flight} requests in flight")
        if run.misrouted:
            raise StageFailure("other_bundle", f"the request belongs to bundle {run.misrouted[:64]!r}")
        if run.predict_ms() <= 0.0:
            raise StageFailure("deadline", "no time left for this stage")
        return await self.work(run)

    def _begin(self, envelope: Envelope) -> Run:
        served = self.deps.bundle.version
        asked = envelope.bundle.of(self.name) if envelope.bundle else served
        # With an arm it comes from entry: a connection older than a promote leads here, no fault of the client.
        if asked != served and not envelope.arm:
            raise BadRequest(
                f"Unknown bundle {asked[:64]!r}, this {self.name} stage serves {served!r}", "$.bundle.version"
            )
        budgets = self.deps.budgets
        return Run(
            envelope=envelope,
            scene=self.deps.scenes.get(envelope.user.scene),
            context=context_of(envelope, self.deps.clock.now_s()),
            deadline=Deadline.of(
                envelope.deadline_ms, envelope.remaining_ms, whole_ms=budgets.whole, hop_ms=budgets.hop_ms
            ),
            reserve_ms=budgets.reserve_ms(self.name),
            fallback_ms=budgets.fallback_ms + self.fallback_read_ms,
            read_share=budgets.read_share,
            misrouted=asked if asked != served else "",
        )

    def _finish(self, run: Run, outcome: Outcome) -> Envelope:
        envelope = run.envelope
        envelope.items, envelope.scores = outcome.items, outcome.scores
        envelope.sources, envelope.coarse_scores = outcome.sources, outcome.coarse_scores
        envelope.bundle = envelope.bundle or BundleRef(version=self.deps.bundle.version)
        removed = {reason: len(ids) for reason, ids in outcome.removed.items() if ids}
        envelope.trace.append(
            TraceEntry(
                stage=self.name,
                ms=round(run.elapsed_ms(), 3),
                received=len(outcome.items) + sum(removed.values()),
                kept=len(outcome.items),
                removed=removed,
                short=outcome.short,
            )
        )
        envelope.degraded.extend(run.degraded)
        if envelope.record:
            self._record(run, outcome)
        if not isinstance(envelope.deadline_ms, UnsetType):
            envelope.remaining_ms = round(run.deadline.remaining_ms(), 3)
        return envelope

    def _record(self, run: Run, outcome: Outcome) -> None:
        record = StageRecord(
            stage=self.name,
            request_id=run.envelope.request_id,
            user_id=run.user_id,
            scene=run.envelope.user.scene,
            bundle=self.deps.bundle.version,
            at_ms=round(time.time() * 1000.0, 3),
            kept=outcome.items,
            scores=outcome.scores,
            sources=outcome.sources,
            removed={reason: ids for reason, ids in outcome.removed.items() if ids},
            degraded=run.degraded,
        )
        self.deps.cache.write_record(run.envelope.request_id, self.name, records.encode(record))


def context_of(envelope: Envelope, now_s: float) -> Context:
    """The moment of a request: the client's hour, weekday and device, else the data clock's (UTC)."""
    given = envelope.context
    device = given.get("device")
    base = Context.at(now_s)
    hour, weekday = given.get("hour"), given.get("weekday")
    return Context(
        hour=hour if isinstance(hour, int) else base.hour,
        weekday=weekday if isinstance(weekday, int) else base.weekday,
        device=device if isinstance(device, str) else "",
        scene=envelope.user.scene,
        now_s=now_s,
    )


def scores_of(outputs: Tensors, rows: int) -> npt.NDArray[np.float64]:
    """The predictor's `score`, float64[rows]; may still hold NaN. Raises StageFailure where it does not fit.

    An answer in which nothing is finite is a fault of the predictor, not of the items.
    """
    score = outputs.get("score")
    if score is None or score.shape != (rows,) or score.dtype.kind != "f":
        shape = None if score is None else f"{score.dtype}{list(score.shape)}"
        raise StageFailure("predictor_bad_output", f"expected float score[{rows}], got {shape}")
    if rows and not np.isfinite(score).any():
        raise StageFailure("predictor_bad_output", "no finite score")
    return score.astype(np.float64)


def take(column: Sequence[T] | None, rows: Sequence[int]) -> list[T] | None:
    """The given rows of a column that may be absent."""
    return None if column is None else [column[row] for row in rows]
