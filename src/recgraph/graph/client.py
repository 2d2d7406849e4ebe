"""Calls of the router to the steps, with pooled connections; failures are worded as Go's HTTP client words them."""

from __future__ import annotations

import asyncio
import errno
import gzip
import os
import socket
import ssl
import zlib
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urljoin

from recgraph.graph.engine import Headers, Reply, RoutingError
from recgraph.http1 import Connection, Pool, Response, Target, parse_target

# As http.DefaultTransport: idle connections are dropped after 90 s.
_IDLE_S = 90.0
_MOST_REQUESTS = 10
_BECOMES_GET = frozenset({301, 302, 303})
_REPEATED = frozenset({307, 308})
_DEFAULTS = (("User-Agent", "recgraph-router"), ("Accept-Encoding", "gzip"), ("Content-Type", "application/json"))
# What Go's client writes itself, whatever the headers handed to it say; and what it keeps from another host.
_OWN = frozenset({"Host", "Content-Length", "Transfer-Encoding", "Trailer"})
_SECRET = frozenset({"Authorization", "Cookie", "Cookie2", "Www-Authenticate"})


class StepClient:
    """POSTs bodies to steps. `timeout_s` bounds one call with its body; None waits for ever, as the router does."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._pool = Pool(_IDLE_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pool.close()

    async def call(self, url: str, body: bytes, headers: Headers) -> Reply:
        """The step's status and body. Raises RoutingError when there is no whole response."""
        request = _Request(url, body, headers)
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._follow(request)
            return Reply(response.status, _content(response, headers))
        except TimeoutError as error:
            raise RoutingError(request.timed_out(error)) from error
        except (OSError, ValueError, EOFError, zlib.error) as error:
            raise RoutingError(request.failed(error)) from error

    async def _follow(self, request: _Request) -> Response:
        """The first answer that is not a redirect."""
        for _ in range(_MOST_REQUESTS):
            request.connection = None
            request.connection = await self._pool.connection(request.target)
            response = await request.connection.exchange(request.encoded())
            if not request.moved(response):
                return response
        raise RoutingError(f'Post "{request.location}": stopped after {_MOST_REQUESTS} redirects')


@dataclass
class _Request:
    """A request to a step, and how far it has come."""

    url: str
    body: bytes
    headers: Headers
    method: str = "POST"
    connection: Connection | None = None
    location: str = ""

    @property
    def target(self) -> Target:
        return parse_target(self.url)

    def encoded(self) -> bytes:
        """The request as it is sent."""
        target = self.target
        headers = self.headers
        if headers:
            given = {name for name, _ in headers} | _OWN
            headers = [*(h for h in headers if h[0] not in _OWN), *(h for h in _DEFAULTS if h[0] not in given)]
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers or _DEFAULTS)
        length = f"Content-Length: {len(self.body)}\r\n" if self.method == "POST" else ""
        head = f"{self.method} {target.path} HTTP/1.1\r\nHost: {target.authority}\r\n{lines}{length}\r\n"
        return head.encode("utf-8", "surrogateescape") + self.body

    def moved(self, response: Response) -> bool:
        """Whether the answer redirects; then this is the request to send next."""
        location = response.headers.get(b"location", b"").decode("utf-8", "replace")
        if not location or response.status not in _BECOMES_GET | _REPEATED:
            return False
        if response.status in _BECOMES_GET:
            self.method, self.body = "GET", b""
        before = self.target.host
        self.location, self.url = location, urljoin(self.url, location)
        if self.target.host != before:
            self.headers = [header for header in self.headers if header[0] not in _SECRET]
        return True

    def timed_out(self, error: TimeoutError) -> str:
        if self.connection is not None and self.connection.answered:
            return "context deadline exceeded (Client.Timeout or context cancellation while reading body)"
        if error.errno:
            return f'Post "{self.url}": dial tcp {self.target.authority}: i/o timeout'
        return f'Post "{self.url}": context deadline exceeded (Client.Timeout exceeded while awaiting headers)'

    def failed(self, error: Exception) -> str:
        if isinstance(error, ValueError):
            return f'Post "{self.url}": {error}'
        if self.connection is not None:
            reason = _reason(error)
            return reason if self.connection.answered else f'Post "{self.url}": {reason}'
        if isinstance(error, ssl.SSLError):
            return f'Post "{self.url}": tls: {error}'
        if isinstance(error, socket.gaierror):
            return f'Post "{self.url}": dial tcp: lookup {self.target.host}: no such host'
        return f'Post "{self.url}": dial tcp {self.target.host}:{self.target.port}: connect: {_reason(error)}'


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__


def _content(response: Response, headers: Headers) -> bytes:
    """The body; decompressed, unless whoever asked the router asked for that encoding. Raises OSError, EOFError or
    zlib.error for one that is damaged.
    """
    if response.headers.get(b"content-encoding", b"").lower() != b"gzip":
        return response.body
    if any(name == "Accept-Encoding" for name, _ in headers):
        return response.body
    return gzip.decompress(response.body)
