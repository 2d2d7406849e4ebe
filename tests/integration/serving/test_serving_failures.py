"""Dead and hung dependencies, a bundle that does not fit, and the end of a process."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

# Nine processes that import torch: a busy machine needs a while to start them.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
ROOMY = {f"budgets__{stage}": "400" for stage in ("recall", "coarse", "fine", "rerank")} | {
    "budgets__whole": "1650",
    "budgets__fallback_ms": "50",
}


def _body(items: list[str] | None = None) -> dict[str, Any]:
    body: dict[str, Any] = {"request_id": "r", "user": {"user_id": "u1", "scene": "home_feed"}}
    return body if items is None else body | {"items": items}


def test_recall_starts_and_answers_with_everything_gone(temporary: Callable[..., Any]) -> None:
    with socket.socket() as hung:
        hung.bind(("127.0.0.1", 0))
        hung.listen()
        features = f"redis://127.0.0.1:{hung.getsockname()[1]}/0"
        gone = {"features_redis": features, "caches_redis": "redis://127.0.0.1:1/0", "warmup_wait_s": "0.2"}
        recall = temporary("recgraph_transformers.recall", "recall", "--predictor_host", "127.0.0.1:1", **gone, **ROOMY)
        recall.wait_ready()
        answer = recall.post(_body(), timeout_s=2.0)
        assert answer.status == 200
        told = answer.json()
        assert told["degraded"] == [{"stage": "recall", "reason": "features_timeout", "action": "hot_pool"}]
        assert told["items"][:2] == ["i0", "i1"], "the bundle's snapshot of the pool"


def test_a_predictor_that_hangs_comes_back_and_dies(temporary: Callable[..., Any]) -> None:
    predictor = temporary("recgraph_predictors.fine", "fine")
    host = f"127.0.0.1:{predictor.grpc_port}"
    fine = temporary("recgraph_transformers.fine", "fine", "--predictor_host", host, **ROOMY)
    fine.wait_ready()

    def reasons() -> list[str]:
        answer = fine.post(_body(["i1", "i2"]), timeout_s=2.0)
        assert answer.status == 200
        assert answer.json()["items"] == ["i1", "i2"]
        return [entry["reason"] for entry in answer.json()["degraded"]]

    assert reasons() == []
    predictor.child.send_signal(signal.SIGSTOP)
    assert reasons() == ["predictor_timeout"]
    predictor.child.send_signal(signal.SIGCONT)
    _until(lambda: reasons() == [])
    predictor.stop(signal.SIGKILL)
    _until(lambda: reasons() == ["predictor_unavailable"])


def _until(true: Callable[[], bool]) -> None:
    for _ in range(50):
        if true():
            return
        time.sleep(0.1)
    raise AssertionError("not within 50 attempts")


def test_a_process_drains_before_it_ends(temporary: Callable[..., Any]) -> None:
    entry = temporary("recgraph_predictors.entry", "entry", drain_s="2")
    entry.wait_ready()
    with closing(http.client.HTTPConnection("127.0.0.1", entry.port, timeout=5)) as kept_alive:

        def post() -> http.client.HTTPResponse:
            kept_alive.request("POST", "/v1/models/entry:predict", json.dumps(_body()))
            answer = kept_alive.getresponse()
            answer.read()
            return answer

        assert post().getheader("connection") is None
        entry.child.send_signal(signal.SIGTERM)
        _until(lambda: entry.get().status == 503)
        answer = post()
        assert (answer.status, answer.getheader("connection")) == (200, "close")
        # A new connection is still accepted.
        assert entry.post(_body()).status == 200
    assert entry.child.wait(20) == 0


def test_an_answer_in_work_is_finished_at_the_end(temporary: Callable[..., Any]) -> None:
    with socket.socket() as hung:
        hung.bind(("127.0.0.1", 0))
        hung.listen()
        slow = {"features_redis": f"redis://127.0.0.1:{hung.getsockname()[1]}/0", "warmup_wait_s": "0"}
        slow |= {"budgets__coarse": "2000", "budgets__whole": "2100"}
        coarse = temporary("recgraph_transformers.coarse", "coarse", "--predictor_host", "127.0.0.1:1", **slow)
        coarse.wait_ready()
        with closing(http.client.HTTPConnection("127.0.0.1", coarse.port, timeout=10)) as connection:
            connection.request("POST", "/v1/models/coarse:predict", json.dumps(_body(["i1"])))
            time.sleep(0.2)
            coarse.child.send_signal(signal.SIGTERM)
            answer = connection.getresponse()
            assert answer.status == 200
            assert json.loads(answer.read())["degraded"][0]["reason"] == "features_timeout"
    assert coarse.child.wait(20) == 0


@pytest.mark.parametrize(
    ("module", "settings", "says"),
    [
        ("recgraph_predictors.entry", {"bundle": "/nowhere"}, "/nowhere/manifest.json"),
        ("recgraph_predictors.entry", {"scenes": "/nowhere.yaml"}, "/nowhere.yaml: cannot be read"),
        ("recgraph_predictors.entry", {"budgets__fine": "much"}, "budgets.fine"),
        ("recgraph_transformers.fine", {}, "--predictor_host HOST:GRPCPORT is needed"),
    ],
)
def test_what_cannot_start_says_why_and_ends(
    temporary: Callable[..., Any], module: str, settings: dict[str, str], says: str
) -> None:
    process = temporary(module, "x", **settings)
    assert process.child.wait(60) != 0
    assert says in process.log.read_text()
