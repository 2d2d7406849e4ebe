"""The whole cascade through real processes: entry, then every stage as the graph calls it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import redis

from recgraph import records

# Nine processes that import torch: a busy machine needs a while to start them.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
STAGES = ("recall", "coarse", "fine", "rerank")


def _ask(stages: Any, body: dict[str, Any], **headers: str) -> list[Any]:
    """The answers of entry and the four stages, each on what the one before answered."""
    answers = [stages["entry"].post(body, **headers)]
    for name in STAGES:
        assert answers[-1].status == 200, answers[-1].body
        answers.append(stages[name].post(answers[-1].body))
    return answers


def test_a_request_becomes_a_page(stages: Any) -> None:
    body = {"user": {"user_id": "u1", "scene": "home_feed"}, "explain": True}
    answers = _ask(stages, body, X_Request_Id="req_cascade")
    last = answers[-1].json()
    assert last["degraded"] == []
    assert last["request_id"] == "req_cascade"
    assert all(answer.headers["x-request-id"] == "req_cascade" for answer in answers)
    assert last["bundle"] == {"version": "v-test"}
    assert len(last["items"]) == 20
    shown = [item["item_id"] for item in last["items"]]
    assert len(set(shown)) == 20
    # u1 has seen i0..i9, and i30..i39 are not available.
    assert set(shown).isdisjoint(f"i{number}" for number in (*range(10), *range(30, 40)))
    trace = {entry["stage"]: entry for entry in last["trace"]}
    assert list(trace) == ["entry", *STAGES]
    for entry in trace.values():
        assert entry["received"] == entry["kept"] + sum(entry.get("removed", {}).values())
    assert (trace["coarse"]["kept"], trace["fine"]["kept"]) == (100, 100)
    assert {"seen", "unavailable", "duplicate"} <= trace["recall"]["removed"].keys()


def test_envelopes_on_the_way(stages: Any) -> None:
    answers = _ask(stages, {"user": {"user_id": "u1", "scene": "other"}, "context": {"hour": 21, "device": "android"}})
    entry, recall, _, fine, last = (answer.json() for answer in answers)
    assert entry["arm"] == {"cascade": {"stable": True}}
    assert (entry["page_size"], entry["bundle"]) == (5, {"version": "v-test"})
    assert recall["context"] == {"hour": 21, "device": "android"}
    assert {"ann", "i2i", "hot", "fresh"} == set(recall["sources"])
    assert len(recall["items"]) == len(recall["sources"])
    assert len(fine["items"]) == len(fine["scores"]) == len(fine["sources"]) == len(fine["coarse_scores"]) == 30
    assert fine["deadline_ms"] == entry["deadline_ms"]
    assert fine["remaining_ms"] < entry["remaining_ms"]
    assert len(last["items"]) == 5
    assert last.keys().isdisjoint({"trace", "deadline_ms", "remaining_ms", "scores"})


def test_a_cold_user_gets_a_page_too(stages: Any) -> None:
    last = _ask(stages, {"user": {"user_id": "nobody ☃", "scene": "home_feed"}})[-1].json()
    assert (len(last["items"]), last["degraded"]) == (20, [])


def test_the_decision_record_says_where_each_item_was_lost(stages: Any, world: Any) -> None:
    body = {"request_id": "req_record", "user": {"user_id": "u1", "scene": "home_feed"}, "explain": True}
    last = _ask(stages, body)[-1].json()
    kept: dict[bytes, bytes] = {}
    with redis.Redis.from_url(world.caches.url) as client:
        for _ in range(100):
            kept = client.hgetall("record:req_record")  # type: ignore[assignment]
            if len(kept) == 4:
                break
            time.sleep(0.02)
        assert 0 < client.ttl("record:req_record") <= 3600  # type: ignore[operator]
        remembered = json.loads(client.get("last:home_feed:u1") or b"[]")  # type: ignore[arg-type]
    decoded = records.decode({stage.decode(): value for stage, value in kept.items()})
    shown = [item["item_id"] for item in last["items"]]
    assert decoded["rerank"].kept == shown
    assert records.fate(decoded["recall"], "i0").reason == "seen"
    assert records.fate(decoded["coarse"], "i0").status == "not received"
    assert remembered[:20] == shown


def test_the_fine_contract_to_the_letter(stages: Any) -> None:
    items = ["i7", "i101", "i7", "never seen", "i5"]
    asked = {
        "request_id": "req_8f21",
        "user": {"user_id": "u_10086", "scene": "home_feed"},
        "items": items,
        "context": {"hour": 21, "device": "android"},
    }
    answer = stages["fine"].post(asked).json()
    assert answer["request_id"] == "req_8f21"
    assert answer["items"] == items
    assert len(answer["scores"]) == 5
    assert answer["scores"][0] == answer["scores"][2]
    assert len(set(answer["scores"])) == 4
    assert all(0.0 <= score <= 1.0 for score in answer["scores"])
    reversed_answer = stages["fine"].post(asked | {"items": items[::-1]}).json()
    assert reversed_answer["scores"] == pytest.approx(answer["scores"][::-1], abs=1e-6)


def test_metrics_and_quiet_logs(stages: Any) -> None:
    stages["fine"].post({"user": {"user_id": "u1", "scene": "home_feed"}, "items": ["i1"]})
    assert b'recgraph_requests_total{arm="none",' in stages["fine"].get("/metrics").body
    lines = stages["fine"].log.read_text().splitlines()
    assert all(json.loads(line) for line in lines), "every line is JSON"
    assert not any("POST" in line for line in lines), "no access log"
