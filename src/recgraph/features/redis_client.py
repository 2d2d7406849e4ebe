"""The connection to the online store: one pool per process and loop, every wait bounded, failures by their reason."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import hiredis
import redis.asyncio as redis_asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from recgraph.errors import DataError, StageFailure

T = TypeVar("T")

_CONNECT_TIMEOUT_S = 1.0


def redis_url(address: str) -> str:
    """A redis:// URL of `address`, which is one already or in Feast's form `host:port[,k=v]...`."""
    if "://" in address:
        return address
    host, *options = address.split(",")
    parameters = dict(option.split("=", 1) for option in options)
    user, password = (parameters.pop(name, "").strip('"') for name in ("username", "password"))
    login = f"{quote(user)}:{quote(password, safe='')}@" if password else ""
    database = parameters.pop("db", "0")
    scheme = "rediss" if parameters.pop("ssl", "false").lower() == "true" else "redis"
    query = f"?{urlencode(parameters)}" if parameters else ""
    return f"{scheme}://{login}{host}/{database}{query}"


def feast_connection(address: str) -> str:
    """`address` in Feast's form `host:port[,k=v]...`, which is that already or a redis:// URL."""
    if "://" not in address:
        return address
    url = urlsplit(address)
    options = dict(parse_qsl(url.query))
    if url.path.strip("/"):
        options["db"] = url.path.strip("/")
    if url.scheme == "rediss":
        options["ssl"] = "true"
    # Feast decodes values as JSON: without the quotes a password of digits becomes a number.
    if url.username:
        options["username"] = json.dumps(unquote(url.username))
    if url.password:
        options["password"] = json.dumps(unquote(url.password))
    if any("," in value for value in options.values()):
        raise DataError(
            "Feast's connection string cannot carry a comma, and the Redis URL has one in its password or query"
        )
    return ",".join([f"{url.hostname}:{url.port or 6379}", *(f"{name}={value}" for name, value in options.items())])


class _FastPacking:
    """Packs commands in C, as redis-py's synchronous client does: a third of the time of an MGET of 600 keys."""

    def pack_command(self, *args: Any) -> list[bytes]:
        """The command as one string of bytes on the wire."""
        return [hiredis.pack_command(args)]


class _Connection(_FastPacking, redis_asyncio.Connection):
    pass


class _TlsConnection(_FastPacking, redis_asyncio.SSLConnection):
    pass


class OnlineStoreClient:
    """A lazily made redis.asyncio client, bound to the running loop and made anew when that is another one."""

    def __init__(self, url: str, *, max_connections: int = 32) -> None:
        self._url = redis_url(url)
        self._max_connections = max_connections
        self._client: redis_asyncio.Redis | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self) -> redis_asyncio.Redis:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            pool = redis_asyncio.BlockingConnectionPool.from_url(
                self._url,
                connection_class=_TlsConnection if self._url.startswith("rediss:") else _Connection,
                max_connections=self._max_connections,
                timeout=None,
                # Every call has a bound of its own; one more per answer would cost a third of a pipeline's time.
                socket_timeout=None,
                socket_connect_timeout=_CONNECT_TIMEOUT_S,
                # A restarted server leaves dead sockets in the pool: one immediate second attempt, no waiting.
                retry=Retry(NoBackoff(), 1),
            )
            self._client, self._loop = redis_asyncio.Redis.from_pool(pool), loop
        return self._client

    async def call(self, command: Awaitable[T], timeout_s: float) -> T:
        """The answer to `command`, or StageFailure("features_timeout" or "features_unavailable")."""
        try:
            async with asyncio.timeout(timeout_s):
                return await command
        except (TimeoutError, RedisTimeoutError) as error:
            raise StageFailure("features_timeout", f"no answer within {timeout_s * 1000:.0f} ms") from error
        except (RedisError, OSError) as error:
            raise StageFailure("features_unavailable", f"{type(error).__name__}: {error}") from error

    async def warm_up(self, timeout_s: float) -> None:
        """Connects and waits for an answer."""
        await self.call(self.get().echo("ready"), timeout_s)

    async def aclose(self) -> None:
        """Closes the connections, if they belong to the running loop; those of a past loop died with it."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()
