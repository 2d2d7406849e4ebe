"""The contract: what is accepted, what is refused, and with which path."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgraph import contract
from recgraph.errors import BadRequest, ClientError, TooLarge

USER = {"user_id": "u1", "scene": "home_feed"}


def _body(**more: Any) -> bytes:
    return json.dumps({"request_id": "req_1", "user": USER, "items": ["a", "b"], **more}).encode()


def _refused(body: bytes) -> ClientError:
    with pytest.raises(ClientError) as caught:
        contract.parse_envelope(body, needs_items=True)
    return caught.value


@pytest.mark.parametrize(
    ("body", "path", "says"),
    [
        (b"", "$", "not JSON"),
        (b"{", "$", "not JSON"),
        (b"\xff\xfe", "$", "not JSON"),
        (b'{"user": {"user_id": "u", "scene": "s"}, "items": [NaN]}', "$", "not JSON"),
        (b'{"user": {"user_id": "\\udc00", "scene": "s"}, "items": []}', "$", "not JSON"),
        (b'{"x": ' + b"[" * 100_000, "$", "nested too deeply"),
        (b"[]", "$", "Expected `object`"),
        (b"{}", "$.user", "missing"),
        (b'{"user": {"user_id": "u", "scene": "s"}}', "$.items", "missing"),
        (b'{"user": {"scene": "s"}, "items": []}', "$.user.user_id", "missing"),
        (b'{"user": {"user_id": "u"}, "items": []}', "$.user.scene", "missing"),
        (_body(user={"user_id": 7, "scene": "s"}), "$.user.user_id", "Expected `str`"),
        (_body(user={"user_id": "", "scene": "s"}), "$.user.user_id", "length >= 1"),
        (_body(user={"user_id": "u" * 257, "scene": "s"}), "$.user.user_id", "length <= 256"),
        (_body(user={"user_id": "é" * 129, "scene": "s"}), "$.user.user_id", "258 bytes"),
        (_body(items=["a", "i" * 300]), "$.items[1]", "length <= 256"),
        (_body(items=["a", "b", "é" * 200]), "$.items[2]", "400 bytes"),
        (_body(items=["a", 1]), "$.items[1]", "Expected `str`"),
        (_body(items="a"), "$.items", "Expected `array | null`"),
        (_body(scores=[0.1]), "$.scores", "Expected 2 values"),
        (_body(scores=["x", 1]), "$.scores[0]", "Expected `float`"),
        (_body(sources=["ann"]), "$.sources", "Expected 2 values"),
        (_body(coarse_scores=[1, 2, 3]), "$.coarse_scores", "Expected 2 values"),
        (_body(deadline_ms="soon"), "$.deadline_ms", "Expected `float`"),
        (_body(deadline_ms=None), "$.deadline_ms", "Expected `float`"),
        (_body(deadline_ms=True), "$.deadline_ms", "Expected `float`"),
        (_body().replace(b'["a", "b"]', b'["a", "b"], "deadline_ms": 1e999'), "$.deadline_ms", "out of range"),
        (_body(bundle="v1"), "$.bundle", "Expected `object | null`"),
        (_body(page_size=0), "$.page_size", ">= 1"),
        (_body(explain="yes"), "$.explain", "Expected `bool`"),
        (_body(context={"hour": 24}), "$.context.hour", "from 0 to 23"),
        (_body(context={"hour": "9"}), "$.context.hour", "from 0 to 23"),
        (_body(context={"weekday": True}), "$.context.weekday", "from 0 to 6"),
        (_body(context={"device": 3}), "$.context.device", "Expected `str`"),
        (_body(context={"x": [1]}), "$.context.x", "got `array`"),
    ],
)
def test_bad_values_are_named_by_their_path(body: bytes, path: str, says: str) -> None:
    error = _refused(body)
    assert isinstance(error, BadRequest)
    assert error.status == 400
    assert error.path == path
    assert says in error.reason


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (_body(items=["i"] * 5001), "$.items"),
        (_body(context={f"f{number}": 1 for number in range(201)}), "$.context"),
        (b" " * (contract.MAX_BODY_BYTES + 1), "$"),
    ],
)
def test_what_is_too_large_is_a_413(body: bytes, path: str) -> None:
    error = _refused(body)
    assert isinstance(error, TooLarge)
    assert (error.status, error.path) == (413, path)


def test_limits_are_inclusive() -> None:
    items = ["é" * 128] * 5000
    context = {f"f{number}": number for number in range(200)}
    body = json.dumps({"user": USER, "items": items[:1000], "context": context}, ensure_ascii=False).encode()
    assert contract.parse_envelope(body, needs_items=True).items == items[:1000]
    assert len(contract.parse_envelope(_body(items=["i"] * 5000), needs_items=True).items or []) == 5000


def test_duplicates_unknown_keys_and_empty_lists_are_fine() -> None:
    envelope = contract.parse_envelope(_body(items=["a", "a"], something={"else": 1}), needs_items=True)
    assert envelope.items == ["a", "a"]
    assert contract.parse_envelope(_body(items=[]), needs_items=True).items == []


def test_client_cannot_say_what_is_entrys_to_say() -> None:
    body = _body(deadline_ms=1, arm=3, bundle="v0", page_size=-1, record=True, trace=9, scores=[1, 2])
    envelope = contract.parse_request(body)
    plain = contract.parse_request(_body())
    assert envelope == plain
    assert envelope.items is None
    assert envelope.record is False


def test_client_request_is_checked_even_where_it_is_not_used() -> None:
    for body, path in ((_body(deadline_ms="x"), "$.deadline_ms"), (_body(items=[1]), "$.items[0]")):
        with pytest.raises(BadRequest) as caught:
            contract.parse_request(body)
        assert caught.value.path == path
    with pytest.raises(TooLarge):
        contract.parse_request(_body(items=["i"] * 5001))


def test_request_id_comes_from_body_then_header_then_anew() -> None:
    without = json.dumps({"user": USER}).encode()
    assert contract.parse_request(_body(), request_id="h").request_id == "req_1"
    assert contract.parse_request(without, request_id="h").request_id == "h"
    assert contract.parse_request(without).request_id.startswith("req_")
    with pytest.raises(BadRequest) as caught:
        contract.parse_request(without, request_id="h" * 257)
    assert caught.value.path == "$.request_id"


def test_request_id_of_a_refused_body() -> None:
    assert contract.request_id_of(b'{"request_id": "r", "user": 1}', "h") == "r"
    assert contract.request_id_of(b"{", "h") == "h"
    assert contract.request_id_of(b"[" * 100_000, "").startswith("req_")
    assert contract.request_id_of(b'{"request_id": 5}', "h" * 300).startswith("req_")


def test_malformed_traceparent_is_dropped() -> None:
    good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert contract.parse_request(_body(), traceparent=good).traceparent == good
    assert contract.parse_request(_body(), traceparent="nonsense").traceparent == ""


def test_answer_has_degraded_bundle_and_arm_but_trace_only_to_explain() -> None:
    envelope = contract.parse_envelope(_body(scores=[0.5, 0.25], sources=["ann", "hot"]), needs_items=True)
    envelope.trace.append(contract.TraceEntry(stage="fine", ms=1.0, received=2, kept=2))
    envelope.deadline_ms = 5.0
    plain = json.loads(contract.encode_answer(envelope))
    assert plain["items"][1] == {"item_id": "b", "score": 0.25, "source": "hot"}
    assert plain["degraded"] == []
    assert {"bundle", "arm", "request_id"} <= plain.keys()
    assert plain.keys().isdisjoint({"trace", "deadline_ms"})
    envelope.explain = True
    assert json.loads(contract.encode_answer(envelope))["trace"][0]["stage"] == "fine"


def test_error_body() -> None:
    body = json.loads(contract.error_body(BadRequest("Expected `str`", "$.user.user_id"), "r"))
    assert body == {"error": "Expected `str`", "path": "$.user.user_id", "request_id": "r"}


@settings(deadline=None)
@given(st.lists(st.text(min_size=1, max_size=300), max_size=20))
def test_ids_are_refused_exactly_beyond_256_bytes(items: list[str]) -> None:
    encodable = [item for item in items if not any("\ud800" <= char <= "\udfff" for char in item)]
    too_long = [index for index, item in enumerate(encodable) if len(item.encode()) > 256]
    body = json.dumps({"user": USER, "items": encodable}).encode()
    if not too_long:
        assert contract.parse_envelope(body, needs_items=True).items == encodable
    else:
        # One that is also longer in characters is found first, wherever it stands.
        assert _refused(body).path in {f"$.items[{index}]" for index in too_long}  # type: ignore[attr-defined]


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_no_body_makes_anything_but_an_envelope_or_a_client_error(body: bytes) -> None:
    with contextlib.suppress(ClientError):
        contract.parse_request(body)


@pytest.mark.parametrize(
    ("more", "path"),
    [
        (b'"context":{"ok":1,"odd":[1],"odder":{}}', "$.context.odd"),
        (b'"context":{"n":1e999}', "$.context.n"),
        (b'"context":{"deep":' + b"[" * 3000 + b"1" + b"]" * 3000 + b"}", "$.context[...]"),
        (b'"arm":{"fine":{"stable":true},"recall":1}', "$.arm.recall"),
        (b'"bundle":{"version":"v","stages":{"fine":1}}', "$.bundle.stages.fine"),
        (b'"context":{"odd":[1]},nonsense', "$.context[...]"),
    ],
)
def test_a_value_under_a_key_of_the_senders_is_named_with_the_key(more: bytes, path: str) -> None:
    with pytest.raises(BadRequest) as caught:
        contract.parse_envelope(b'{"user":{"user_id":"u","scene":"s"},' + more + b"}", needs_items=False)
    assert caught.value.path == path


def test_a_context_too_large_to_travel_is_refused_at_the_door() -> None:
    def body(size: int) -> bytes:
        return b'{"user":{"user_id":"u","scene":"s"},"context":{"x":"' + b"a" * size + b'"}}'

    assert (
        len(contract.parse_request(body(contract.MAX_CONTEXT_BYTES - 10)).context["x"])
        == contract.MAX_CONTEXT_BYTES - 10
    )  # type: ignore[arg-type]
    with pytest.raises(TooLarge) as caught:
        contract.parse_request(body(contract.MAX_CONTEXT_BYTES))
    assert caught.value.path == "$.context"
