"""Pools in memory: Redis first, the last good version, the bundle's snapshot."""

from __future__ import annotations

import asyncio

from recgraph.cache import NoCache, PoolKind
from recgraph.errors import StageFailure
from recgraph.pools import CachedPools

SNAPSHOT = {"s": {"hot": [("b1", 2.0), ("b2", 1.0)]}}


class _Redis(NoCache):
    """A cache whose pool can be set, or be gone (None)."""

    def __init__(self, items: list[str] | None) -> None:
        self.items = items
        self.asked = 0

    async def pool(self, scene: str, kind: PoolKind, limit: int, timeout_s: float) -> list[str]:
        self.asked += 1
        if self.items is None:
            raise StageFailure("cache_unavailable")
        return self.items[:limit]


async def test_redis_comes_first_and_is_asked_once_per_period() -> None:
    cache, now = _Redis(["r1", "r2", "r3"]), [0.0]
    pools = CachedPools(cache, SNAPSHOT, refresh_s=10.0, monotonic=lambda: now[0])
    assert await pools.pool("s", "hot", 2, 1.0) == ["r1", "r2"]
    assert await pools.pool("s", "hot", 9, 1.0) == ["r1", "r2", "r3"]
    assert cache.asked == 1
    cache.items, now[0] = ["n1"], 11.0
    assert await pools.pool("s", "hot", 9, 1.0) == ["r1", "r2", "r3"], "refreshed behind the request"
    await asyncio.sleep(0)
    assert await pools.pool("s", "hot", 9, 1.0) == ["n1"]
    assert cache.asked == 2


async def test_the_last_good_version_outlives_redis() -> None:
    cache, now = _Redis(["r1"]), [0.0]
    pools = CachedPools(cache, SNAPSHOT, refresh_s=10.0, monotonic=lambda: now[0])
    await pools.pool("s", "hot", 9, 1.0)
    for gone in (None, []):
        cache.items, now[0] = gone, now[0] + 11.0
        await pools.pool("s", "hot", 9, 1.0)
        await asyncio.sleep(0)
        assert await pools.pool("s", "hot", 9, 1.0) == ["r1"]


async def test_the_snapshot_stands_in_for_what_was_never_read() -> None:
    cache, now = _Redis(None), [0.0]
    pools = CachedPools(cache, SNAPSHOT, refresh_s=10.0, monotonic=lambda: now[0])
    assert await pools.pool("s", "hot", 1, 0.0) == ["b1"], "without time nobody is asked"
    assert cache.asked == 0
    assert await pools.pool("s", "hot", 9, 1.0) == ["b1", "b2"]
    assert await pools.pool("unknown", "fresh", 9, 1.0) == []
    cache.items, now[0] = ["r1"], 11.0
    await pools.pool("s", "hot", 9, 1.0)
    await asyncio.sleep(0)
    assert await pools.pool("s", "hot", 9, 1.0) == ["r1"]


async def test_as_much_of_a_pool_is_read_as_is_asked_for() -> None:
    cache = _Redis([f"r{number}" for number in range(5000)])
    pools = CachedPools(cache, SNAPSHOT, refresh_s=10.0, monotonic=lambda: 0.0)
    assert len(await pools.pool("s", "hot", 300, 1.0)) == 300
    assert len(await pools.pool("s", "hot", 600, 1.0)) == 600
    assert len(await pools.pool("s", "hot", 2000, 1.0)) == 600, "what is in memory, and more from the next request on"
    await asyncio.sleep(0)
    assert len(await pools.pool("s", "hot", 2000, 1.0)) == 2000
    assert cache.asked == 2
