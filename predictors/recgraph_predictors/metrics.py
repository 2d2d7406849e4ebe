"""Prometheus counters of the stages; the SDK serves them under /metrics."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import Counter, Histogram

from recgraph.contract import Degraded, Envelope

_REQUESTS = Counter("recgraph_requests", "Requests answered, by stage and status", ["stage", "status"])
_DEGRADED = Counter("recgraph_degraded", "Fallbacks, by stage, reason and action", ["stage", "reason", "action"])
_REMOVED = Counter("recgraph_removed_candidates", "Candidates removed, by stage and reason", ["stage", "reason"])
_SHORT = Counter("recgraph_short_pages", "Pages that could not be filled", ["stage"])
_SECONDS = Histogram(
    "recgraph_stage_seconds",
    "Wall time of a stage in seconds",
    ["stage"],
    buckets=(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.2, 0.5),
)


def count(stage: str, envelope: Envelope, fallbacks: Sequence[Degraded]) -> None:
    """Counts one answered request; `fallbacks` are those of this stage."""
    _REQUESTS.labels(stage, "200").inc()
    for entry in fallbacks:
        _DEGRADED.labels(entry.stage, entry.reason, entry.action).inc()
    if envelope.trace and envelope.trace[-1].stage == stage:
        last = envelope.trace[-1]
        _SECONDS.labels(stage).observe(last.ms / 1000.0)
        for reason, removed in last.removed.items():
            _REMOVED.labels(stage, reason).inc(removed)
        if last.short:
            _SHORT.labels(stage).inc()


def refused(stage: str, status: int) -> None:
    """Counts one request that was the client's fault."""
    _REQUESTS.labels(stage, str(status)).inc()
