"""The connection to the online store: one per process and loop, every wait bounded, failures by their reason.

A connection of our own over hiredis: commands of concurrent reads are written as they come and answered in order, so
that no read waits for another's answer to be sent. redis-py takes a connection of its pool per command and several
times as long for all but the parsing (docs/adr/0012).
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import hiredis
from redis.asyncio.connection import SSLConnection, parse_url

from recgraph.errors import DataError, StageFailure

_CONNECT_TIMEOUT_S: Final = 1.0
_SILENT_S: Final = 1.0
"""A connection on which nothing comes for so long though something is asked for is given up."""
Command = tuple[str | bytes, ...]


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


class Connection(asyncio.Protocol):
    """One connection. Answers come in the order in which the commands were written."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(notEnoughData=Connection)
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._silent_since = 0.0
        self._transport: asyncio.Transport | None = None

    @property
    def open(self) -> bool:
        """Whether commands can be written."""
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, commands: Sequence[Command]) -> list[asyncio.Future[Any]]:
        """Writes commands at once. Each future gets a reply, or ConnectionError when the connection is lost before it.

        A reply that says no is a value too: hiredis.ReplyError.
        """
        assert self._transport is not None
        if not self._waiting:
            self._silent_since = self._loop.time()
        futures = [self._loop.create_future() for _ in commands]
        self._waiting.extend(futures)
        self._transport.writelines([hiredis.pack_command(command) for command in commands])  # type: ignore[arg-type]
        return futures

    def close(self) -> None:
        """Ends the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def close_if_silent(self) -> None:
        """Ends a connection whose other side has gone without a word."""
        if self._waiting and self._loop.time() - self._silent_since > _SILENT_S:
            self.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of it

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._silent_since = self._loop.time()
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not Connection:
                future = self._waiting.popleft()
                if not future.done():  # its caller may have given up
                    future.set_result(reply)
        except (hiredis.ProtocolError, IndexError):
            self.close()  # not Redis, or an answer to nothing

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(ConnectionResetError(str(exc or "the server closed the connection")))


class OnlineStoreClient:
    """Asks the online store over one connection, made when it is first needed and again when it was lost."""

    def __init__(self, url: str) -> None:
        options: dict[str, Any] = dict(parse_url(redis_url(url)))
        self._host, self._port = options.get("host", "localhost"), options.get("port", 6379)
        self._tls: ssl.SSLContext | None = None
        if options.pop("connection_class", None) is SSLConnection:
            self._tls = SSLConnection(**options).ssl_context.get()
        self._greeting = _greeting(options)
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def ask(self, commands: Sequence[Command], timeout_s: float) -> list[Any]:
        """The replies to commands that only read, in one round trip.

        Raises StageFailure("features_timeout" or "features_unavailable").
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._ask(commands)
        except TimeoutError as error:
            if self._connection is not None:
                self._connection.close_if_silent()
            raise StageFailure("features_timeout", f"no answer within {timeout_s * 1000:.0f} ms") from error
        except (OSError, hiredis.ReplyError) as error:
            raise StageFailure("features_unavailable", f"{type(error).__name__}: {error}") from error

    async def warm_up(self, timeout_s: float) -> None:
        """Connects and waits for an answer."""
        await self.ask([("PING",)], timeout_s)

    async def aclose(self) -> None:
        """Closes the connection, if it belongs to the running loop; that of a past loop died with it."""
        connection, self._connection = self._connection, None
        if connection is not None and self._loop is asyncio.get_running_loop():
            connection.close()

    async def _ask(self, commands: Sequence[Command]) -> list[Any]:
        connection = await self._connected()
        try:
            return await _replies(connection, commands)
        except ConnectionError:
            # A restarted server leaves a dead socket, which shows only in use: one immediate second attempt.
            return await _replies(await self._connected(), commands)

    async def _connected(self) -> Connection:
        """The connection of the running loop. Callers share an attempt, which outlives the patience of each."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._connection, self._connecting = loop, None, None
        if self._connection is not None and self._connection.open:
            return self._connection
        if self._connecting is None:
            self._connecting = loop.create_task(self._connect())
            self._connecting.add_done_callback(self._connect_ended)
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                _, made = await loop.create_connection(Connection, self._host, self._port, ssl=self._tls)
                try:
                    await _replies(made, self._greeting)
                except BaseException:
                    made.close()
                    raise
        except TimeoutError as error:
            raise ConnectionError(
                f"no connection to {self._host}:{self._port} within {_CONNECT_TIMEOUT_S} s"
            ) from error
        self._connection = made
        return made

    def _connect_ended(self, attempt: asyncio.Task[Connection]) -> None:
        self._connecting = None
        if not attempt.cancelled():
            attempt.exception()  # seen: its callers may all have given up


async def _replies(connection: Connection, commands: Sequence[Command]) -> list[Any]:
    """The replies. Raises the first that says no, and ConnectionError."""
    futures = connection.ask(commands)
    try:
        replies = [await future for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()  # nobody waits for the others either
        raise
    for reply in replies:
        if isinstance(reply, hiredis.ReplyError):
            raise reply
    return replies


def _greeting(options: dict[str, Any]) -> list[Command]:
    """What a new connection says first: who it is, and which database it wants."""
    commands: list[Command] = []
    if options.get("password"):
        user = [options["username"]] if options.get("username") else []
        commands.append(("AUTH", *user, options["password"]))
    if options.get("db"):
        commands.append(("SELECT", str(options["db"])))
    return commands
