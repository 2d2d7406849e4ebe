"""Arms in the cache Redis, under the key `arms`: published by jobs, followed by every entry.

Entries poll: a change reaches all of them within POLL_S and a read, whatever their number and their node.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import redis
import redis.asyncio as redis_asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from recgraph.errors import DataError
from recgraph.release import arms as arms_of
from recgraph.release.arms import Arms

KEY: Final = "arms"
POLL_S: Final = 0.5
_TIMEOUT_S: Final = 0.5
_SOCKET_TIMEOUT_S: Final = 5.0
_log = logging.getLogger(__name__)

# One value, compared and set in one step: two publishers cannot pass each other. Answers the version in force.
# cjson is not asked: whoever wrote a value that is no such JSON is overwritten.
_PUBLISH: Final = """
local held = redis.call('GET', KEYS[1])
local version = held and tonumber(string.match(held, '"version":%s*(%d+)')) or -1
if ARGV[3] == 'replace' or tonumber(ARGV[1]) > version then
  redis.call('SET', KEYS[1], ARGV[2])
  return ARGV[1]
end
return tostring(version)
"""


class OlderVersion(DataError):
    """Arms of a greater version are in force; `held` is that version."""

    def __init__(self, offered: int, held: int) -> None:
        super().__init__(f"arms version {offered} is refused: version {held} is in force, and versions only grow")
        self.held = held


def publish(url: str, arms: Arms, *, replace: bool = False) -> None:
    """Puts arms in force. The same arms again are no error. Raises OlderVersion, and CacheGone.

    `replace` is for a new installation, whose versions begin again: it takes the place of whatever is there.
    """
    with _client(url) as client:
        held = int(client.eval(_PUBLISH, 1, KEY, str(arms.version), arms_of.encode(arms), "replace" if replace else ""))
        if held != arms.version:
            raise OlderVersion(arms.version, held)
        # Equal versions: the script has kept what was there, so a retry passes and another content does not.
        if _decode(client.get(KEY)) != arms:
            raise OlderVersion(arms.version, held)


def read(url: str) -> Arms | None:
    """The arms in force; None where none were published. Raises CacheGone."""
    with _client(url) as client:
        return _decode(client.get(KEY))


class CacheGone(DataError):
    """The cache Redis did not answer; the message says why."""


class _client:
    """A client for one command or two; its errors become CacheGone."""

    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(url, socket_timeout=_SOCKET_TIMEOUT_S, socket_connect_timeout=2.0)

    def __enter__(self) -> Any:
        return self._redis

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        self._redis.close()
        if isinstance(error, RedisError | OSError):
            raise CacheGone(f"the cache Redis: {type(error).__name__}: {error}") from error


class ArmsWatch:
    """The arms that an entry goes by: the last ones that Redis had, and before that the start value.

    With Redis gone the last known stay. A Redis that has lost them (a restart without persistence) is given them again,
    so that the next entry starts with what is in force.
    """

    def __init__(
        self, url: str, start: Arms, *, poll_s: float = POLL_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = redis_asyncio.Redis.from_url(
            url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S, retry=Retry(NoBackoff(), 0)
        )
        self._poll_s = poll_s
        self._monotonic = monotonic
        self._task: asyncio.Task[None] | None = None
        self._confirmed_at = monotonic()
        self.current = start

    def __call__(self) -> Arms:
        """The arms in force, without waiting."""
        return self.current

    @property
    def age_s(self) -> float:
        """Seconds since Redis last confirmed them."""
        return self._monotonic() - self._confirmed_at

    async def start(self) -> None:
        """Reads once, at most for half a second, then follows in the background."""
        await self.refresh()
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def refresh(self) -> None:
        """Reads once. Without Redis, and for a value that is no arms, the last known stay."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._read()
        except (RedisError, OSError, TimeoutError) as error:
            _log.debug("the arms could not be read: %s", error)
        except DataError as error:
            _log.warning("the arms in Redis are not used: %s", error)

    async def aclose(self) -> None:
        """Stops following."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._client.aclose()

    async def _read(self) -> None:
        found = await self._client.get(KEY)
        if found is None and self.current.version:
            command: Any = self._client.eval(
                _PUBLISH, 1, KEY, str(self.current.version), arms_of.encode(self.current), ""
            )
            await command
        elif found is not None:
            arms = _decode(found)
            assert arms is not None
            if arms != self.current:
                _log.info("arms", extra={"version": arms.version, "before": self.current.version})
            self.current = arms
        self._confirmed_at = self._monotonic()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            await self.refresh()


def start_value(path: Path | None, bundle_version: Callable[[], str]) -> Arms:
    """What an entry starts with: a file (the release's wish, as the chart mounts it), else its bundle for everyone.

    Raises DataError for a file that is no arms.
    """
    return arms_of.of_bundle(bundle_version()) if path is None else read_file(path)


def read_file(path: Path) -> Arms:
    """Arms of a file. Raises DataError with its path."""
    try:
        return arms_of.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error


def _decode(found: bytes | None) -> Arms | None:
    return None if found is None else arms_of.parse(found, f"the key {KEY} of the cache Redis")
