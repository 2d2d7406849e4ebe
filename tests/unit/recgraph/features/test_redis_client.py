"""Addresses of the online store, and the bounds of every wait."""

from __future__ import annotations

import asyncio
import socket

import pytest

from recgraph.errors import DataError, StageFailure
from recgraph.features.packed import PackedReader
from recgraph.features.redis_client import feast_connection, redis_url
from recgraph.features.schema import Field, ViewSchema

VIEW = ViewSchema("item_stats_v1", "item", 60, (Field("clicks", "float32"),))


@pytest.mark.parametrize(
    ("url", "connection"),
    [
        ("redis://h:1/0", "h:1,db=0"),
        ("redis://h", "h:6379"),
        ("rediss://u:1234@h:7/2?socket_timeout=3", 'h:7,socket_timeout=3,db=2,ssl=true,username="u",password="1234"'),
        ("redis://:p%40ss@h:7", 'h:7,password="p@ss"'),
        ("h:1,db=2", "h:1,db=2"),
    ],
)
def test_a_url_in_the_form_of_feast(url: str, connection: str) -> None:
    assert feast_connection(url) == connection


@pytest.mark.parametrize(
    ("connection", "url"),
    [
        ("h:1", "redis://h:1/0"),
        ('h:1,db=2,password="p@ss",ssl=true', "rediss://:p%40ss@h:1/2"),
        ("h:1,socket_timeout=3", "redis://h:1/0?socket_timeout=3"),
        ("redis://h:1/4", "redis://h:1/4"),
    ],
)
def test_feasts_form_as_a_url(connection: str, url: str) -> None:
    assert redis_url(connection) == url


def test_a_comma_cannot_be_told_to_feast() -> None:
    with pytest.raises(DataError, match="comma"):
        feast_connection("redis://:a%2Cb@h:1")


async def test_a_dead_redis_is_unavailable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        reader = PackedReader(f"redis://127.0.0.1:{unused.getsockname()[1]}", "p")
        with pytest.raises(StageFailure) as failure:
            await reader.read("item", [VIEW], ["a"], now_s=0, timeout_s=2)
    assert failure.value.reason == "features_unavailable"
    await reader.aclose()


async def test_a_silent_redis_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        reader = PackedReader(f"redis://127.0.0.1:{silent.getsockname()[1]}", "p")
        with pytest.raises(StageFailure) as failure:
            await reader.read("item", [VIEW], ["a"], now_s=0, timeout_s=0.05)
        assert failure.value.reason == "features_timeout"
        await reader.aclose()


def test_a_reader_outlives_its_loop(redis_url: str) -> None:
    reader = PackedReader(redis_url, "p")

    async def missing() -> bool:
        block = (await reader.read("item", [VIEW], ["a"], now_s=0, timeout_s=2))["item_stats"]
        await reader.aclose()
        return bool(block.missing[0])

    assert asyncio.run(missing())
    assert asyncio.run(missing())
