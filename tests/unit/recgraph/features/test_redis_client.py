"""Addresses of the online store, and the bounds of every wait."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import cast

import pytest
import redis

from recgraph.errors import DataError, StageFailure
from recgraph.features.packed import PackedReader
from recgraph.features.redis_client import OnlineStoreClient, feast_connection, redis_url
from recgraph.features.schema import Field, ViewSchema
from recgraph.ports import free_ports
from recgraph.redis_process import start_redis

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


async def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_ones(redis_url: str) -> None:
    store = OnlineStoreClient(redis_url)
    await store.ask([("MSET", "a", "1", "b", "2")], 2.0)
    slow = asyncio.create_task(
        store.ask([("EVAL", "while redis.call('incr', 'n') < 200000 do end return 9", "0")], 0.02)
    )
    await asyncio.sleep(0.005)
    after = asyncio.create_task(store.ask([("MGET", "a", "b"), ("GET", "b")], 5.0))
    with pytest.raises(StageFailure, match="features_timeout"):
        await slow
    assert await after == [[b"1", b"2"], b"2"]
    await store.aclose()


async def test_many_reads_at_once_get_their_own_answers(redis_url: str) -> None:
    store = OnlineStoreClient(redis_url)
    answers = await asyncio.gather(*(store.ask([("ECHO", str(number))], 5.0) for number in range(200)))
    assert answers == [[str(number).encode()] for number in range(200)]
    await store.aclose()


async def test_a_refusal_is_a_failure_with_its_words(redis_url: str) -> None:
    store = OnlineStoreClient(redis_url)
    with pytest.raises(StageFailure, match="wrong number of arguments"):
        await store.ask([("GET",)], 2.0)
    assert await store.ask([("PING",)], 2.0) == [b"PONG"], "the connection is still good"
    await store.aclose()


async def test_a_restarted_server_is_found_again(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    store = OnlineStoreClient(f"redis://127.0.0.1:{port}")
    for _ in range(2):
        with start_redis(tmp_path, port=port):
            await store.warm_up(2.0)
            many = [store.ask([("PING",)], 2.0) for _ in range(5)]
            assert await asyncio.gather(*many) == [[b"PONG"]] * 5
        with pytest.raises(StageFailure, match="features_unavailable"):
            await store.ask([("PING",)], 2.0)
    await store.aclose()


async def test_a_server_that_loads_its_data_is_unavailable_until_it_has() -> None:
    ready = False

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            writer.write(b"+PONG\r\n" if ready else b"-LOADING Redis is loading the dataset in memory\r\n")

    async with _serving(serve) as port:
        store = OnlineStoreClient(f"redis://127.0.0.1:{port}")
        with pytest.raises(StageFailure, match=r"features_unavailable.*LOADING"):
            await store.ask([("PING",)], 2.0)
        ready = True
        assert await store.ask([("PING",)], 2.0) == [b"PONG"]
        await store.aclose()


async def test_a_connection_that_stays_silent_is_given_up() -> None:
    accepted = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        while await reader.read(1000):
            if len(accepted) > 1:
                writer.write(b"+PONG\r\n")

    async with _serving(serve) as port:
        store = OnlineStoreClient(f"redis://127.0.0.1:{port}")
        for timeout_s in (0.05, 1.1):
            with pytest.raises(StageFailure, match="features_timeout"):
                await store.ask([("PING",)], timeout_s)
        assert await store.ask([("PING",)], 2.0) == [b"PONG"], "on a second connection"
        await store.aclose()


async def test_what_does_not_speak_redis_is_unavailable() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()

    async with _serving(serve) as port:
        store = OnlineStoreClient(f"redis://127.0.0.1:{port}")
        with pytest.raises(StageFailure, match="features_unavailable"):
            await store.ask([("PING",)], 2.0)
        await store.aclose()


@pytest.mark.parametrize(("password", "reason"), [("s%C3%A9cret", ""), ("wrong", "WRONGPASS")])
async def test_a_password_and_tls(tmp_path: Path, password: str, reason: str) -> None:
    certificate = _certificate(tmp_path)
    inside = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    inside.load_cert_chain(certificate)
    with start_redis(tmp_path) as process:
        plain = redis.Redis(port=process.port)
        plain.config_set("requirepass", "s\u00e9cret")
        plain.close()

        async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            back, forth = await asyncio.open_connection("127.0.0.1", process.port)
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, forth))
                group.create_task(_pump(back, writer))

        async with _serving(tunnel, tls=inside) as port:
            address = f"127.0.0.1:{port}"
            store = OnlineStoreClient(f"rediss://:{password}@{address}/3?ssl_ca_certs={certificate}")
            if reason:
                with pytest.raises(StageFailure, match=f"features_unavailable.*{reason}"):
                    await store.ask([("PING",)], 5.0)
            else:
                assert b"db=3" in (await store.ask([("CLIENT", "INFO")], 5.0))[0]
            await store.aclose()
            stranger = OnlineStoreClient(f"rediss://:{password}@{address}/3")
            with pytest.raises(StageFailure, match=r"features_unavailable.*certificate verify failed"):
                await stranger.ask([("PING",)], 5.0)


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def _serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server on a free port; connections are closed when their handler ends or their client has gone."""
    tasks: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(cast("asyncio.Task[None]", asyncio.current_task()))
        with suppress(OSError):
            await handler(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await asyncio.gather(*tasks)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
    writer.close()


def _certificate(folder: Path) -> Path:
    """Key and self-signed certificate of 127.0.0.1 in one file."""
    path, key = folder / "certificate.pem", folder / "key.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names]
    subprocess.run([*command, "-keyout", str(key), "-out", str(path)], check=True, capture_output=True, timeout=60)
    path.write_bytes(path.read_bytes() + key.read_bytes())
    return path
