"""From what pods show to a verdict."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY, generate_latest

from recgraph.contract import Degraded, Envelope, TraceEntry, User
from recgraph.metrics import StageMetrics
from recgraph.release.compare import Comparison, Counters, Limits, compare, parse, quantile, since

LIMITS = Limits(min_samples=100)
EDGES = ("0.02", "0.04", "0.08", "+Inf")


def _arm(
    arm: str,
    requests: int = 1000,
    slow: int = 0,
    degraded: int = 0,
    empty: int = 0,
    errors: int = 0,
    score: float = 0.5,
) -> Counters:
    """A pod's counters: `slow` requests took 40 to 80 ms, the others 20 to 40."""
    answer = (("arm", arm), ("bundle", "v"))
    stage = (*answer, ("stage", "fine"))
    cumulative = dict(zip(EDGES, (0, requests - slow, requests, requests), strict=True))
    named = {("recgraph_answer_seconds_bucket", (*answer, ("le", edge))): float(n) for edge, n in cumulative.items()}
    return named | {
        ("recgraph_answer_seconds_count", answer): float(requests),
        ("recgraph_answers_degraded_total", answer): float(degraded),
        ("recgraph_empty_pages_total", answer): float(empty),
        ("recgraph_answer_score_sum", answer): score * requests,
        ("recgraph_answer_score_count", answer): float(requests),
        ("recgraph_errors_total", (*answer, ("reason", "internal"), ("stage", "fine"))): float(errors),
        ("recgraph_errors_total", (*answer, ("reason", "http_400"), ("stage", "fine"))): 77.0,
        ("recgraph_requests_total", stage): float(requests),
    }


def _failed(comparison: Comparison) -> list[str]:
    return [check.name for check in comparison.checks if check.ok is False]


def test_equal_arms_are_met() -> None:
    found = compare([_arm("stable", 9000, slow=90), _arm("canary", 1000, slow=10)], LIMITS)
    assert (found.verdict, _failed(found)) == ("met", [])
    stable, canary = found.arms
    assert (stable.requests, canary.requests) == (9000, 1000)
    assert canary.share == pytest.approx(0.1)
    assert canary.p50 == pytest.approx(20.0 + 20.0 * 500 / 990)
    assert canary.p99 == pytest.approx(40.0)
    assert (canary.errors, canary.mean_score, canary.bundles) == (0, pytest.approx(0.5), ("v",))


@pytest.mark.parametrize(
    ("worse", "name"),
    [
        ({"slow": 400}, "p99"),
        ({"errors": 20}, "errors"),
        ({"degraded": 60}, "degraded"),
        ({"empty": 20}, "empty"),
        ({"score": 0.2}, "mean_score"),
        ({"score": 0.9}, "mean_score"),
    ],
)
def test_a_canary_that_is_worse_is_told_by_what(worse: dict[str, float], name: str) -> None:
    found = compare([_arm("stable", 9000), _arm("canary", 1000, **worse)], LIMITS)  # type: ignore[arg-type]
    assert (found.verdict, _failed(found)) == ("worse", [name])
    better = compare([_arm("stable", 9000, **worse), _arm("canary", 1000)], LIMITS)  # type: ignore[arg-type]
    assert set(_failed(better)) <= {"mean_score"}, "a better canary is not worse; a drift is one in both directions"


def test_what_chance_explains_is_not_worse() -> None:
    found = compare([_arm("stable", 300), _arm("canary", 300, errors=1)], LIMITS)
    assert found.verdict == "met"


def test_too_few_requests_decide_nothing() -> None:
    found = compare([_arm("stable"), _arm("canary", 99, errors=99)], LIMITS)
    assert found.verdict == "too few requests"
    assert compare([], LIMITS).verdict == "too few requests"


def test_pods_add_up() -> None:
    found = compare([_arm("stable", 500), _arm("stable", 700), _arm("canary", 300)], LIMITS)
    assert found.arms[0].requests == 1200
    assert found.arms[1].share == pytest.approx(0.2)


def test_what_a_pod_served_under_another_arm_does_not_count() -> None:
    def of(bundle: str, counters: Counters) -> Counters:
        return {
            (name, tuple((k, bundle if k == "bundle" else v) for k, v in labels)): value
            for (name, labels), value in counters.items()
        }

    once_canary = of("v1", _arm("stable", 500)) | of("v1", _arm("canary", 900, errors=90))
    bundles = {"stable": frozenset({"v1"}), "canary": frozenset({"v2"})}
    found = compare([once_canary, of("v2", _arm("canary", 300))], LIMITS, bundles=bundles)
    assert [(arm.requests, arm.errors, arm.bundles) for arm in found.arms] == [(500, 0, ("v1",)), (300, 0, ("v2",))]


def test_features_count_for_the_bundle_and_the_stages_that_the_canary_covers() -> None:
    def features(stage: str, bundle: str, ok: float, missing: float) -> Counters:
        labels = (("bundle", bundle), ("stage", stage), ("view", "item_stats"))
        return {
            ("recgraph_features_total", (*labels[:2], ("state", state), labels[2])): value
            for state, value in (("ok", ok), ("missing", missing))
        }

    pods = [
        _arm("stable") | features("fine", "v1", 90, 10) | features("recall", "v1", 0, 100),
        _arm("canary") | features("fine", "v2", 50, 50),
    ]
    found = compare(pods, LIMITS, ("v2", frozenset({"fine"})))
    assert [arm.missing_features for arm in found.arms] == [0.1, 0.5]
    assert _failed(found) == ["missing_features"]
    assert compare(pods, replace(LIMITS, missing_features=0.5), ("v2", frozenset({"fine"}))).verdict == "met"


def test_since_counts_what_came_between_and_restarts_from_zero() -> None:
    before, after = _arm("canary", 1000, slow=5), _arm("canary", 1500, slow=9)
    assert compare([since(before, after)], LIMITS).arms[1].requests == 500
    assert compare([since(after, before)], LIMITS).arms[1].requests == 1000


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.floats(0.01, 0.99))
def test_a_quantile_lies_in_the_bucket_that_holds_it(counts: list[int], share: float) -> None:
    edges = [1.0, 2.0, 4.0, math.inf]
    total = sum(counts)
    found = quantile({edge: float(sum(counts[: i + 1])) for i, edge in enumerate(edges)}, share)
    if not total:
        assert found is None
        return
    bucket = next(i for i in range(4) if sum(counts[: i + 1]) >= share * total)
    assert found is not None
    low = 0.0 if bucket == 0 else edges[bucket - 1]
    assert low <= found <= (edges[bucket] if bucket < 3 else 4.0)


def test_it_reads_what_the_stages_really_show() -> None:
    counts = StageMetrics("rerank", "compare-test", whole_ms=100.0)
    for number in range(10):
        envelope = Envelope(
            request_id="r",
            user=User(user_id="u", scene="s"),
            arm={"cascade": {"canary": True}},
            items=["a"] if number else [],
            scores=[0.25] if number else [],
            remaining_ms=45.0,
            trace=[TraceEntry(stage="rerank", ms=1.0, received=1, kept=1)],
            degraded=[] if number else [Degraded(stage="fine", reason="deadline", action="a")],
        )
        counts.answered(envelope, [])
    shown = parse(generate_latest(REGISTRY).decode())
    mine = {key: value for key, value in shown.items() if ("bundle", "compare-test") in key[1]}
    canary = compare([mine], LIMITS).arms[1]
    assert (canary.requests, canary.degraded, canary.empty, canary.errors) == (10, 1, 1, 0)
    assert canary.mean_score == pytest.approx(0.25)
    assert canary.p50 == pytest.approx(55.0, abs=5.0)
