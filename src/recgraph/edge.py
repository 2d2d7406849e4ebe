"""The HTTP edge of a serving process, as ASGI middleware: bounded bodies, raw JSON, readiness and draining.

KServe matches media types exactly, takes a body with certain keys for a CloudEvent, and stops predicting once a model
is not ready. Here the body reaches our own parser untouched, and readiness is the process's own, so that a draining
process still answers what reaches it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from recgraph import contract
from recgraph.errors import TooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Not one of KServe's JSON media types: it then hands the body over as it came.
_RAW: Final = (b"content-type", b"application/x-recgraph")
_JSON: Final = (b"content-type", b"application/json")
_CLOSE: Final = (b"connection", b"close")
_DISCARD_BYTES: Final = 16 << 20


@dataclass
class ProcessState:
    """What the edge knows of its process."""

    model_name: str
    ready: bool = False
    draining: bool = False


class Edge:
    """Wraps the server's ASGI app."""

    def __init__(self, app: App, state: ProcessState) -> None:
        self._app = app
        self._state = state
        self._ready_path = f"/v1/models/{state.model_name}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection scope."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["method"] == "GET" and scope["path"] == self._ready_path and not self._serving:
            await _respond(send, 503, b'{"error":"not ready"}', close=self._state.draining)
        elif scope["method"] == "POST" and scope["path"].endswith(":predict"):
            await self._predict(scope, receive, self._closing(send))
        else:
            await self._app(scope, receive, self._closing(send))

    @property
    def _serving(self) -> bool:
        return self._state.ready and not self._state.draining

    async def _predict(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        try:
            body = await _read(receive, _content_length(headers))
        except TooLarge as error:
            given = next((value for name, value in headers if name == b"x-request-id"), b"").decode("latin-1")
            await _respond(send, 413, contract.error_body(error, contract.request_id_of(b"", given)), close=True)
            return
        if body is None:
            return
        kept = [pair for pair in headers if pair[0] != b"content-type" and not pair[0].startswith(b"ce-")]
        await self._app({**scope, "headers": [*kept, _RAW]}, _replay(body, receive), send)

    def _closing(self, send: Send) -> Send:
        if not self._state.draining:
            return send

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), _CLOSE]
            await send(message)

        return closing


def _content_length(headers: list[tuple[bytes, bytes]]) -> int:
    length = next((value for name, value in headers if name == b"content-length"), b"0")
    return int(length) if length.isdigit() else 0


async def _read(receive: Receive, announced: int) -> bytes | None:
    """The whole body, or None when the client has gone. Raises TooLarge for one beyond the limit.

    What is too large is read to its end and thrown away, up to a bound: a client that is still sending when the
    connection closes would see a broken pipe instead of the answer.
    """
    if announced > _DISCARD_BYTES:
        raise TooLarge(f"The body has {announced} bytes, the limit is {contract.MAX_BODY_BYTES}")
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        whole = not message.get("more_body", False)
        if size > contract.MAX_BODY_BYTES:
            chunks.clear()
            if whole or size > _DISCARD_BYTES:
                raise TooLarge(f"The body has more than {contract.MAX_BODY_BYTES} bytes")
            continue
        chunks.append(chunk)
        if whole:
            return b"".join(chunks)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A receive that gives the body once, then whatever the connection says."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _respond(send: Send, status: int, body: bytes, *, close: bool) -> None:
    headers = [_JSON, (b"content-length", str(len(body)).encode()), *([_CLOSE] if close else [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
