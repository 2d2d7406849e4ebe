"""The HTTP edge of a serving process, as ASGI middleware: bounded bodies, predictions, readiness and draining.

KServe matches media types exactly, takes a body with certain keys for a CloudEvent, and stops predicting once a model
is not ready. Here the body goes to our own parser untouched, ahead of the server's routing, which costs several times
what an envelope does (docs/adr/0008). Readiness is the process's own, so that a draining process still answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from recgraph import contract
from recgraph.errors import TooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_JSON: Final = (b"content-type", b"application/json")
_CLOSE: Final = (b"connection", b"close")
_REPOSITORY: Final = "/v2/repository/"
"""Where the server lets anyone unload its model, which then would not be ready for any probe until a restart."""
_DISCARD_BYTES: Final = 16 << 20


@dataclass
class ProcessState:
    """What the edge knows of its process."""

    model_name: str
    ready: bool = False
    draining: bool = False


@dataclass(frozen=True)
class Reply:
    """An HTTP answer: JSON, with headers beside the media type."""

    status: int
    body: bytes
    headers: dict[str, str]


Answer = Callable[[bytes, dict[str, str]], Awaitable[Reply]]
"""Body and headers (lower-case names) of a prediction to its answer."""


class Edge:
    """Wraps the server's ASGI app. With `answer`, predictions of the process's own model are answered here, and the
    server is left with what can be read: readiness, metadata, metrics.
    """

    def __init__(self, app: App, state: ProcessState, answer: Answer | None = None) -> None:
        self._app = app
        self._state = state
        self._answer = answer
        self._ready_path = f"/v1/models/{state.model_name}"
        self._predict_path = f"{self._ready_path}:predict"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection scope."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["method"] == "GET" and scope["path"] == self._ready_path and not self._serving:
            await _respond(send, 503, b'{"error":"not ready"}', close=self._state.draining)
        elif scope["path"].startswith(_REPOSITORY) and scope["method"] == "POST":
            await _respond(send, 403, b'{"error":"this process serves the model of its bundle"}', close=False)
        elif self._answer and scope["method"] == "POST" and scope["path"] == self._predict_path:
            await self._predict(self._answer, scope, receive, self._closing(send))
        elif self._answer and scope["method"] not in ("GET", "HEAD"):
            # The server would read the whole body, and hand v2 requests to a predictor that it knows nothing of.
            error = b'{"error":"there is nothing here but POST %b"}' % self._predict_path.encode()
            await _respond(send, 405 if scope["path"] == self._predict_path else 404, error, close=True)
        else:
            await self._app(scope, _bounded(receive), self._closing(send))

    @property
    def _serving(self) -> bool:
        return self._state.ready and not self._state.draining

    async def _predict(self, answer: Answer, scope: Scope, receive: Receive, send: Send) -> None:
        # Values are UTF-8, as the gateway sends an id that has more than ASCII.
        headers = {name.decode("latin-1"): value.decode("utf-8", "replace") for name, value in scope["headers"]}
        try:
            body = await _read(receive, headers.get("content-length", ""))
        except TooLarge as error:
            request_id = contract.request_id_of(b"", headers.get("x-request-id", ""))
            await _respond(send, 413, contract.error_body(error, request_id), close=True)
            return
        if body is None:
            return
        if not self._state.ready:
            await _respond(send, 503, b'{"error":"not ready"}', close=False)
            return
        reply = await answer(body, headers)
        more = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers.items()]
        await _respond(send, reply.status, reply.body, close=False, more=more)

    def _closing(self, send: Send) -> Send:
        if not self._state.draining:
            return send

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), _CLOSE]
            await send(message)

        return closing


def _bounded(receive: Receive) -> Receive:
    """For what the server reads itself: a body without end is a client that has gone."""
    size = 0

    async def bounded() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        return message if size <= _DISCARD_BYTES else {"type": "http.disconnect"}

    return bounded


async def _read(receive: Receive, announced: str) -> bytes | None:
    """The whole body, or None when the client has gone. Raises TooLarge for one beyond the limit.

    What is too large is read to its end and thrown away, up to a bound: a client that is still sending when the
    connection closes would see a broken pipe instead of the answer.
    """
    if announced.isdigit() and int(announced) > _DISCARD_BYTES:
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


async def _respond(
    send: Send, status: int, body: bytes, *, close: bool, more: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    headers = [_JSON, (b"content-length", str(len(body)).encode()), *more, *([_CLOSE] if close else [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
