"""What reading features costs: our readers and Feast's, side by side in one run, and the ledger of a fine rank."""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop

from recgraph.bench.feature_store import FilledStore, filled_store
from recgraph.bundle import Bundle
from recgraph.features.assembly import Context, fine_inputs
from recgraph.features.feast_hash import FeastHashReader
from recgraph.features.packed import PackedReader
from recgraph.features.reader import ViewBlock
from recgraph.models import fine

Call = Callable[[], Awaitable[object]]

_TIMEOUT_S = 10.0
_USER = "user_0"
# Interleaved blocks, so that a slow moment of the machine falls on all alike.
_BLOCKS = 4
_CALLS = {"packed": 60, "feast_hash": 20, "get_online_features": 5, "packed_one_read_per_item": 1}
TARGET_P50_MS = 1.5
TARGET_RATIO = 30.0


class Percentiles(msgspec.Struct, frozen=True):
    """Milliseconds."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Percentiles:
        """Of measured durations."""
        return cls(*(round(float(value) * 1000, 3) for value in np.percentile(seconds, [50, 90, 99])))


class Reading(msgspec.Struct, frozen=True):
    """One size: the same items and values by every way."""

    items: int
    values_per_item: int
    latency_ms: dict[str, Percentiles]
    times_slower_than_packed: dict[str, float]
    """Ratio of the medians."""


class LedgerLine(msgspec.Struct, frozen=True):
    """One part of a fine rank."""

    part: str
    latency_ms: Percentiles
    target_ms: float


class FeatureBench(msgspec.Struct, frozen=True):
    """The result of `recgraph bench features`; the targets are those of the first size at 300 items."""

    readings: list[Reading]
    target: dict[str, float]
    ledger: list[LedgerLine]


def every_value(blocks: dict[str, ViewBlock]) -> dict[str, ViewBlock]:
    """The blocks, with every column decoded: text and lists are cut only when they are asked for."""
    for block in blocks.values():
        for _ in block.columns.values():
            pass
    return blocks


def run(repo: Path, sizes: Sequence[int], bundle: Path | None = None) -> FeatureBench:
    """Measures every size; with a bundle also the ledger, over its items and its fine model."""
    opened = Bundle.open(bundle) if bundle else None
    items = [f"item_{number}" for number in range(max(sizes))]
    if opened:
        known = min(len(opened.item_ids), len(items))
        items[:known] = [key.decode() for key in opened.item_ids.ids(np.arange(known))]
    with filled_store(repo, items, [_USER]) as filled, _frozen():
        readings = [uvloop.run(_reading(filled, items[:size])) for size in sizes]
        ledger = uvloop.run(_ledger(filled, items[: sizes[0]], opened)) if opened else []
    return FeatureBench(readings, {"p50_ms": TARGET_P50_MS, "times_faster": TARGET_RATIO}, ledger)


@contextmanager
def _frozen() -> Iterator[None]:
    """The garbage collector as serving has it: what lives by now is not looked at again."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def _reading(filled: FilledStore, items: list[str]) -> Reading:
    views = filled.features.of_stage("fine", "item")
    packed, hashed = (reader(filled.redis_url, filled.features.project) for reader in (PackedReader, FeastHashReader))
    names = [f"{view.name}:{field.name}" for view in views for field in view.fields]
    rows = [{"item_id": item} for item in items]

    async def read(reader: PackedReader | FeastHashReader, ids: list[str]) -> None:
        every_value(await reader.read("item", views, ids, now_s=filled.now_s, timeout_s=_TIMEOUT_S))

    async def by_feast() -> None:
        filled.store.get_online_features(names, rows)

    async def one_by_one() -> None:
        for item in items:
            await read(packed, [item])

    ways: dict[str, Call] = {
        "packed": lambda: read(packed, items),
        "feast_hash": lambda: read(hashed, items),
        "get_online_features": by_feast,
        "packed_one_read_per_item": one_by_one,
    }
    latency = await _measure(ways)
    await packed.aclose()
    await hashed.aclose()
    slower = {way: round(took.p50 / latency["packed"].p50, 1) for way, took in latency.items()}
    return Reading(len(items), len(names), latency, slower)


async def _measure(ways: dict[str, Call]) -> dict[str, Percentiles]:
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for call in ways.values():
        await call()
    for _ in range(_BLOCKS):
        for way, call in ways.items():
            for _ in range(_CALLS.get(way, _CALLS["packed"])):
                start = time.perf_counter()
                await call()
                taken[way].append(time.perf_counter() - start)
    return {way: Percentiles.of(seconds) for way, seconds in taken.items()}


async def _ledger(filled: FilledStore, items: list[str], bundle: Bundle) -> list[LedgerLine]:
    """A fine rank in its parts, one thread, on the bundle's own model."""
    reader = PackedReader(filled.redis_url, filled.features.project)
    model = fine.load(bundle, threads=1)
    context = Context.at(filled.now_s, device="ios", scene="home_feed")
    user_views, item_views = (filled.features.of_stage("fine", "user"), filled.features.of_stage("fine", "item"))

    async def user_read() -> Any:
        return every_value(await reader.read("user", user_views, [_USER], now_s=filled.now_s, timeout_s=_TIMEOUT_S))

    async def item_read() -> Any:
        return every_value(await reader.read("item", item_views, items, now_s=filled.now_s, timeout_s=_TIMEOUT_S))

    users, blocks = await user_read(), await item_read()
    inputs = fine_inputs(_USER, items, users, blocks, context)
    encoded = model.encode(inputs)

    async def assembly() -> None:
        fine_inputs(_USER, items, users, blocks, context)

    async def lookup() -> None:
        model.encode(inputs)

    async def forward() -> None:
        model.score(encoded)

    parts: dict[str, tuple[Call, float]] = {
        "user read": (user_read, 1.0),
        "item read": (item_read, 2.0),
        "embedding lookup": (lookup, 5.0),
        "assembly": (assembly, 1.0),
        "forward pass": (forward, 15.0),
    }
    latency = await _measure({part: call for part, (call, _) in parts.items()})
    await reader.aclose()
    return [LedgerLine(part, latency[part], target) for part, (_, target) in parts.items()]
