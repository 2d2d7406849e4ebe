"""The router as an HTTP server: any path and any method goes to the graph, `/readyz` says whether it serves."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from recgraph.graph import gojson
from recgraph.graph.client import StepClient
from recgraph.graph.engine import GraphRouter, Reply
from recgraph.graph.spec import GraphSpec

log = logging.getLogger(__name__)

Patterns = Sequence[re.Pattern[str]]
_BODILESS = frozenset({204, 304})


def propagation_patterns(value: str | None = None) -> Patterns:
    """The headers that are handed to the steps, as the router reads PROPAGATE_HEADERS: regular expressions
    separated by commas, unanchored, against canonical names (`X-Request-Id`); invalid ones are logged and skipped.
    """
    text = os.environ.get("PROPAGATE_HEADERS", "") if value is None else value
    patterns = []
    for part in filter(None, text.split(",")):
        try:
            patterns.append(re.compile(part))
        except re.error as error:
            log.error("header pattern %r is skipped: %s", part, error)
    return patterns


class GraphServer:
    """Answers HTTP requests by running a graph."""

    def __init__(self, spec: GraphSpec, client: StepClient, patterns: Patterns = ()) -> None:
        self._timeouts = spec.router_timeouts
        self._router = GraphRouter(spec, client.call)
        self._patterns = patterns

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request. The write timeout counts from its headers on; past it the connection is closed unanswered."""
        if request.path == "/readyz":
            return web.Response()
        started = time.monotonic()
        body, complete = await self._read(request)
        reply = await self._router.route(body, self._propagated(request))
        if time.monotonic() - started > self._timeouts.server_write and request.transport is not None:
            request.transport.abort()
        response = _response(reply)
        if not complete:
            response.force_close()
        return response

    async def close(self) -> None:
        """Ends what still runs for requests that were answered."""
        await self._router.close()

    async def _read(self, request: web.BaseRequest) -> tuple[bytes, bool]:
        """The body and whether it is whole: what has come within the read timeout is used, as in the real router."""
        chunks: list[bytes] = []
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")  # who asks waits a while for it
        try:
            async with asyncio.timeout(self._timeouts.server_read):
                async for chunk in request.content.iter_any():
                    chunks.append(chunk)
        except (TimeoutError, web.RequestPayloadError):
            return b"".join(chunks), False
        return b"".join(chunks), True

    def _propagated(self, request: web.BaseRequest) -> list[tuple[str, str]]:
        if not self._patterns:
            return []
        named = [("-".join(p.capitalize() for p in name.split("-")), value) for name, value in request.headers.items()]
        return [(name, value) for name, value in named if any(p.search(name) for p in self._patterns)]


def _response(reply: Reply) -> web.Response:
    """The reply as HTTP; of a step's headers nothing is kept, and JSON is told by looking at the body."""
    body = b"" if reply.status in _BODILESS else reply.body
    response = web.Response(status=reply.status, body=body or None)
    if body:
        valid = gojson.parse(body) is not gojson.INVALID
        response.headers["Content-Type"] = "application/json" if valid else "text/plain; charset=utf-8"
    return response


@asynccontextmanager
async def serving(spec: GraphSpec, host: str, port: int, patterns: Patterns = ()) -> AsyncIterator[int]:
    """Serves a resolved graph until the block ends; gives the port (a free one for 0). OSError if it is in use."""
    timeouts = spec.router_timeouts
    async with StepClient(timeouts.service_client) as client:
        graph = GraphServer(spec, client, patterns)
        server = web.Server(
            graph.handle,
            request_factory=_request,
            keepalive_timeout=timeouts.server_idle,
            access_log=None,
            auto_decompress=False,  # the body goes on as it came, without its headers
        )
        runner = web.ServerRunner(server, shutdown_timeout=2.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port, backlog=1024)
            await site.start()
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()
            await graph.close()


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    # The real router has no limit of its own; entry answers 413.
    return web.BaseRequest(message, payload, protocol, writer, task, task.get_loop(), client_max_size=0)
