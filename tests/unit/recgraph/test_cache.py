"""The cache Redis, on a real server, and without one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
import redis

from recgraph.cache import BackgroundWrites, RedisCache, publish_pools
from recgraph.errors import StageFailure


def _cache(url: str) -> RedisCache:
    return RedisCache(url, last_ttl_s=60, record_ttl_s=60)


@pytest.fixture
async def cache(redis_url: str) -> AsyncIterator[RedisCache]:
    made = _cache(redis_url)
    yield made
    await made.aclose()


async def test_pools_are_published_best_first_and_replaced_whole(cache: RedisCache, redis_url: str) -> None:
    assert publish_pools(redis_url, {"s": {"hot": [("a", 1.0), ("ü", 3.0), ("c", 2.0)], "fresh": []}}) == 2
    assert await cache.pool("s", "hot", 2, 1.0) == ["ü", "c"]
    assert await cache.pool("s", "fresh", 2, 1.0) == []
    publish_pools(redis_url, {"s": {"hot": [("z", 1.0)]}})
    assert await cache.pool("s", "hot", 9, 1.0) == ["z"]
    publish_pools(redis_url, {"s": {"hot": []}})
    assert await cache.pool("s", "hot", 9, 1.0) == []


async def test_last_result_is_kept_per_user_and_scene(cache: RedisCache, redis_url: str) -> None:
    cache.remember_result("u", "s", ["a", "b"])
    await cache.writes.flush()
    assert await cache.last_result("u", "s", 1.0) == ["a", "b"]
    assert await cache.last_result("u", "other", 1.0) == []
    with redis.Redis.from_url(redis_url) as client:
        assert 0 < client.ttl("last:s:u") <= 60  # type: ignore[operator]


async def test_a_record_gathers_the_stages_and_expires(cache: RedisCache, redis_url: str) -> None:
    cache.write_record("r", "recall", b'{"x":1}')
    cache.write_record("r", "coarse", b'{"x":2}')
    await cache.writes.flush()
    assert await cache.record("r", 1.0) == {"recall": b'{"x":1}', "coarse": b'{"x":2}'}
    with redis.Redis.from_url(redis_url) as client:
        assert 0 < client.ttl("record:r") <= 60  # type: ignore[operator]


async def test_a_dead_server_is_a_failure_and_writes_are_dropped() -> None:
    cache = _cache("redis://127.0.0.1:1/0")
    with pytest.raises(StageFailure, match="cache_unavailable"):
        await cache.last_result("u", "s", 1.0)
    cache.remember_result("u", "s", ["a"])
    await cache.writes.flush()
    assert cache.writes.failed == 1
    await cache.aclose()


async def test_a_hung_server_costs_no_more_than_the_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        cache = _cache(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        with pytest.raises(StageFailure, match="cache_timeout"):
            await asyncio.wait_for(cache.pool("s", "hot", 1, 0.02), 2.0)
        await cache.aclose()


async def test_background_writes_drop_rather_than_block() -> None:
    writes, gate, done = BackgroundWrites(limit=2), asyncio.Event(), list[int]()

    async def write(number: int) -> None:
        await gate.wait()
        done.append(number)

    for number in range(5):
        writes.add(lambda number=number: write(number))  # type: ignore[misc]
    assert writes.dropped == 3
    gate.set()
    await writes.flush()
    assert done == [0, 1]
    await writes.aclose()


async def test_what_somebody_else_wrote_is_a_failure_not_a_crash(cache: RedisCache, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set("last:s:odd", b"\xff not json")
        client.set("last:s:number", b"[1]")
        client.zadd("pool:odd:hot", {b"\xff": 1.0})
        client.set("pool:odd:fresh", b"no sorted set")
    for user in ("odd", "number"):
        with pytest.raises(StageFailure, match="cache_damaged"):
            await cache.last_result(user, "s", 1.0)
    with pytest.raises(StageFailure, match="cache_damaged"):
        await cache.pool("odd", "hot", 5, 1.0)
    with pytest.raises(StageFailure, match="cache_unavailable"):
        await cache.pool("odd", "fresh", 5, 1.0)
