"""The load generator, against a real server whose answers and stalls are known."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from recgraph.bench.load import Load, Outcome, run, summarize

STAGES = ("entry", "recall", "coarse", "fine", "rerank")


def answer(degraded: list[dict[str, str]] | None = None) -> dict[str, object]:
    trace = [{"stage": stage, "ms": i + 1.0, "received": 1, "kept": 1} for i, stage in enumerate(STAGES)]
    return {"request_id": "r", "items": [], "degraded": degraded or [], "bundle": None, "arm": {}, "trace": trace}


class Server:
    """Counts requests and answers them as its `behave` says."""

    def __init__(self) -> None:
        self.seen: list[dict[str, object]] = []
        self.stall_at: int | None = None
        self.stall_s = 0.5
        self.fail_from: int | None = None
        self.url = ""
        self._free = asyncio.Event()
        self._free.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        number = len(self.seen)
        self.seen.append(json.loads(await request.read()))
        if number == self.stall_at:
            self._free.clear()
            asyncio.get_running_loop().call_later(self.stall_s, self._free.set)
        await self._free.wait()
        if self.fail_from is not None and number >= self.fail_from:
            return web.json_response({"error": "x"}, status=503)
        fell_back = [{"stage": "fine", "reason": "predictor_timeout", "action": "order_of_coarse"}]
        return web.json_response(answer(fell_back if number % 10 == 0 else None))


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    state = Server()
    application = web.Application()
    application.router.add_post("/", state.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    state.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    yield state
    await runner.cleanup()


def load(server: Server, **changes: object) -> Load:
    values = {"url": server.url, "users": ["a", "b"], "rate": 100.0, "duration_s": 0.5, "warmup_s": 0.1, "unknown": 0.2}
    return Load(**values | changes)  # type: ignore[arg-type]


async def test_it_counts_what_was_answered_after_the_warm_up(server: Server) -> None:
    plan = load(server)
    result = summarize(plan, await run(plan))
    assert result["requests"] == {"sent": 50, "ok": 50, "degraded": 5, "failed": 0}
    assert result["degraded"] == {"fine:predictor_timeout": 5}
    assert len(server.seen) == 60
    assert [result["latency_ms"][stage]["p50"] for stage in STAGES] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert set(result["latency_ms"]["whole"]) == {"p50", "p90", "p99", "max"}


async def test_users_are_known_and_some_unknown_and_the_same_for_a_seed(server: Server) -> None:
    await run(load(server))
    first = [seen["user"]["user_id"] for seen in server.seen]  # type: ignore[index]
    server.seen.clear()
    await run(load(server))
    assert [seen["user"]["user_id"] for seen in server.seen] == first  # type: ignore[index]
    unknown = [user for user in first if user not in ("a", "b")]
    assert 0 < len(unknown) < len(first) / 2
    assert {"a", "b"} < set(first)


async def test_a_share_of_the_requests_asks_to_explain(server: Server) -> None:
    await run(load(server, explain=0.2))
    assert [bool(seen["explain"]) for seen in server.seen] == [number % 5 == 0 for number in range(60)]


async def test_a_stall_shows_in_every_request_that_it_delayed(server: Server) -> None:
    server.stall_at = 20
    plan = load(server, duration_s=1.0)
    result = summarize(plan, await run(plan))
    # 50 of 100 requests were meant to leave while the server stood still; a closed loop would have sent one.
    assert result["requests"]["ok"] == 100
    assert result["latency_ms"]["whole"]["p90"] > 300
    assert result["latency_ms"]["whole"]["max"] > 450


async def test_failures_are_counted_by_kind_and_never_retried(server: Server) -> None:
    server.fail_from = 30
    plan = load(server)
    result = summarize(plan, await run(plan))
    assert result["requests"]["sent"] == 50
    assert result["requests"]["failed"] == 30
    assert result["errors"] == {"status_503": 30}
    assert len(server.seen) == 60


async def test_a_timeout_is_a_failure(server: Server) -> None:
    server.stall_at, server.stall_s = 10, 30.0
    plan = load(server, duration_s=0.1, timeout_s=0.2)
    assert summarize(plan, await run(plan))["errors"] == {"timeout": 10}
    server._free.set()


async def test_nobody_listening_is_a_failure_not_a_crash() -> None:
    plan = Load("http://127.0.0.1:9/", ["a"], rate=50, duration_s=0.1, warmup_s=0)
    result = summarize(plan, await run(plan))
    assert result["requests"] == {"sent": 5, "ok": 0, "degraded": 0, "failed": 5}
    assert result["latency_ms"]["fine"] == {"p50": None, "p90": None, "p99": None, "max": None}


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_percentiles_are_measured_values_and_ordered(values: list[float]) -> None:
    random.Random(0).shuffle(values)
    plan = Load("", [])
    found = summarize(plan, [Outcome(value) for value in values])["latency_ms"]["whole"]
    assert found["p50"] <= found["p90"] <= found["p99"] <= found["max"]
    assert all(any(abs(v - value) < 0.001 for value in values) for v in found.values())
