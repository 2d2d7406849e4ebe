"""The ASGI edge: body limit, raw bodies, readiness, draining."""

from __future__ import annotations

import json
from typing import Any

import pytest

from recgraph.contract import MAX_BODY_BYTES
from recgraph.edge import Edge, Message, ProcessState, Receive, Reply, Scope, Send

PREDICT = "/v1/models/fine:predict"


class _App:
    """The server and its model: remembers what reached it and answers 200."""

    def __init__(self) -> None:
        self.path = ""
        self.body = b""
        self.headers: dict[str, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.path = scope["path"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def answer(self, body: bytes, headers: dict[str, str]) -> Reply:
        self.body, self.headers = body, headers
        return Reply(200, b"{}", {"x-request-id": "r"})


async def _ask(
    state: ProcessState, method: str, path: str, chunks: list[bytes], headers: dict[str, str] | None = None
) -> tuple[list[Message], _App]:
    app, sent, left = _App(), list[Message](), list(chunks)

    async def receive() -> Message:
        # An empty list fails here: whoever announces too much is not listened to at all.
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Message) -> None:
        sent.append(message)

    pairs = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "headers": pairs}
    await Edge(app, state, app.answer)(scope, receive, send)
    return sent, app


async def test_the_body_reaches_the_model_raw_and_whole() -> None:
    headers = {"content-type": "application/json; charset=utf-8", "ce-specversion": "1.0", "x-request-id": "r"}
    sent, app = await _ask(ProcessState("fine", ready=True), "POST", PREDICT, [b'{"a":', b"1}"], headers)
    assert sent[0]["status"] == 200
    assert dict(sent[0]["headers"])[b"x-request-id"] == b"r"
    assert (app.body, app.headers, app.path) == (b'{"a":1}', headers, "")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/models/coarse:predict", 404),
        ("POST", "/v1/models/fine:explain", 404),
        ("POST", "/v2/models/fine/infer", 404),
        ("POST", f"{PREDICT}/", 404),
        ("PUT", PREDICT, 405),
    ],
)
async def test_nothing_else_takes_a_body(method: str, path: str, status: int) -> None:
    sent, app = await _ask(ProcessState("fine", ready=True), method, path, [])
    assert (sent[0]["status"], app.path) == (status, "")
    assert PREDICT in json.loads(sent[1]["body"])["error"]


async def test_what_the_server_reads_itself_has_an_end() -> None:
    chunks, read = [b" " * (1 << 20)] * 40, list[str]()

    async def receive() -> Message:
        return {"type": "http.request", "body": chunks.pop(), "more_body": True}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] != "http.disconnect":
            read.append(message["type"])

    async def send(message: Message) -> None:
        raise AssertionError(message)

    scope = {"type": "http", "method": "POST", "path": "/v2/models/fine/infer", "headers": []}
    await Edge(app, ProcessState("fine", ready=True))(scope, receive, send)
    assert len(read) == 16


async def test_nothing_is_predicted_before_the_warm_up() -> None:
    sent, app = await _ask(ProcessState("fine"), "POST", PREDICT, [b"{}"])
    assert (sent[0]["status"], app.body) == (503, b"")


HALF = b" " * (MAX_BODY_BYTES // 2 + 1)


@pytest.mark.parametrize(
    ("chunks", "announced"),
    [([HALF] * 2, 0), ([HALF] * 5, 0), ([HALF] * 40, 0), ([HALF] * 2, 2 * len(HALF)), ([], 1 << 40)],
)
async def test_a_large_body_is_a_413_and_never_reaches_the_app(chunks: list[bytes], announced: int) -> None:
    headers = {"x-request-id": "r"} | ({"content-length": str(announced)} if announced else {})
    sent, app = await _ask(ProcessState("fine", ready=True), "POST", PREDICT, chunks, headers)
    assert sent[0]["status"] == 413
    body = json.loads(sent[1]["body"])
    assert (body["path"], body["request_id"]) == ("$", "r")
    assert (app.path, app.body) == ("", b"")


async def test_readiness_is_the_processs_own() -> None:
    state = ProcessState("fine")
    assert (await _ask(state, "GET", "/v1/models/fine", [b""]))[0][0]["status"] == 503
    state.ready = True
    assert (await _ask(state, "GET", "/v1/models/fine", [b""]))[0][0]["status"] == 200
    state.draining = True
    assert (await _ask(state, "GET", "/v1/models/fine", [b""]))[0][0]["status"] == 503


async def test_a_draining_process_answers_and_closes() -> None:
    sent, app = await _ask(ProcessState("fine", ready=True, draining=True), "POST", PREDICT, [b"{}"])
    assert (sent[0]["status"], app.body) == (200, b"{}")
    assert (b"connection", b"close") in sent[0]["headers"]
    sent, _ = await _ask(ProcessState("fine", ready=True), "POST", PREDICT, [b"{}"])
    assert (b"connection", b"close") not in sent[0]["headers"]


@pytest.mark.parametrize("path", ["/v2/repository/models/fine/unload", "/v2/repository/models/fine/load"])
async def test_nobody_takes_the_model_away(path: str) -> None:
    sent, app = await _ask(ProcessState("fine", ready=True), "POST", path, [b""])
    assert (sent[0]["status"], app.path) == (403, "")


async def test_header_values_are_utf8() -> None:
    state = ProcessState("fine", ready=True)
    _, app = await _ask(state, "POST", PREDICT, [b"{}"], {"x-request-id": "réq_用"})
    assert app.headers["x-request-id"] == "réq_用"
