"""Prometheus metrics of the stages. The SDK's server shows them under /metrics, on the port of the stage.

Labels: `stage`; `arm` (stable, canary, or none for a request that did not come through entry); `bundle`, the one that
the process serves; `reason`, codes of our own. Nothing that a client sends becomes a label, so that the number of
series stays bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Final

import numpy as np
from msgspec import UnsetType
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Summary
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from recgraph.cache import BackgroundWrites
from recgraph.contract import Degraded, Envelope
from recgraph.errors import ClientError
from recgraph.features.reader import FeatureReader, ViewBlock
from recgraph.features.schema import Entity, ViewSchema
from recgraph.release.arms import CANARY, CASCADE, STABLE
from recgraph.release.store import ArmsWatch
from recgraph.stages.base import StageDeps

LAST: Final = "rerank"
NONE: Final = "none"
BUCKETS: Final = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.05, 0.06),
    *(0.07, 0.08, 0.09, 0.1, 0.125, 0.15, 0.2, 0.3, 0.5, 1.0),
)
"""Seconds; close together where the stages' budgets (3 to 40 ms) and the whole (80 and 100 ms) lie."""

_OF_STAGE: Final = ("stage", "arm", "bundle")
_REQUESTS = Counter("recgraph_requests", "Requests answered by a stage", _OF_STAGE)
_ERRORS = Counter("recgraph_errors", "Requests that a stage did not answer with 200", (*_OF_STAGE, "reason"))
_DEGRADED = Counter("recgraph_degraded", "Fallbacks of a stage", (*_OF_STAGE, "reason"))
_SECONDS = Histogram("recgraph_stage_seconds", "Wall time of a stage", _OF_STAGE, buckets=BUCKETS)
_RECEIVED = Counter("recgraph_candidates_in", "Candidates that a stage received", _OF_STAGE)
_KEPT = Counter("recgraph_candidates_out", "Candidates that a stage passed on", _OF_STAGE)
_REMOVED = Counter("recgraph_candidates_removed", "Candidates that a stage removed", (*_OF_STAGE, "reason"))
_SCORE = Summary("recgraph_mean_score", "Mean score of a request's candidates after a stage", _OF_STAGE)

_OF_ANSWER: Final = ("arm", "bundle")
_WHOLE = Histogram("recgraph_answer_seconds", "From entry to the end of rerank", _OF_ANSWER, buckets=BUCKETS)
_ANSWERS_DEGRADED = Counter("recgraph_answers_degraded", "Pages with a fallback of any stage", _OF_ANSWER)
_ANSWER_SCORE = Summary("recgraph_answer_score", "Mean score of a page without a fallback", _OF_ANSWER)
_EMPTY = Counter("recgraph_empty_pages", "Pages without an item", _OF_ANSWER)
_SHORT = Counter("recgraph_short_pages", "Pages that could not be filled", _OF_ANSWER)

_FEATURES = Counter("recgraph_features", "Entities read, by state: ok, missing, stale", (*_OF_STAGE, "view", "state"))
# A reader is not told whom it reads for; its tasks have the context of their request.
_arm: ContextVar[str] = ContextVar("arm", default=NONE)
_ARMS_VERSION = Gauge("recgraph_arms_version", "Version of the arms that this entry goes by")
_ARMS_AGE = Gauge("recgraph_arms_age_seconds", "Since the cache Redis last confirmed the arms")


def arm_of_stage(envelope: Envelope, stage: str) -> str:
    """The arm in which a stage serves this request; whatever else an envelope says counts as none."""
    if CANARY in envelope.arm.get(CASCADE, {}):
        return CANARY
    arm = envelope.arm.get(stage) or envelope.arm.get(CASCADE, {})
    return CANARY if CANARY in arm else STABLE if STABLE in arm else NONE


def arm_of_request(envelope: Envelope) -> str:
    """Canary where a canary serves any layer of this request."""
    if any(CANARY in arm for arm in envelope.arm.values()):
        return CANARY
    return STABLE if STABLE in envelope.arm.get(CASCADE, {}) else NONE


class StageMetrics:
    """What one process counts about its stage. `bundle` empty: entry, whose requests are of whatever it assigned.

    `whole_ms` is the budget of a whole request: what an envelope's `remaining_ms` counts down from.
    """

    def __init__(self, stage: str, bundle: str = "", *, whole_ms: float) -> None:
        self._stage = stage
        self._bundle = bundle
        self._whole_ms = whole_ms

    def answered(self, envelope: Envelope, fallbacks: Sequence[Degraded]) -> None:
        """Counts one answer. `fallbacks` are this stage's."""
        labels = self._labels(envelope)
        _REQUESTS.labels(*labels).inc()
        for entry in fallbacks:
            _DEGRADED.labels(*labels, entry.reason).inc()
        self._count_trace(envelope, labels)
        if envelope.scores:
            _SCORE.labels(*labels).observe(sum(envelope.scores) / len(envelope.scores))
        if self._stage == LAST:
            self._count_page(envelope, labels[2])

    def refused(self, error: ClientError) -> None:
        """Counts one request that was the client's fault; its arm is not known."""
        _ERRORS.labels(self._stage, NONE, self._bundle, f"http_{error.status}").inc()

    @contextmanager
    def failures(self, envelope: Envelope) -> Iterator[None]:
        """Counts what leaves the block as an exception that is nobody's but ours, and lets it pass.

        What is read inside counts under the request's arm.
        """
        token = _arm.set(arm_of_stage(envelope, self._stage))
        try:
            yield
        except ClientError:
            raise
        except Exception:
            _ERRORS.labels(*self._labels(envelope), "internal").inc()
            raise
        finally:
            _arm.reset(token)

    def _labels(self, envelope: Envelope) -> tuple[str, str, str]:
        bundle = self._bundle or (envelope.bundle.version if envelope.bundle else "")
        return self._stage, arm_of_stage(envelope, self._stage), bundle

    def _count_trace(self, envelope: Envelope, labels: tuple[str, str, str]) -> None:
        if not envelope.trace or envelope.trace[-1].stage != self._stage:
            return
        last = envelope.trace[-1]
        _SECONDS.labels(*labels).observe(last.ms / 1000.0)
        _RECEIVED.labels(*labels).inc(last.received)
        _KEPT.labels(*labels).inc(last.kept)
        for reason, removed in last.removed.items():
            _REMOVED.labels(*labels, reason).inc(removed)

    def _count_page(self, envelope: Envelope, bundle: str) -> None:
        labels = arm_of_request(envelope), bundle
        if not isinstance(envelope.remaining_ms, UnsetType):
            _WHOLE.labels(*labels).observe(max(0.0, self._whole_ms - envelope.remaining_ms) / 1000.0)
        if envelope.degraded:
            _ANSWERS_DEGRADED.labels(*labels).inc()
        elif envelope.scores:
            _ANSWER_SCORE.labels(*labels).observe(sum(envelope.scores) / len(envelope.scores))
        if not envelope.items:
            _EMPTY.labels(*labels).inc()
        if envelope.trace and envelope.trace[-1].short:
            _SHORT.labels(*labels).inc()


class CountingReader:
    """A reader that counts what it found: entities with features, without, and with features that are too old."""

    def __init__(self, reader: FeatureReader, stage: str, bundle: str) -> None:
        self._reader = reader
        self._stage = stage
        self._bundle = bundle

    async def read(
        self, entity: Entity, views: Sequence[ViewSchema], ids: Sequence[str], *, now_s: float, timeout_s: float
    ) -> dict[str, ViewBlock]:
        """See FeatureReader."""
        blocks = await self._reader.read(entity, views, ids, now_s=now_s, timeout_s=timeout_s)
        labels = self._stage, _arm.get(), self._bundle
        for role, block in blocks.items():
            missing, stale = int(np.count_nonzero(block.missing)), int(np.count_nonzero(block.stale))
            for state, count in (("ok", block.rows - missing - stale), ("missing", missing), ("stale", stale)):
                _FEATURES.labels(*labels, role, state).inc(count)
        return blocks


def counting(deps: StageDeps, stage: str) -> StageDeps:
    """The dependencies with a reader that counts."""
    return replace(deps, reader=CountingReader(deps.reader, stage, deps.bundle.version))


class _WritesCollector(Collector):
    """Reads the counters that the background writes keep anyway, when somebody scrapes."""

    def __init__(self, stage: str, writes: BackgroundWrites) -> None:
        self._stage = stage
        self._writes = writes

    def collect(self) -> Iterator[CounterMetricFamily]:
        """One family, a value per outcome."""
        family = CounterMetricFamily(
            "recgraph_background_writes_lost", "Writes to the cache that did not happen", labels=["stage", "reason"]
        )
        family.add_metric([self._stage, "dropped"], self._writes.dropped)
        family.add_metric([self._stage, "failed"], self._writes.failed)
        yield family


def watch_writes(stage: str, writes: BackgroundWrites, registry: CollectorRegistry = REGISTRY) -> None:
    """Shows the writes that were dropped for want of room, and those that failed."""
    registry.register(_WritesCollector(stage, writes))


def watch_arms(watch: ArmsWatch) -> None:
    """Shows which arms an entry goes by, and since when nobody has confirmed them."""
    _ARMS_VERSION.set_function(lambda: float(watch.current.version))
    _ARMS_AGE.set_function(lambda: watch.age_s)
