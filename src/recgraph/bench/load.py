"""Open-loop load on the running graph: requests leave at a constant rate, whatever the answers do.

Latency counts from the moment a request was meant to leave, so that a stall shows in every request it delayed (a closed
loop would hide it). Nothing is retried.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import uvloop

from recgraph.contract import Answer
from recgraph.http1 import Pool, Target, json_post, parse_target

WHOLE: Final = "whole"
STAGES: Final = ("entry", "recall", "coarse", "fine", "rerank")
PERCENTILES: Final = (50, 90, 99)
# An event loop's timer fires up to a millisecond late, and its process wakes later still.
_TIMER_S: Final = 0.002
_STEP_S: Final = 0.00005
# A sleep is longer than asked for by about as much as the step.
_SPIN_S: Final = 0.0002
_IDLE_S: Final = 60.0
_answers = msgspec.json.Decoder(Answer)


@dataclass(frozen=True)
class Load:
    """What to send. `users` are drawn evenly; a share of `unknown` requests asks for users that nobody has seen.

    A share of `explain` asks to explain: the stages' times come from these. They cost more than others, since every
    stage keeps its decision record of them.
    """

    url: str
    users: Sequence[str]
    scene: str = "home_feed"
    rate: float = 10.0
    duration_s: float = 60.0
    warmup_s: float = 5.0
    unknown: float = 0.05
    timeout_s: float = 5.0
    explain: float = 0.2
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """One request. `error` is empty for an answer with status 200; `stages` has the ms of each stage's trace."""

    latency_ms: float
    error: str = ""
    degraded: tuple[str, ...] = ()
    stages: dict[str, float] = field(default_factory=dict)


def measure(load: Load) -> list[Outcome]:
    """`run` on the event loop whose own cost is least."""
    outcomes: list[Outcome] = uvloop.run(run(load))
    return outcomes


async def run(load: Load) -> list[Outcome]:
    """Sends warm-up and load, and returns the outcomes of the load in the order of sending."""
    target = parse_target(load.url)
    requests = [json_post(target, body) for body in _bodies(load)]
    warm = round(load.warmup_s * load.rate)
    pool = Pool(_IDLE_S)
    begun = time.perf_counter() + 0.05
    tasks = []
    for number, request in enumerate(requests):
        due = begun + number / load.rate
        await _wait_until(due)
        tasks.append(asyncio.create_task(_send(pool, target, request, due, load.timeout_s)))
    outcomes = await asyncio.gather(*tasks)
    await pool.close()
    return outcomes[warm:]


async def _wait_until(due: float) -> None:
    """Returns at a moment of perf_counter. An event loop's timers count whole milliseconds, so the last ones are waited
    in small steps, which leave the core and let answers in, and the very last by looking at the clock.
    """
    await asyncio.sleep(max(0.0, due - time.perf_counter() - _TIMER_S))
    while (left := due - time.perf_counter()) > 0:
        if left > _SPIN_S:
            time.sleep(_STEP_S)  # noqa: ASYNC251
        await asyncio.sleep(0)


async def _send(pool: Pool, target: Target, request: bytes, due: float, timeout_s: float) -> Outcome:
    try:
        async with asyncio.timeout(timeout_s):
            connection = await pool.connection(target)
            response = await connection.exchange(request)
    except TimeoutError:
        error = "timeout"
    except OSError as failure:
        error = type(failure).__name__
    else:
        latency = (response.arrived_s - due) * 1000.0
        return (
            _read(response.body, latency) if response.status == 200 else Outcome(latency, f"status_{response.status}")
        )
    return Outcome((time.perf_counter() - due) * 1000.0, error)


def _read(content: bytes, latency_ms: float) -> Outcome:
    try:
        answer = _answers.decode(content)
    except msgspec.DecodeError:
        return Outcome(latency_ms, "not_an_answer")
    trace = answer.trace if isinstance(answer.trace, list) else []
    degraded = tuple(f"{one.stage}:{one.reason}" for one in answer.degraded)
    return Outcome(latency_ms, "", degraded, {entry.stage: entry.ms for entry in trace})


def _bodies(load: Load) -> list[bytes]:
    """The requests of warm-up and load; same seed, same requests."""
    draw = random.Random(load.seed)  # noqa: S311
    total = round((load.warmup_s + load.duration_s) * load.rate)
    bodies = []
    for number in range(total):
        unknown = not load.users or draw.random() < load.unknown
        user = f"bench_unknown_{load.seed}_{number}" if unknown else draw.choice(load.users)
        # Spread evenly, the first among them: every run long enough for one has the stages' times.
        explain = math.floor(number * load.explain) > math.floor((number - 1) * load.explain)
        bodies.append(msgspec.json.encode({"user": {"user_id": user, "scene": load.scene}, "explain": explain}))
    return bodies


def summarize(load: Load, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The result as JSON has it: `latency_ms.<whole|stage>.<p50|p90|p99>` and `requests.<sent|ok|degraded|failed>`.

    `ok` are the answers with status 200, `degraded` those of them that say so; sent = ok + failed. Latencies of
    failed requests are part of `whole`: leaving them out would flatter.
    """
    ok = [one for one in outcomes if not one.error]
    latency = {WHOLE: _percentiles([one.latency_ms for one in outcomes])}
    for stage in STAGES:
        latency[stage] = _percentiles([one.stages[stage] for one in ok if stage in one.stages])
    return {
        "latency_ms": latency,
        "requests": {
            "sent": len(outcomes),
            "ok": len(ok),
            "degraded": sum(bool(one.degraded) for one in ok),
            "failed": len(outcomes) - len(ok),
        },
        "errors": dict(Counter(one.error for one in outcomes if one.error)),
        "degraded": dict(Counter(reason for one in ok for reason in one.degraded)),
        "load": {
            "rate": load.rate,
            "duration_s": load.duration_s,
            "warmup_s": load.warmup_s,
            "unknown_users": load.unknown,
            "explain": load.explain,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        },
    }


def _percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """Percentiles that were measured (no interpolation between two requests), and None where there is no value."""
    names = [f"p{p}" for p in PERCENTILES]
    found: dict[str, float | None] = dict.fromkeys([*names, "max"])
    if values:
        measured = np.percentile(np.asarray(values), PERCENTILES, method="higher")
        found |= dict(zip(names, np.round(measured, 3).tolist(), strict=True)) | {"max": round(max(values), 3)}
    return found
