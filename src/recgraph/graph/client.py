"""Calls of the router to the steps, with pooled connections; failures are worded as Go's HTTP client words them."""

from __future__ import annotations

import asyncio
import errno
import io
import os
from types import TracebackType
from typing import Self

import aiohttp

from recgraph.graph.engine import Headers, Reply, RoutingError

# As http.DefaultTransport: idle connections are dropped after 90 s.
_IDLE_S = 90.0
# aiohttp writes larger bodies in pieces, so that the event loop is not held.
_LARGE_BYTES = 2**20
_DIAL_ERRORS = {errno.ECONNREFUSED: "connection refused", errno.EHOSTUNREACH: "no route to host"}


class StepClient:
    """POSTs bodies to steps. `timeout_s` bounds one call with its body; None waits for ever, as the router does."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "recgraph-router", "Accept-Encoding": "gzip"},
            skip_auto_headers=("Accept",),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(self, url: str, body: bytes, headers: Headers) -> Reply:
        """The step's status and body. Raises RoutingError when there is no whole response."""
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._post(url, body, headers)
                return Reply(response.status, await response.read())
        except TimeoutError as error:
            raise RoutingError(_timeout_cause(url, answered=response is not None)) from error
        except aiohttp.ClientPayloadError as error:
            raise RoutingError("unexpected EOF") from error
        except (aiohttp.ClientError, OSError) as error:
            raise RoutingError(f'Post "{url}": {_cause(error)}') from error
        finally:
            if response is not None:
                response.release()

    async def _post(self, url: str, body: bytes, headers: Headers) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("StepClient is used outside its context")
        sent = list(headers)
        if not any(name == "Content-Type" for name, _ in sent):
            sent.append(("Content-Type", "application/json"))
        data = body if len(body) <= _LARGE_BYTES else io.BytesIO(body)
        return await self._session.post(url, data=data, headers=sent)


def _timeout_cause(url: str, *, answered: bool) -> str:
    if answered:
        return "context deadline exceeded (Client.Timeout or context cancellation while reading body)"
    return f'Post "{url}": context deadline exceeded (Client.Timeout exceeded while awaiting headers)'


def _cause(error: aiohttp.ClientError | OSError) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"dial tcp: lookup {error.host}: no such host"
    if isinstance(error, aiohttp.ClientConnectorError):
        reason = _DIAL_ERRORS.get(error.os_error.errno or 0) or os.strerror(error.os_error.errno or 0).lower()
        return f"dial tcp {error.host}:{error.port}: connect: {reason}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "EOF"
    if isinstance(error, aiohttp.TooManyRedirects):
        return "stopped after 10 redirects"
    return str(error) or type(error).__name__
