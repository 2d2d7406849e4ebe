"""The host: arguments, refusals, answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client import REGISTRY

from recgraph.contract import Degraded, Envelope, TraceEntry
from recgraph.edge import ProcessState
from recgraph.errors import BadRequest
from recgraph_predictors import host

BODY = json.dumps({"request_id": "req_ü", "user": {"user_id": "u", "scene": "s"}, "items": ["a"]}).encode()


async def _model(stage: str, run: Any) -> host.EnvelopeModel:
    async def build() -> host.Runner:
        runner: host.Runner = run
        return runner

    model = host.EnvelopeModel(stage, ProcessState(stage), stage=stage, build=build)
    await model.warm_up()
    return model


def _counter(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_unknown_flags_and_several_workers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (["--htpt_port", "1"], ["--workers", "2"]):
        with pytest.raises(SystemExit):
            host.arguments("A stage.", flags)
    assert "--workers 2" in capsys.readouterr().err
    parsed = host.arguments("A stage.", ["--http_port", "1234", "--model_name", "fine"])
    assert (parsed.http_port, parsed.model_name, parsed.timeout_keep_alive) == (1234, "fine", 120)
    assert parsed.enable_latency_logging is False


async def test_a_model_is_ready_only_after_its_warm_up() -> None:
    async def run(envelope: Envelope) -> Envelope:
        return envelope

    model = await _model("fine", run)
    model.start()
    assert (model.ready, model.load(), model.state.ready) == (False, False, False)
    await model.start_engine()
    assert (model.ready, model.state.ready) == (True, True)


async def test_answer_headers_and_counters() -> None:
    async def run(envelope: Envelope) -> Envelope:
        envelope.degraded.append(Degraded(stage="fine", reason="test_reason", action="a"))
        envelope.trace.append(TraceEntry(stage="fine", ms=2.0, received=3, kept=1, removed={"x": 2}, short=4))
        return envelope

    model = await _model("fine", run)
    before = _counter("recgraph_degraded_total", stage="fine", arm="none", bundle="", reason="test_reason")
    reply = await model.answer(BODY, {})
    assert json.loads(reply.body)["items"] == ["a"], "an envelope, not the client's answer"
    assert (reply.status, reply.headers) == (200, {"x-request-id": "req_?"})
    assert _counter("recgraph_degraded_total", stage="fine", arm="none", bundle="", reason="test_reason") == before + 1
    assert _counter("recgraph_candidates_removed_total", stage="fine", arm="none", bundle="", reason="x") >= 2


async def test_rerank_answers_the_client() -> None:
    async def run(envelope: Envelope) -> Envelope:
        envelope.scores, envelope.sources = [0.5], ["ann"]
        return envelope

    answer = json.loads((await (await _model("rerank", run)).answer(BODY, {})).body)
    assert answer["items"] == [{"item_id": "a", "score": 0.5, "source": "ann"}]
    assert "trace" not in answer


@pytest.mark.parametrize(
    ("stage", "body", "path"),
    [
        ("fine", b"{", "$"),
        ("fine", BODY.replace(b'["a"]', b"[1]"), "$.items[0]"),
        ("fine", BODY.replace(b', "items": ["a"]', b""), "$.items"),
        ("entry", BODY.replace(b'"u"', b"3"), "$.user.user_id"),
    ],
)
async def test_a_clients_fault_is_refused_with_path_and_request(stage: str, body: bytes, path: str) -> None:
    async def run(envelope: Envelope) -> Envelope:
        raise AssertionError("not reached")

    model = await _model(stage, run)
    reply = await model.answer(body, {"x-request-id": "header"})
    assert reply.status == 400
    told = json.loads(reply.body)
    assert told["path"] == path
    assert told["request_id"] == ("header" if path == "$" else "req_ü")


async def test_recall_needs_no_items_and_a_stages_own_refusal_keeps_its_path() -> None:
    async def run(envelope: Envelope) -> Envelope:
        raise BadRequest("Unknown scene", "$.user.scene")

    model = await _model("recall", run)
    reply = await model.answer(BODY.replace(b', "items": ["a"]', b""), {})
    assert json.loads(reply.body)["path"] == "$.user.scene"
