"""Fixtures that several test packages share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import redis
import uvloop

from recgraph.redis_process import RedisProcess, start_redis

# A busy machine must not fail an example for taking long; the timeout per test is the bound.
hypothesis.settings.register_profile("recgraph", deadline=None)
hypothesis.settings.load_profile("recgraph")


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Async tests run on the loop of the serving processes."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    """One embedded Redis for the whole test run."""
    with start_redis(tmp_path_factory.mktemp("redis"), persist=False) as process:
        yield process


@pytest.fixture
def redis_url(redis_process: RedisProcess) -> str:
    """The URL of an empty Redis."""
    with redis.Redis(port=redis_process.port) as client:
        client.flushall()
    return redis_process.url


@pytest.fixture(scope="session")
def movietweetings() -> Path:
    """The folder of the MovieTweetings files; the test is skipped where they are not at hand."""
    default = Path(__file__).parents[2] / "shared" / "data" / "movietweetings"
    folder = Path(os.environ.get("RECGRAPH_MOVIETWEETINGS", default))
    if not folder.is_dir():
        pytest.skip(f"no MovieTweetings at {folder}: set RECGRAPH_MOVIETWEETINGS")
    return folder
