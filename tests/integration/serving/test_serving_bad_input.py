"""Bad input at every stage called alone: the status, the path, and a body of one shape."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

# Nine processes that import torch: a busy machine needs a while to start them.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
ALL = ("entry", "recall", "coarse", "fine", "rerank")
RANKING = ("coarse", "fine", "rerank")
USER = {"user_id": "u1", "scene": "home_feed"}


def _body(**more: Any) -> dict[str, Any]:
    return {"request_id": "req_bad", "user": USER, "items": ["i1", "i2"]} | more


def _refused(reply: Any, status: int, path: str, request_id: str = "req_bad") -> str:
    assert reply.status == status, reply.body
    told = reply.json()
    assert told.keys() == {"error", "path", "request_id"}
    assert told["path"] == path
    assert told["request_id"] == request_id
    assert reply.headers["content-type"] == "application/json"
    return str(told["error"])


@pytest.mark.parametrize("stage", ALL)
def test_what_is_not_json(stages: Any, stage: str) -> None:
    for body in (b"", b"{", b"nonsense", b'{"user": NaN}', b"\xff"):
        assert "not JSON" in _refused(stages[stage].post(body, X_Request_Id="h1"), 400, "$", "h1")


@pytest.mark.parametrize("stage", ALL)
@pytest.mark.parametrize(
    ("body", "path"),
    [
        (_body(user=None), "$.user"),
        (_body(user={"scene": "home_feed"}), "$.user.user_id"),
        (_body(user={"user_id": "u"}), "$.user.scene"),
        (_body(user={"user_id": 1, "scene": "home_feed"}), "$.user.user_id"),
        (_body(user={"user_id": "u" * 300, "scene": "home_feed"}), "$.user.user_id"),
        (_body(user={"user_id": "u", "scene": "nowhere"}), "$.user.scene"),
        (_body(items="i1"), "$.items"),
        (_body(items=["i1", 2]), "$.items[1]"),
        (_body(items=["i" * 300]), "$.items[0]"),
        (_body(items=["i1", "é" * 150]), "$.items[1]"),
        (_body(scores=[0.5]), "$.scores"),
        (_body(deadline_ms="soon"), "$.deadline_ms"),
        (_body(context={"hour": "nine"}), "$.context.hour"),
    ],
)
def test_a_bad_value_is_named_by_its_path(stages: Any, stage: str, body: dict[str, Any], path: str) -> None:
    error = _refused(stages[stage].post(body), 400, path)
    if path == "$.user.scene" and "nowhere" in str(body):
        assert "home_feed, other" in error


@pytest.mark.parametrize("stage", ALL)
def test_what_is_too_large(stages: Any, stage: str) -> None:
    _refused(stages[stage].post(_body(items=["i"] * 5001)), 413, "$.items")
    _refused(stages[stage].post(_body(context={f"f{number}": 1 for number in range(201)})), 413, "$.context")
    large = json.dumps(_body(padding="x" * (1 << 20))).encode()
    _refused(stages[stage].post(large, X_Request_Id="h2"), 413, "$", "h2")


@pytest.mark.parametrize("stage", RANKING)
def test_items_are_needed_where_they_are_ranked(stages: Any, stage: str) -> None:
    body = _body()
    del body["items"]
    _refused(stages[stage].post(body), 400, "$.items")
    answer = stages[stage].post(_body(items=[]))
    assert (answer.status, answer.json()["items"]) == (200, [])


@pytest.mark.parametrize("stage", ALL[1:])
def test_an_unknown_bundle_is_refused_with_both_names(stages: Any, stage: str) -> None:
    error = _refused(stages[stage].post(_body(bundle={"version": "v-other"})), 400, "$.bundle.version")
    assert "v-other" in error
    assert "v-test" in error


def test_entry_ignores_what_is_not_the_clients_to_say(stages: Any) -> None:
    body = _body(deadline_ms=1, arm="x", bundle={"version": "v-other"}, page_size=-3, trace="x")
    answer = stages["entry"].post(body).json()
    assert answer["bundle"] == {"version": "v-test"}
    assert answer["page_size"] == 20
    assert answer["deadline_ms"] > 1


@pytest.mark.parametrize("stage", ALL)
@pytest.mark.parametrize(
    "media", ["application/json; charset=utf-8", "application/json", "application/cloudevents+json"]
)
def test_json_is_json_whatever_the_media_type_says(stages: Any, stage: str, media: str) -> None:
    # These keys make KServe take a body for a CloudEvent and pass on `data` alone.
    event = {"time": "now", "type": "t", "source": "s", "id": "1", "specversion": "1.0", "data": {}}
    answer = stages[stage].post(_body(**event), Content_Type=media, ce_specversion="1.0", ce_id="1")
    assert answer.status == 200, answer.body
    assert answer.json()["request_id"] == "req_bad"
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("stage", ALL[1:])
def test_deadlines(stages: Any, stage: str) -> None:
    past = stages[stage].post(_body(deadline_ms=1000))
    assert past.status == 200
    assert past.json()["degraded"][0]["reason"] == "deadline"
    for absurd in (1e300, time.time() * 1000.0 + 1e9):
        answer = stages[stage].post(_body(deadline_ms=absurd)).json()
        assert answer["degraded"] == []
        # The client's answer does not have it; an envelope says that nobody has more than the whole budget.
        assert answer.get("remaining_ms", 0.0) <= 8100.0


@pytest.mark.parametrize("stage", RANKING)
def test_unknown_and_duplicate_ids_are_ordinary(stages: Any, stage: str) -> None:
    items = ["i1", "i1", "não existe ☃", "é" * 128, "i2"]
    answer = stages[stage].post(_body(user={"user_id": "новый", "scene": "home_feed"}, items=items)).json()
    assert answer["degraded"] == []
    if stage == "rerank":
        assert sorted(item["item_id"] for item in answer["items"]) == sorted(set(items))
    else:
        assert sorted(answer["items"]) == sorted(items)


def test_instances_as_a_word_of_ours_is_no_trap(stages: Any) -> None:
    assert stages["fine"].post(_body(instances=5, inputs=5)).status == 200
