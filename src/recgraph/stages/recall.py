"""Recall: from the whole catalogue to the 1-2k candidates that a user might want now."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from recgraph.cache import PoolKind
from recgraph.errors import StageFailure
from recgraph.features.assembly import Blocks, recall_inputs
from recgraph.features.reader import ListColumn
from recgraph.stages.base import Outcome, Run, Stage
from recgraph.stages.guard import Tensors
from recgraph.stages.merge import Merged, by_quota, clean

_OVERFETCH: Final = 1.3
"""Channels overlap and lose items to the filters; without a surplus there is nothing to fill unused quota with."""
_SEEN_ALLOWANCE: Final = 200
_SPARE: Final = 1.1
"""Candidates whose availability is asked for, over the number wanted: a full read of all would cost twice as much."""
_FIRST: Final = 1_000_000
"""A quota so large that every pinned item stands before all others."""


class RecallStage(Stage):
    """Merges the ANN index, item-to-item, the hot and the fresh pool by quota; pinned items come first.

    Falls back to the user's last result, then to the hot pool, then to the operator's fixed list.
    """

    name = "recall"
    needs_items = False
    fallback_read_ms = 3.0

    async def work(self, run: Run) -> Outcome:
        """Reads the user, asks the index and the pools, filters and merges."""
        user_blocks = await self.read(run, "user", [run.user_id])
        seen = _seen(user_blocks) if run.scene.filters.seen else frozenset()
        inputs = recall_inputs(user_blocks, run.context)
        surplus = min(len(seen), _SEEN_ALLOWANCE)
        quotas = run.scene.recall
        inputs["ann_k"] = np.array([fetch(quotas.ann, surplus)], np.int32)
        inputs["i2i_k"] = np.array([fetch(quotas.i2i, surplus)], np.int32)
        outputs, hot, fresh = await asyncio.gather(
            self.predict(run, inputs), self._pool(run, "hot", surplus), self._pool(run, "fresh", surplus)
        )
        channels = {
            "pin": _pins(run),
            "ann": _ids(outputs, "ann_id") if quotas.ann else [],
            "i2i": _ids(outputs, "i2i_id") if quotas.i2i else [],
            "hot": hot,
            "fresh": fresh,
        }
        return await self._merge(run, channels, seen)

    async def fallback(self, run: Run, reason: str) -> Outcome:
        """The pinned items, and behind them the last result, the hot pool, or the fixed list: the first that has
        anything left after the blocklist. One that is too short for a page has the next ones behind it.
        """
        merged, removed, answered = Merged([], []), dict[str, list[str]](), ""
        for action, source, items in (
            ("", "pin", _pins(run)),
            ("last_result", "last", await self._last_result(run)),
            ("hot_pool", "hot", await self._hot(run)),
            ("fixed_pool", "fixed", list(run.scene.pools.fixed)),
        ):
            if answered and len(merged.items) >= run.scene.rerank_best:
                break
            rules = [("blocked", run.scene.filters.blocklist), ("duplicate", frozenset(merged.items))]
            cleaned, gone = clean({source: items}, rules)
            merged.items.extend(cleaned[source])
            merged.sources.extend([source] * len(cleaned[source]))
            for why, ids in gone.items():
                removed.setdefault(why, []).extend(ids)
            answered = answered or (action if cleaned[source] else "")
        run.degrade(self.name, reason, answered or "empty")
        total = run.scene.recall.total
        if not answered:
            return Outcome([], sources=[])
        return _outcome(merged, range(min(total, len(merged.items))), {**removed, "over_quota": merged.items[total:]})

    async def _merge(self, run: Run, channels: dict[str, list[str]], seen: frozenset[str]) -> Outcome:
        pinned = frozenset(channels["pin"])
        rules = [("invalid", frozenset(("",))), ("blocked", run.scene.filters.blocklist), ("seen", seen - pinned)]
        cleaned, removed = clean(channels, rules, ahead="pin")
        merged = by_quota(cleaned, {**run.scene.recall.model_dump(), "pin": _FIRST})
        kept, gone = await self._available(run, merged.items, run.scene.recall.total)
        removed["unavailable"] = [merged.items[row] for row in gone]
        removed["over_quota"] = merged.items[len(kept) + len(gone) :]
        return _outcome(merged, kept, removed)

    async def _available(self, run: Run, items: Sequence[str], total: int) -> tuple[list[int], list[int]]:
        """Rows of the first `total` items that are available, and of those before the last of them that are not.

        Reads somewhat more than `total` items at once, and the rest only where these were not enough.
        """
        kept: list[int] = []
        gone: list[int] = []
        first = math.ceil(total * _SPARE)
        for begin, end in ((0, first), (first, len(items))):
            if len(kept) == total or not items[begin:end]:
                break
            absent = await self._unavailable(run, items[begin:end])
            for row, item in enumerate(items[begin:end], begin):
                if len(kept) == total:
                    break
                (gone if item in absent else kept).append(row)
        return kept, gone

    async def _unavailable(self, run: Run, items: Sequence[str]) -> frozenset[str]:
        """Which of the items are marked as not available. Unknown items pass: a new item has no profile yet."""
        if not run.scene.filters.unavailable or not self.deps.bundle.features.of_stage(self.name, "item"):
            return frozenset()
        try:
            blocks = await self.read(run, "item", items)
        except StageFailure as failure:
            run.degrade(self.name, failure.reason, "availability_unchecked")
            return frozenset()
        return unavailable(blocks, items)

    async def _pool(self, run: Run, kind: PoolKind, surplus: int) -> list[str]:
        quota: int = getattr(run.scene.recall, kind)
        if not quota:
            return []
        scene = run.scene.pools.scene or run.envelope.user.scene
        return await self.deps.pools.pool(scene, kind, fetch(quota, surplus), run.read_ms() / 1000.0)

    async def _hot(self, run: Run) -> list[str]:
        scene = run.scene.pools.scene or run.envelope.user.scene
        # No waiting: what is in memory or in the bundle.
        return await self.deps.pools.pool(scene, "hot", run.scene.recall.total, 0.0)

    async def _last_result(self, run: Run) -> list[str]:
        envelope = run.envelope
        try:
            return await self.deps.guard.call(
                "cache",
                lambda timeout_s: self.deps.cache.last_result(run.user_id, envelope.user.scene, timeout_s),
                min(run.left_ms(), run.fallback_ms),
            )
        except StageFailure:
            return []


def fetch(quota: int, surplus: int) -> int:
    """How many candidates to ask of a channel for its quota; 0 for a channel that is switched off."""
    return math.ceil(quota * _OVERFETCH) + surplus if quota else 0


def unavailable(blocks: Blocks, items: Sequence[str]) -> frozenset[str]:
    """The items whose profile says `available` 0. Without a profile, or with a null, an item counts as available."""
    profile = blocks.get("item_profile")
    column = profile.columns.get("available") if profile is not None else None
    if profile is None or column is None or isinstance(column, ListColumn):
        return frozenset()
    known = ~(profile.missing | profile.stale)
    if "available" in profile.nulls:
        known &= ~profile.nulls["available"]
    rows = np.flatnonzero(known & (np.asarray(column) == 0))
    return frozenset(items[row] for row in rows.tolist())


def _pins(run: Run) -> list[str]:
    return [pin.item_id for pin in run.scene.rules.pin]


def _seen(blocks: Blocks) -> frozenset[str]:
    block = blocks.get("user_seen")
    column = block.columns["item_ids"] if block is not None else None
    return frozenset(column.row(0).tolist()) if isinstance(column, ListColumn) else frozenset()


def _ids(outputs: Tensors, name: str) -> list[str]:
    """A channel's ids as text. Raises StageFailure where the predictor did not answer what it should."""
    ids = outputs.get(name)
    if ids is None or ids.ndim != 1 or ids.dtype != object:
        raise StageFailure("predictor_bad_output", f"expected bytes {name}[K]")
    try:
        return [value.decode() for value in ids.tolist()]
    except (AttributeError, UnicodeDecodeError) as error:
        raise StageFailure("predictor_bad_output", f"{name}: {error}") from error


def _outcome(merged: Merged, kept: Sequence[int], removed: dict[str, list[str]]) -> Outcome:
    items, sources = merged
    return Outcome([items[row] for row in kept], sources=[sources[row] for row in kept], removed=removed)
