"""Two arms side by side, out of what their pods show to Prometheus, and whether the canary is worse."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from recgraph.release.arms import CANARY, STABLE

Sample = tuple[str, tuple[tuple[str, str], ...]]
Counters = dict[Sample, float]
"""Values by name and sorted labels."""
_PREFIX: Final = "recgraph_"
_STANDARD_ERRORS: Final = 3.0


@dataclass(frozen=True)
class Limits:
    """How much worse a canary may be. Shares are of the requests, in addition to the stable arm's own."""

    min_samples: int = 200
    p99_ratio: float = 1.25
    errors: float = 0.001
    degraded: float = 0.01
    empty: float = 0.001
    missing_features: float = 0.02
    score_drift: float = 0.2
    """Relative difference of the mean score."""


@dataclass(frozen=True)
class ArmStats:
    """What one arm did. Times in ms, None without a request; `share` of all requests; counts are of requests."""

    arm: str
    bundles: tuple[str, ...]
    requests: int
    share: float
    p50: float | None
    p99: float | None
    errors: int
    degraded: int
    empty: int
    mean_score: float | None
    missing_features: float | None
    """Share of the entities read that had no features or stale ones."""


@dataclass(frozen=True)
class Check:
    """One comparison; `ok` None where there is nothing to compare."""

    name: str
    stable: float | None
    canary: float | None
    limit: float
    ok: bool | None


@dataclass(frozen=True)
class Comparison:
    """Both arms and the verdict: `met`, `worse`, or `too few requests`."""

    arms: tuple[ArmStats, ArmStats]
    checks: tuple[Check, ...]
    verdict: str


@dataclass
class _Sums:
    """One arm's sums over pods."""

    buckets: dict[float, float] = field(default_factory=lambda: defaultdict(float))
    values: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    bundles: set[str] = field(default_factory=set)


def parse(text: str) -> Counters:
    """The samples of ours in what a pod shows."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        if family.name.startswith(_PREFIX)
        for sample in family.samples
    }


def since(before: Counters, after: Counters) -> Counters:
    """What was counted in between; a counter that went back (a restarted process) counts from zero."""
    return {
        key: value - before.get(key, 0.0) if value >= before.get(key, 0.0) else value for key, value in after.items()
    }


def compare(
    pods: Iterable[Counters],
    limits: Limits,
    canary_features: tuple[str, frozenset[str]] = ("", frozenset()),
    bundles: Mapping[str, frozenset[str]] | None = None,
) -> Comparison:
    """Stable and canary over all pods. `canary_features` is the canary's bundle and the stages that it covers.

    `bundles` has the bundles that count, by arm: a stable pod still shows what it served when it was the canary.
    """
    sums = {STABLE: _Sums(), CANARY: _Sums()}
    features = {STABLE: [0.0, 0.0], CANARY: [0.0, 0.0]}
    bundle, stages = canary_features
    for counters in pods:
        for (name, labels), value in counters.items():
            known = dict(labels)
            if name == "recgraph_features_total" and known["stage"] in stages:
                arm = CANARY if known["bundle"] == bundle else STABLE
                features[arm][0] += value
                features[arm][1] += 0.0 if known["state"] == "ok" else value
            elif known.get("arm") in sums and (bundles is None or known["bundle"] in bundles[known["arm"]]):
                _add(sums[known["arm"]], name, known, value)
    total = sum(one.values["requests"] for one in sums.values())
    stable, canary = (_stats(arm, sums[arm], total, *features[arm]) for arm in (STABLE, CANARY))
    checks = _checks(stable, canary, limits)
    return Comparison((stable, canary), checks, _verdict(stable, canary, checks, limits))


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """A quantile of a cumulative histogram, linear within its bucket, as Prometheus's histogram_quantile."""
    edges = sorted(buckets)
    if not edges or not buckets[edges[-1]]:
        return None
    wanted = share * buckets[edges[-1]]
    low, below = 0.0, 0.0
    for edge in edges:
        if buckets[edge] >= wanted:
            if math.isinf(edge):
                return low
            inside = buckets[edge] - below
            return low + (edge - low) * ((wanted - below) / inside if inside else 1.0)
        low, below = edge, buckets[edge]
    return low


def _add(sums: _Sums, name: str, labels: dict[str, str], value: float) -> None:
    if name == "recgraph_answer_seconds_bucket":
        sums.buckets[float(labels["le"])] += value
    elif name == "recgraph_answer_seconds_count":
        sums.values["requests"] += value
        if value:
            sums.bundles.add(labels["bundle"])
    elif name == "recgraph_errors_total":
        sums.values["errors"] += 0.0 if labels["reason"].startswith("http_") else value
    elif name in _OF_ANSWERS:
        sums.values[_OF_ANSWERS[name]] += value


_OF_ANSWERS: Final = {
    "recgraph_answers_degraded_total": "degraded",
    "recgraph_empty_pages_total": "empty",
    "recgraph_answer_score_sum": "score_sum",
    "recgraph_answer_score_count": "score_count",
}


def _stats(arm: str, sums: _Sums, total: float, read: float, not_ok: float) -> ArmStats:
    values = sums.values
    p50, p99 = (quantile(sums.buckets, share) for share in (0.5, 0.99))
    return ArmStats(
        arm=arm,
        bundles=tuple(sorted(sums.bundles)),
        requests=int(values["requests"]),
        share=values["requests"] / total if total else 0.0,
        p50=None if p50 is None else p50 * 1000.0,
        p99=None if p99 is None else p99 * 1000.0,
        errors=int(values["errors"]),
        degraded=int(values["degraded"]),
        empty=int(values["empty"]),
        mean_score=values["score_sum"] / values["score_count"] if values["score_count"] else None,
        missing_features=not_ok / read if read else None,
    )


def _checks(stable: ArmStats, canary: ArmStats, limits: Limits) -> tuple[Check, ...]:
    rates = [
        _rate(name, getattr(stable, name), stable.requests, getattr(canary, name), canary.requests, limit)
        for name, limit in (("errors", limits.errors), ("degraded", limits.degraded), ("empty", limits.empty))
    ]
    return (
        _ratio("p99", stable.p99, canary.p99, limits.p99_ratio),
        *rates,
        _drift(stable.mean_score, canary.mean_score, limits.score_drift),
        _above("missing_features", stable.missing_features, canary.missing_features, limits.missing_features),
    )


def _rate(name: str, bad: int, of: int, canary_bad: int, canary_of: int, limit: float) -> Check:
    """Worse where the canary's share exceeds the stable one by the limit, and by more than chance explains.

    Chance: three standard errors of a difference of two proportions, of the pooled share.
    """
    if not of or not canary_of:
        return Check(name, None, None, limit, None)
    stable, canary = bad / of, canary_bad / canary_of
    pooled = (bad + canary_bad) / (of + canary_of)
    error = math.sqrt(max(pooled * (1.0 - pooled), 0.0) * (1.0 / of + 1.0 / canary_of))
    return Check(name, stable, canary, limit, canary - stable <= max(limit, _STANDARD_ERRORS * error))


def _ratio(name: str, stable: float | None, canary: float | None, limit: float) -> Check:
    comparable = stable and canary is not None
    return Check(name, stable, canary, limit, canary <= stable * limit if comparable else None)  # type: ignore[operator]


def _drift(stable: float | None, canary: float | None, limit: float) -> Check:
    if not stable or canary is None:
        return Check("mean_score", stable, canary, limit, None)
    return Check("mean_score", stable, canary, limit, abs(canary - stable) <= limit * abs(stable))


def _above(name: str, stable: float | None, canary: float | None, limit: float) -> Check:
    if stable is None or canary is None:
        return Check(name, stable, canary, limit, None)
    return Check(name, stable, canary, limit, canary - stable <= limit)


def _verdict(stable: ArmStats, canary: ArmStats, checks: Iterable[Check], limits: Limits) -> str:
    if min(stable.requests, canary.requests) < limits.min_samples:
        return "too few requests"
    return "worse" if any(check.ok is False for check in checks) else "met"
