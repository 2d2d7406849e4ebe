"""POST over HTTP/1.1 on connections kept alive, for where the cost of a request itself counts.

A general client takes several times as long as these few lines. Nothing is retried, redirected or limited here;
a timeout is the caller's, who cancels.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, cast
from urllib.parse import quote, urlsplit

import httptools

_CONNECT_S = 30.0
_BODILESS = frozenset({204, 304})


class Response(NamedTuple):
    """A whole answer. Header names are in lower case; `arrived_s` is when its last bytes came (perf_counter)."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes
    arrived_s: float


class DisconnectedError(ConnectionError):
    """The other side ended the connection before the answer was whole."""


class MalformedError(ConnectionError):
    """What came is not HTTP."""


class Target(NamedTuple):
    """A URL taken apart: `authority` as the Host header has it, `path` with the query."""

    host: str
    port: int
    tls: bool
    authority: str
    path: str


@lru_cache
def parse_target(url: str) -> Target:
    """Where a URL leads. Raises ValueError for one that is not of http or https, or has a port that is no number."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError(f'unsupported protocol scheme "{parts.scheme}"')
    tls = parts.scheme == "https"
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.hostname or "", parts.port or (443 if tls else 80), tls, parts.netloc.rpartition("@")[2], path)


def json_post(target: Target, body: bytes) -> bytes:
    """Head and body of a POST of JSON, for `Connection.exchange`."""
    head = (
        f"POST {target.path} HTTP/1.1\r\nHost: {target.authority}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Pool:
    """Connections by host and port, the one used last first; one that was idle for `idle_s` is closed."""

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._idle: dict[tuple[str, int, bool], deque[Connection]] = {}

    async def connection(self, target: Target) -> Connection:
        """An idle connection or a new one, for one exchange. Raises OSError, after 30 s ETIMEDOUT."""
        key = target[:3]
        idle = self._idle.get(key)
        if idle is None:
            idle = self._idle[key] = deque()
        oldest = time.perf_counter() - self._idle_s
        while idle and idle[0].idle_since_s < oldest:
            idle.popleft().close()
        while idle:
            found = idle.pop()
            if not found.closing:
                return found
        return await _connect(target, idle)

    async def close(self) -> None:
        """Closes what is idle."""
        for idle in self._idle.values():
            while idle:
                idle.pop().close()
        await asyncio.sleep(0)  # the transports end in the loop's next round


async def _connect(target: Target, idle: deque[Connection]) -> Connection:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, made = await loop.create_connection(
                lambda: Connection(idle), target.host, target.port, ssl=target.tls or None
            )
    except TimeoutError as error:
        raise TimeoutError(errno.ETIMEDOUT, f"no connection after {_CONNECT_S:g} s") from error
    return made


class Connection(asyncio.Protocol):
    """One connection, one exchange at a time; after a whole answer it puts itself back among the idle ones."""

    def __init__(self, idle: deque[Connection]) -> None:
        self.idle_since_s = 0.0
        self.answered = False  # the headers of the answer have come
        self._idle = idle
        self._received = False
        self._until_end = False
        self._keep_alive = False
        self._arrived_s = 0.0
        self._headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self._response: Response | None = None
        self._waiter: asyncio.Future[Response] | None = None

    @property
    def closing(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Ends the connection at once."""
        self._transport.abort()

    async def exchange(self, request: bytes) -> Response:
        """The answer to a request of head and body. Raises DisconnectedError, MalformedError or another OSError."""
        self.answered = self._received = False
        self._response = None
        self._parser = httptools.HttpResponseParser(self)
        waiter: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiter = waiter
        self._transport.write(request)
        try:
            return await waiter
        except BaseException:
            # Once answered, the connection may be another exchange's before this one gets to run again.
            if self._waiter is waiter:
                self.close()
            raise

    # -- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has no such base

    def data_received(self, data: bytes) -> None:
        self._arrived_s = time.perf_counter()
        self._received = True
        waiter = self._waiter
        if waiter is None or waiter.done():
            self.close()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._keep_alive = False
            if self._response is None:
                waiter.set_exception(MalformedError(str(error)))
                self.close()
                return
        if self._response is not None:
            waiter.set_result(self._response)
            self._keep()

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._idle:
            self._idle.remove(self)
        if self._until_end and exc is None and self.answered:
            self.on_message_complete()
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            if self._response is not None:
                waiter.set_result(self._response)
            else:
                waiter.set_exception(exc or DisconnectedError("unexpected EOF" if self._received else "EOF"))

    def _keep(self) -> None:
        if self._keep_alive and not self._transport.get_write_buffer_size():
            self.idle_since_s = self._arrived_s
            self._idle.append(self)
        else:
            self._transport.close()

    # -- httptools -------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._keep_alive = False
        self._headers = {}
        self._chunks = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self.answered = status >= 200
        lengthless = b"content-length" not in self._headers and b"transfer-encoding" not in self._headers
        self._until_end = self.answered and lengthless and status not in _BODILESS

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        if self.answered and self._response is None:
            status = self._parser.get_status_code()
            self._keep_alive = self._parser.should_keep_alive()  # the parser forgets it after the message
            self._response = Response(status, self._headers, b"".join(self._chunks), self._arrived_s)
