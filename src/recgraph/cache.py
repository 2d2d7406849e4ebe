"""The cache Redis: pools, a user's last result, decision records. Losing all of it degrades answers, never ends them.

Keys: `pool:{scene}:{hot|fresh}` sorted set of item ids by score; `last:{scene}:{user_id}` JSON list of item ids, best
first; `record:{request_id}` hash, a field per stage (recgraph.records).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeVar

import msgspec
import redis
import redis.asyncio as redis_asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from recgraph.errors import StageFailure

PoolKind = Literal["hot", "fresh"]
T = TypeVar("T")
_ids = msgspec.json.Decoder(list[str])
_log = logging.getLogger(__name__)
_CONNECT_TIMEOUT_S: Final = 1.0
_SOCKET_TIMEOUT_S: Final = 5.0  # a backstop; every call has a bound of its own
_WRITE_TIMEOUT_S: Final = 0.5
_QUEUE: Final = 1_000


def pool_key(scene: str, kind: PoolKind) -> str:
    """Key of a pool."""
    return f"pool:{scene}:{kind}"


def last_key(user_id: str, scene: str) -> str:
    """Key of a user's last result."""
    return f"last:{scene}:{user_id}"


def record_key(request_id: str) -> str:
    """Key of a decision record."""
    return f"record:{request_id}"


class Cache(Protocol):
    """What the stages need of the cache Redis. Reads raise StageFailure; writes return at once and may be dropped."""

    async def pool(self, scene: str, kind: PoolKind, limit: int, timeout_s: float) -> list[str]:
        """Item ids of a pool, best first; empty where nothing was published."""
        ...

    async def last_result(self, user_id: str, scene: str, timeout_s: float) -> list[str]:
        """What the user was last shown, best first; empty for a user without one."""
        ...

    def remember_result(self, user_id: str, scene: str, items: Sequence[str]) -> None:
        """Keeps a result for `last_result`, after the answer."""
        ...

    def write_record(self, request_id: str, stage: str, record: bytes) -> None:
        """Keeps one stage's part of a decision record, after the answer."""
        ...


class NoCache:
    """A cache that knows nothing and keeps nothing: evaluation and warm-up."""

    async def pool(self, scene: str, kind: PoolKind, limit: int, timeout_s: float) -> list[str]:
        """Nothing."""
        return []

    async def last_result(self, user_id: str, scene: str, timeout_s: float) -> list[str]:
        """Nothing."""
        return []

    def remember_result(self, user_id: str, scene: str, items: Sequence[str]) -> None:
        """Keeps nothing."""

    def write_record(self, request_id: str, stage: str, record: bytes) -> None:
        """Keeps nothing."""


class BackgroundWrites:
    """Runs writes one after another behind the answers. At most `limit` wait; what comes on top is dropped, counted."""

    def __init__(self, limit: int = _QUEUE) -> None:
        self._queue: asyncio.Queue[Callable[[], Awaitable[object]]] = asyncio.Queue(limit)
        self._worker: asyncio.Task[None] | None = None
        self.dropped = 0
        self.failed = 0

    def add(self, write: Callable[[], Awaitable[object]]) -> None:
        """Queues a write; never blocks and never raises."""
        try:
            self._queue.put_nowait(write)
        except asyncio.QueueFull:
            self.dropped += 1
            return
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._run())

    async def flush(self) -> None:
        """Waits until everything queued so far was tried."""
        await self._queue.join()

    async def aclose(self) -> None:
        """Stops without waiting for what is still queued."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            write = await self._queue.get()
            try:
                async with asyncio.timeout(_WRITE_TIMEOUT_S):
                    await write()
            except (RedisError, OSError, TimeoutError) as error:
                self.failed += 1
                _log.debug("a write to the cache failed: %s", error)
            finally:
                self._queue.task_done()


class RedisCache:
    """The cache Redis through redis.asyncio: one pool per process, every call bounded."""

    def __init__(self, url: str, *, last_ttl_s: int, record_ttl_s: int, max_connections: int = 16) -> None:
        pool = redis_asyncio.BlockingConnectionPool.from_url(
            url,
            max_connections=max_connections,
            timeout=None,
            socket_timeout=_SOCKET_TIMEOUT_S,
            socket_connect_timeout=_CONNECT_TIMEOUT_S,
            retry=Retry(NoBackoff(), 1),  # a restarted server leaves dead sockets: one immediate second attempt
        )
        self._client = redis_asyncio.Redis.from_pool(pool)
        self._last_ttl_s = last_ttl_s
        self._record_ttl_s = record_ttl_s
        self.writes = BackgroundWrites()

    async def pool(self, scene: str, kind: PoolKind, limit: int, timeout_s: float) -> list[str]:
        """See Cache."""
        found: list[bytes] = await self._call(
            self._client.zrange(pool_key(scene, kind), 0, limit - 1, desc=True), timeout_s
        )
        try:
            return [item.decode() for item in found]
        except UnicodeDecodeError as error:
            raise StageFailure("cache_damaged", f"{pool_key(scene, kind)}: {error}") from error

    async def last_result(self, user_id: str, scene: str, timeout_s: float) -> list[str]:
        """See Cache."""
        found: bytes | None = await self._call(self._client.get(last_key(user_id, scene)), timeout_s)
        try:
            return _ids.decode(found) if found else []
        except msgspec.DecodeError as error:
            raise StageFailure("cache_damaged", f"{last_key(user_id, scene)}: {error}") from error

    async def record(self, request_id: str, timeout_s: float) -> dict[str, bytes]:
        """A decision record: JSON by stage; empty where none is kept."""
        command: Any = self._client.hgetall(record_key(request_id))
        found: dict[bytes, bytes] = await self._call(command, timeout_s)
        return {stage.decode(): value for stage, value in found.items()}

    def remember_result(self, user_id: str, scene: str, items: Sequence[str]) -> None:
        """See Cache."""
        key, value, ttl = last_key(user_id, scene), msgspec.json.encode(list(items)), self._last_ttl_s
        self.writes.add(lambda: self._client.set(key, value, ex=ttl))

    def write_record(self, request_id: str, stage: str, record: bytes) -> None:
        """See Cache."""
        self.writes.add(lambda: self._write_record(record_key(request_id), stage, record))

    async def ping(self, timeout_s: float) -> None:
        """Connects, so that the first request does not."""
        command: Any = self._client.ping()
        await self._call(command, timeout_s)

    async def aclose(self) -> None:
        """Stops the background writes and closes the connections."""
        await self.writes.aclose()
        await self._client.aclose()

    async def _write_record(self, key: str, stage: str, record: bytes) -> None:
        pipeline = self._client.pipeline(transaction=False)
        pipeline.hset(key, stage, record.decode())
        pipeline.expire(key, self._record_ttl_s)
        await pipeline.execute()

    async def _call(self, command: Awaitable[T], timeout_s: float) -> T:
        try:
            async with asyncio.timeout(timeout_s):
                return await command
        except (TimeoutError, RedisTimeoutError) as error:
            raise StageFailure("cache_timeout", f"no answer within {timeout_s * 1000:.0f} ms") from error
        except (RedisError, OSError) as error:
            raise StageFailure("cache_unavailable", f"{type(error).__name__}: {error}") from error


def publish_pools(url: str, pools: Mapping[str, Mapping[str, Sequence[tuple[str, float]]]]) -> int:
    """Writes pools (scene -> hot|fresh -> (item id, score)) into the cache Redis, for jobs; returns how many.

    Each pool is replaced as a whole: built under another name and renamed, so that no reader sees half of one.
    """
    published = 0
    with redis.Redis.from_url(url, socket_timeout=_SOCKET_TIMEOUT_S) as client:
        for scene, kinds in pools.items():
            for kind, rows in kinds.items():
                key = f"pool:{scene}:{kind}"
                pipeline = client.pipeline(transaction=True)
                pipeline.delete(f"{key}:next", *([] if rows else [key]))
                if rows:
                    pipeline.zadd(f"{key}:next", {item: float(score) for item, score in rows})
                    pipeline.rename(f"{key}:next", key)
                pipeline.execute()
                published += 1
    return published
