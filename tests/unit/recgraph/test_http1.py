"""The lean HTTP client, against a server that says byte for byte what it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from recgraph.http1 import DisconnectedError, MalformedError, Pool, Response, parse_target

REQUEST = b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers the n-th request with the n-th script, in the pieces given; None ends the connection."""

    def __init__(self) -> None:
        self.scripts: list[list[bytes | None]] = []
        self.connections = 0
        self.ended = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while await reader.read(1 << 16):
            for piece in self.scripts.pop(0):
                if piece is None:
                    writer.close()
                    return
                writer.write(piece)
                await asyncio.sleep(0.01)
        self.ended.set()
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    state = Server()
    listening = await asyncio.start_server(state.serve, "127.0.0.1", 0)
    state.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/p"
    yield state
    listening.close()
    await asyncio.sleep(0.02)  # the connections that the clients ended


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    made = Pool(idle_s=60)
    yield made
    await made.close()


async def post(pool: Pool, server: Server, *pieces: bytes | None) -> Response:
    server.scripts.append(list(pieces))
    connection = await pool.connection(parse_target(server.url))
    async with asyncio.timeout(5):
        return await connection.exchange(REQUEST)


@pytest.mark.parametrize(
    ("pieces", "body"),
    [
        ([OK], b"ok"),
        ([OK[:9], OK[9:20], OK[20:-1], OK[-1:]], b"ok"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n", b"1\r\nk\r\n0\r\n\r\n"], b"ok"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" + OK], b"ok"),
        ([b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", OK], b"ok"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], b""),
    ],
)
async def test_a_whole_answer_leaves_the_connection_for_the_next(
    server: Server, pool: Pool, pieces: list[bytes], body: bytes
) -> None:
    assert (await post(pool, server, *pieces)).body == body
    assert (await post(pool, server, OK)).body == b"ok"
    assert server.connections == 1


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 200 OK\r\n\r\n", b"ok", None],
        [b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", None],
        [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", None],
        [OK + b"what nobody asked for"],
        [OK, b"what nobody asked for"],
    ],
)
async def test_a_connection_that_is_not_to_be_trusted_is_not_used_again(
    server: Server, pool: Pool, pieces: list[bytes | None]
) -> None:
    assert (await post(pool, server, *pieces)).body == b"ok"
    await asyncio.sleep(0.03)
    assert (await post(pool, server, OK)).body == b"ok"
    assert server.connections == 2


@pytest.mark.parametrize(
    ("pieces", "error", "words", "answered"),
    [
        ([None], DisconnectedError, "^EOF", False),
        ([OK[:20], None], DisconnectedError, "unexpected EOF", False),
        ([OK[:-1], None], DisconnectedError, "unexpected EOF", True),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nok", None], DisconnectedError, "unexp", True),
        ([b"SSH-2.0-OpenSSH\r\n"], MalformedError, "HTTP", False),
    ],
)
async def test_less_than_a_whole_answer_is_an_error(
    server: Server, pool: Pool, pieces: list[bytes | None], error: type[OSError], words: str, answered: bool
) -> None:
    server.scripts.append(pieces)
    connection = await pool.connection(parse_target(server.url))
    with pytest.raises(error, match=words):
        await connection.exchange(REQUEST)
    assert connection.answered == answered
    assert (await post(pool, server, OK)).body == b"ok"


async def test_a_cancelled_exchange_ends_its_connection(server: Server, pool: Pool) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await post(pool, server)
    await asyncio.wait_for(server.ended.wait(), 5)
    assert (await post(pool, server, OK)).body == b"ok"


async def test_a_connection_that_was_idle_too_long_is_not_used_again(server: Server) -> None:
    pool = Pool(idle_s=0.0)
    await post(pool, server, OK)
    await post(pool, server, OK)
    assert server.connections == 2
    await pool.close()


async def test_a_connection_that_the_server_ended_is_not_used_again(server: Server, pool: Pool) -> None:
    await post(pool, server, OK, None)
    await asyncio.sleep(0.03)
    assert (await post(pool, server, OK)).body == b"ok"


async def test_the_arrival_is_that_of_the_last_bytes(server: Server, pool: Pool) -> None:
    now: Callable[[], float] = asyncio.get_running_loop().time
    begun = now()
    arrived = (await post(pool, server, OK[:-1], OK[-1:])).arrived_s
    assert arrived - begun >= 0.009


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://h:81/a?b=c", ("h", 81, False, "h:81", "/a?b=c")),
        ("https://H", ("h", 443, True, "H", "/")),
        ("http://u:p@[::1]:8/v1/models/m:predict", ("::1", 8, False, "[::1]:8", "/v1/models/m:predict")),
        ("http://h/ü x%20", ("h", 80, False, "h", "/%C3%BC%20x%20")),
    ],
)
def test_targets(url: str, parts: tuple[object, ...]) -> None:
    assert parse_target(url) == parts


@pytest.mark.parametrize("url", ["ftp://h/", "h:80/x", "http://h:x/"])
def test_what_is_no_target(url: str) -> None:
    with pytest.raises(ValueError, match=r"scheme|Port"):
        parse_target(url)


async def test_a_connection_may_be_the_next_exchanges_before_the_last_one_has_its_answer(
    pool: Pool, server: Server
) -> None:
    server.scripts = [[OK], [OK]]
    target = parse_target(server.url)
    connection = await pool.connection(target)
    first = asyncio.create_task(connection.exchange(REQUEST))
    while not connection.idle_since_s:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert not first.done()
    assert await pool.connection(target) is connection
    assert (await connection.exchange(REQUEST)).body == b"ok"
    assert (await first).body == b"ok"
