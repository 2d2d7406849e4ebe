"""What a scrape shows after requests of both arms."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from recgraph.cache import BackgroundWrites
from recgraph.contract import BundleRef, Degraded, Envelope, TraceEntry, User
from recgraph.errors import BadRequest
from recgraph.features.reader import ViewBlock
from recgraph.features.schema import Entity, ViewSchema
from recgraph.metrics import CountingReader, StageMetrics, arm_of_request, arm_of_stage, watch_writes
from recgraph.release.arms import Arms, Layer, assign

_numbers = iter(range(1000))
CANARY = {"cascade": {"canary": True}}
STABLE = {"cascade": {"stable": True}}


@pytest.fixture
def bundle() -> str:
    """A bundle label of the test's own: the registry is the process's."""
    return f"b{next(_numbers)}"


def _value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def _envelope(**more: Any) -> Envelope:
    return Envelope(request_id="r", user=User(user_id="u", scene="s"), **more)


def test_a_stage_counts_by_arm_bundle_and_reason(bundle: str) -> None:
    counts = StageMetrics("fine", bundle, whole_ms=100.0)
    trace = [TraceEntry(stage="fine", ms=4.0, received=5, kept=3, removed={"below": 2})]
    fallbacks = [Degraded(stage="fine", reason="deadline", action="a")]
    counts.answered(_envelope(arm=CANARY, items=["a", "b"], scores=[0.2, 0.4], trace=trace), fallbacks)
    counts.answered(_envelope(arm=STABLE, items=["a"], trace=trace), [])
    canary = {"stage": "fine", "arm": "canary", "bundle": bundle}
    assert _value("recgraph_requests_total", **canary) == 1
    assert _value("recgraph_requests_total", **canary | {"arm": "stable"}) == 1
    assert _value("recgraph_degraded_total", **canary, reason="deadline") == 1
    assert _value("recgraph_stage_seconds_bucket", **canary, le="0.003") == 0
    assert _value("recgraph_stage_seconds_bucket", **canary, le="0.005") == 1
    assert _value("recgraph_candidates_in_total", **canary) == 5
    assert _value("recgraph_candidates_out_total", **canary) == 3
    assert _value("recgraph_candidates_removed_total", **canary, reason="below") == 2
    assert _value("recgraph_mean_score_sum", **canary) == pytest.approx(0.3)
    assert _value("recgraph_mean_score_count", **canary) == 1


def test_rerank_counts_pages_and_the_whole_time(bundle: str) -> None:
    counts = StageMetrics("rerank", bundle, whole_ms=100.0)
    short = [TraceEntry(stage="rerank", ms=1.0, received=0, kept=0, short=20)]
    earlier = [Degraded(stage="recall", reason="deadline", action="a")]
    counts.answered(_envelope(arm=CANARY, remaining_ms=58.0, items=[], trace=short, degraded=earlier), [])
    labels = {"arm": "canary", "bundle": bundle}
    for name in ("recgraph_answers_degraded_total", "recgraph_empty_pages_total", "recgraph_short_pages_total"):
        assert _value(name, **labels) == 1, name
    assert _value("recgraph_answer_seconds_sum", **labels) == pytest.approx(0.042)
    assert _value("recgraph_degraded_total", stage="rerank", **labels, reason="deadline") == 0, "recall's, not rerank's"


def test_entry_counts_under_the_bundle_that_it_assigned(bundle: str) -> None:
    StageMetrics("entry", whole_ms=100.0).answered(_envelope(arm=STABLE, bundle=BundleRef(version=bundle)), [])
    assert _value("recgraph_requests_total", stage="entry", arm="stable", bundle=bundle) == 1


def test_errors_are_ours_or_the_clients(bundle: str) -> None:
    counts = StageMetrics("coarse", bundle, whole_ms=100.0)
    with pytest.raises(ZeroDivisionError), counts.failures(_envelope(arm=CANARY)):
        raise ZeroDivisionError
    with pytest.raises(BadRequest), counts.failures(_envelope(arm=CANARY)):
        raise BadRequest("no", "$")
    counts.refused(BadRequest("no", "$"))
    labels = {"stage": "coarse", "bundle": bundle}
    assert _value("recgraph_errors_total", **labels, arm="canary", reason="internal") == 1
    assert _value("recgraph_errors_total", **labels, arm="none", reason="http_400") == 1


def test_what_a_client_sends_becomes_no_label(bundle: str) -> None:
    counts = StageMetrics("fine", bundle, whole_ms=100.0)
    for number in range(50):
        envelope = _envelope(arm={"fine": {f"x{number}": True}}, bundle=BundleRef(version=f"odd{number}"))
        counts.answered(envelope, [])
    assert _value("recgraph_requests_total", stage="fine", arm="none", bundle=bundle) == 50
    assert b"odd1" not in generate_latest(REGISTRY)


def test_arms_of_stages_and_requests() -> None:
    layers = {"cascade": Layer(stable="v1"), "fine": Layer(stable="v1", canary="v2", weight=100.0)}
    single = _envelope(arm=assign(Arms(version=1, layers=layers), "u").arm)
    assert [arm_of_stage(single, stage) for stage in ("recall", "fine")] == ["stable", "canary"]
    assert arm_of_request(single) == "canary"
    assert [arm_of_stage(_envelope(arm=CANARY), stage) for stage in ("recall", "fine")] == ["canary", "canary"]
    assert (arm_of_request(_envelope(arm=STABLE)), arm_of_request(_envelope())) == ("stable", "none")


async def test_features_are_counted_by_state(bundle: str) -> None:
    class Reader:
        async def read(
            self, entity: Entity, views: Sequence[ViewSchema], ids: Sequence[str], *, now_s: float, timeout_s: float
        ) -> dict[str, ViewBlock]:
            missing, stale = np.array([True, False, False, False]), np.array([False, True, True, False])
            return {"item_stats": ViewBlock(4, {}, missing, stale, np.zeros(4, np.int64))}

    reader = CountingReader(Reader(), "fine", bundle)
    await reader.read("item", [], ["a"], now_s=0.0, timeout_s=1.0)
    with StageMetrics("fine", bundle, whole_ms=100.0).failures(_envelope(arm=CANARY)):
        (blocks,) = await asyncio.gather(reader.read("item", [], ["a"] * 4, now_s=0.0, timeout_s=1.0))
    assert list(blocks) == ["item_stats"]
    labels = {"stage": "fine", "bundle": bundle, "view": "item_stats"}
    found = {
        state: _value("recgraph_features_total", **labels, arm="canary", state=state)
        for state in ("ok", "missing", "stale")
    }
    assert _value("recgraph_features_total", **labels, arm="none", state="stale") == 2
    assert found == {"ok": 1, "missing": 1, "stale": 2}


def test_lost_background_writes_are_shown() -> None:
    registry, writes = CollectorRegistry(), BackgroundWrites()
    watch_writes("rerank", writes, registry)
    writes.dropped, writes.failed = 3, 2
    shown = generate_latest(registry).decode()
    assert 'recgraph_background_writes_lost_total{reason="dropped",stage="rerank"} 3.0' in shown
    assert 'recgraph_background_writes_lost_total{reason="failed",stage="rerank"} 2.0' in shown
