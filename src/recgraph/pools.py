"""Pools as the stages see them: in memory, refreshed behind the requests, with the bundle's snapshot behind that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from recgraph.bundle.store import Pools
from recgraph.cache import Cache, PoolKind
from recgraph.errors import StageFailure

_AT_LEAST: Final = 500
"""Items that are read of a pool at least. More are read where more are asked for: a pool of thousands takes
milliseconds, and whatever request comes meanwhile waits for them."""
_REFRESH_TIMEOUT_S: Final = 1.0


class PoolSource(Protocol):
    """Where recall gets its hot and fresh candidates."""

    async def pool(self, scene: str, kind: PoolKind, limit: int, timeout_s: float) -> list[str]:
        """At most `limit` item ids, best first. Never raises for a fault of a dependency; empty if there is none."""
        ...


@dataclass
class _Entry:
    items: list[str]
    loaded_at: float
    limit: int
    refresh: asyncio.Task[None] | None = None


class CachedPools:
    """Pools of the cache Redis, held in memory for `refresh_s` and then refreshed in the background.

    A request waits for Redis only the first time a pool is asked for. While Redis is gone the last good version stays,
    and before there is one, the bundle's snapshot.
    """

    def __init__(
        self, cache: Cache, snapshot: Pools, *, refresh_s: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._cache = cache
        self._snapshot = snapshot
        self._refresh_s = refresh_s
        self._monotonic = monotonic
        self._entries: dict[tuple[str, PoolKind], _Entry] = {}

    async def pool(self, scene: str, kind: PoolKind, limit: int, timeout_s: float) -> list[str]:
        """See PoolSource. With `timeout_s` <= 0 only what is in memory or in the bundle is used."""
        entry = self._entries.get((scene, kind))
        if entry is None:
            if timeout_s <= 0:
                return self._of_bundle(scene, kind)[:limit]
            entry = _Entry(self._of_bundle(scene, kind), self._monotonic(), max(2 * limit, _AT_LEAST))
            self._entries[scene, kind] = entry
            await self._load(scene, kind, entry, timeout_s)
        elif self._outgrown(entry, limit) and (entry.refresh is None or entry.refresh.done()):
            entry.refresh = asyncio.get_running_loop().create_task(self._load(scene, kind, entry, _REFRESH_TIMEOUT_S))
        return entry.items[:limit]

    def _outgrown(self, entry: _Entry, limit: int) -> bool:
        """Whether a pool is to be read again: it is old, or more of it is wanted than before."""
        grown = limit > entry.limit
        if grown:
            entry.limit = 2 * limit
        return grown or self._monotonic() - entry.loaded_at > self._refresh_s

    async def _load(self, scene: str, kind: PoolKind, entry: _Entry, timeout_s: float) -> None:
        try:
            items = await self._cache.pool(scene, kind, entry.limit, timeout_s)
        except StageFailure:
            items = []
        entry.loaded_at = self._monotonic()
        if items:
            entry.items = items

    def _of_bundle(self, scene: str, kind: PoolKind) -> list[str]:
        return [item for item, _ in self._snapshot.get(scene, {}).get(kind, [])]
