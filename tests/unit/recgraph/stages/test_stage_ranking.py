"""Coarse and fine, and what every stage does about time, bundles and bad models."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recgraph.contract import BundleRef
from recgraph.errors import BadRequest, StageFailure
from recgraph.scenes import Scene
from recgraph.settings import Budgets
from recgraph.stages import Tensors
from recgraph.stages.coarse import cut

ITEMS = [f"i{number}" for number in range(10)]


def _scores(values: list[float]) -> Any:
    return lambda _: {"score": np.array(values, np.float32)}


async def test_coarse_keeps_the_best_and_says_what_it_cut(kit: Any, numbered: Any) -> None:
    kit.scene = Scene(coarse_keep=3)
    envelope = await kit.stage("coarse", numbered).run(kit.envelope(ITEMS, sources=[f"s{item}" for item in ITEMS]))
    assert envelope.items == ["i9", "i8", "i7"]
    assert envelope.sources == ["si9", "si8", "si7"]
    assert envelope.scores == envelope.coarse_scores == pytest.approx([0.009, 0.008, 0.007])
    assert envelope.trace[-1].removed == {"below_cut": 7}


async def test_coarse_keeps_duplicates_and_pinned_items(kit: Any, numbered: Any) -> None:
    kit.scene = Scene(coarse_keep=3)
    envelope = await kit.stage("coarse", _scores([0.5, 0.1, 0.5])).run(kit.envelope(["i5", "i1", "i5"]))
    assert envelope.items == ["i5", "i5", "i1"]
    sources = ["pin", *["ann"] * 9]
    envelope = await kit.stage("coarse", numbered).run(kit.envelope(ITEMS, sources=sources))
    assert envelope.items == ["i9", "i8", "i0"]


@pytest.mark.parametrize("answer", [StageFailure("predictor_unavailable"), None])
async def test_coarse_falls_back_to_the_order_of_recall(kit: Any, answer: Any) -> None:
    kit.scene, kit.budgets = Scene(coarse_keep=3), Budgets()
    envelope = await kit.stage("coarse", answer).run(kit.envelope(ITEMS))
    assert (envelope.items, envelope.scores) == (["i0", "i1", "i2"], None)
    assert envelope.degraded[0].action == "order_of_recall"
    assert envelope.trace[-1].removed == {"below_cut": 7}


async def test_fine_answers_every_item_in_its_place(kit: Any, numbered: Any) -> None:
    items = ["i3", "i9", "i3", "i0"]
    envelope = await kit.stage("fine", numbered).run(kit.envelope(items, coarse_scores=[4.0, 3.0, 2.0, 1.0]))
    assert envelope.items == items
    assert envelope.scores == pytest.approx([0.003, 0.009, 0.003, 0.0])
    assert envelope.coarse_scores == [4.0, 3.0, 2.0, 1.0]
    assert (envelope.trace[-1].received, envelope.trace[-1].kept) == (4, 4)
    assert len(kit.offered) == 1, "one forward pass"


async def test_fine_falls_back_to_the_order_of_coarse(kit: Any) -> None:
    envelope = await kit.stage("fine", StageFailure("predictor_error")).run(kit.envelope(ITEMS))
    assert envelope.items == ITEMS
    assert envelope.scores == sorted(envelope.scores, reverse=True)
    assert len(set(envelope.scores)) == 10
    assert [(each.stage, each.reason, each.action) for each in envelope.degraded] == [
        ("fine", "predictor_error", "order_of_coarse")
    ]


async def test_what_is_not_finite_never_wins_and_never_leaves(kit: Any) -> None:
    values = [0.2, float("nan"), float("inf"), -float("inf"), 0.1]
    envelope = await kit.stage("fine", _scores(values)).run(kit.envelope(ITEMS[:5]))
    assert envelope.scores == pytest.approx([0.2, 0.0, 0.0, 0.0, 0.1])
    assert envelope.degraded[0].reason == "predictor_not_finite"
    envelope = await kit.stage("coarse", _scores(values)).run(kit.envelope(ITEMS[:5]))
    assert envelope.items == ["i0", "i4"]
    assert envelope.trace[-1].removed == {"not_finite": 3}


@pytest.mark.parametrize("stage", ["coarse", "fine"])
@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"score": np.zeros(4, np.float32)},
        {"score": np.zeros((5, 1), np.float32)},
        {"score": np.zeros(5, np.int64)},
        {"score": np.full(5, np.nan, np.float32)},
    ],
)
async def test_scores_that_do_not_fit_are_a_failure(kit: Any, stage: str, answer: Tensors) -> None:
    envelope = await kit.stage(stage, lambda _: answer).run(kit.envelope(ITEMS[:5]))
    assert envelope.degraded[0].reason == "predictor_bad_output"
    assert envelope.items == ITEMS[:5]


@pytest.mark.parametrize("stage", ["coarse", "fine", "rerank"])
async def test_no_candidates_are_no_fault(kit: Any, numbered: Any, stage: str) -> None:
    envelope = await kit.stage(stage, numbered).run(kit.envelope([]))
    assert (envelope.items, envelope.scores, envelope.degraded) == ([], [], [])
    assert kit.offered == []


@pytest.mark.parametrize("stage", ["recall", "coarse", "fine", "rerank"])
async def test_unknown_bundle_and_scene_are_refused_by_name(kit: Any, numbered: Any, stage: str) -> None:
    with pytest.raises(BadRequest, match=r"'v0'.*'v1'") as caught:
        await kit.stage(stage, numbered).run(kit.envelope(ITEMS, bundle=BundleRef(version="v0")))
    assert caught.value.path == "$.bundle.version"
    with pytest.raises(BadRequest, match="known are: home") as caught:
        await kit.stage(stage, numbered).run(kit.envelope(ITEMS, scene="nowhere"))
    assert caught.value.path == "$.user.scene"


@pytest.mark.parametrize("stage", ["recall", "coarse", "fine", "rerank"])
async def test_a_past_deadline_gets_the_fallback_at_once(kit: Any, numbered: Any, stage: str) -> None:
    envelope = await kit.stage(stage, numbered).run(kit.envelope(ITEMS, deadline_ms=1.0))
    assert envelope.degraded[0].reason == "deadline"
    assert kit.offered == []
    assert kit.memory.reads == []
    assert envelope.remaining_ms < 0


@pytest.mark.parametrize("stage", ["coarse", "fine", "rerank"])
async def test_features_that_hang_cost_no_more_than_the_budget(kit: Any, numbered: Any, stage: str) -> None:
    kit.budgets = Budgets()
    kit.memory.hang = True
    envelope = await kit.stage(stage, numbered).run(kit.envelope(ITEMS))
    assert envelope.degraded[0].reason == "features_timeout"


async def test_too_many_requests_get_the_fallback_not_a_queue(kit: Any) -> None:
    kit.max_in_flight, kit.budgets = 2, Budgets()
    stage = kit.stage("fine", None)
    answers = await asyncio.gather(*(stage.run(kit.envelope(ITEMS)) for _ in range(5)))
    reasons = sorted(answer.degraded[0].reason for answer in answers)
    assert reasons == ["overload"] * 3 + ["predictor_timeout"] * 2
    answer = await stage.run(kit.envelope(ITEMS))
    assert answer.degraded[0].reason == "predictor_timeout", "the places are given back"


@pytest.mark.parametrize(("remaining_ms", "reasons"), [(900.0, []), (400.0, ["predictor_timeout"])])
async def test_a_stage_may_use_what_those_before_it_left_but_not_what_is_for_those_after(
    kit: Any, numbered: Any, remaining_ms: float, reasons: list[str]
) -> None:
    kit.budgets = Budgets(fine=250.0, rerank=200.0, whole=1000.0)
    stage = kit.stage("fine", numbered, after_s=0.35)
    answer = await stage.run(kit.envelope(ITEMS, remaining_ms=remaining_ms))
    assert [entry.reason for entry in answer.degraded] == reasons


async def test_remaining_time_is_told_to_the_next_hop(kit: Any, numbered: Any) -> None:
    at = time.time() * 1000.0
    kit.budgets = Budgets()
    envelope = await kit.stage("fine", numbered).run(kit.envelope(ITEMS, deadline_ms=at + 90.0, remaining_ms=89.0))
    assert envelope.deadline_ms == at + 90.0
    assert 0.0 < envelope.remaining_ms <= 90.0


async def test_the_clients_context_reaches_the_model_inputs(kit: Any, numbered: Any) -> None:
    for hour in (3, 15):
        await kit.stage("fine", numbered).run(kit.envelope(ITEMS[:1], context={"hour": hour, "device": "tv"}))
    first, second = (inputs["user_dense"] for inputs in kit.offered)
    assert not np.array_equal(first, second, equal_nan=True)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(st.one_of(st.floats(0, 1, width=32), st.just(float("nan"))), min_size=1, max_size=30),
    keep=st.integers(1, 20),
)
async def test_coarse_invariants(kit: Any, values: list[float], keep: int) -> None:
    kit.scene = Scene(coarse_keep=keep)
    items = [f"i{number % 20}" for number in range(len(values))]
    envelope = await kit.stage("coarse", _scores(values)).run(kit.envelope(items))
    trace = envelope.trace[-1]
    assert trace.received == len(items) == trace.kept + sum(trace.removed.values())
    assert len(envelope.items) <= keep
    assert set(envelope.items) <= set(items)
    if envelope.scores is not None:
        assert envelope.scores == sorted(envelope.scores, reverse=True)
        assert np.isfinite(envelope.scores).all()


@settings(deadline=None)
@given(st.lists(st.sampled_from(["pin", "ann"]), max_size=12), st.integers(1, 12))
def test_cut_keeps_order_and_pins(sources: list[str], keep: int) -> None:
    order = list(range(len(sources)))
    rows = cut(order, sources, keep)
    assert rows == sorted(rows)
    assert len(rows) == min(keep, len(order))
    assert sum(sources[row] == "pin" for row in rows) == min(keep, sources.count("pin"))


@pytest.mark.parametrize("stage", ["recall", "coarse", "fine", "rerank"])
async def test_a_fault_of_our_own_gets_the_fallback_and_a_traceback_in_the_log(
    kit: Any, stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(inputs: Tensors) -> Tensors:
        raise ZeroDivisionError("a bug")

    kit.bundle.pools = {"home": {"hot": [("a", 1.0)]}}
    envelope = await kit.stage(stage, broken).run(kit.envelope(["a", "b"]))
    assert envelope.items
    assert [(one.stage, one.reason) for one in envelope.degraded] == [(stage, "internal")]
    assert "ZeroDivisionError: a bug" in caplog.text
