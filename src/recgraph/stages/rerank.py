"""Rerank: from scored candidates to the page, by rules and a small model."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from recgraph.errors import StageFailure
from recgraph.features.assembly import Blocks, rerank_inputs
from recgraph.features.reader import ListColumn
from recgraph.stages.base import Outcome, Run, Stage, scores_of
from recgraph.stages.page import Floats, Shelf, fill, relevance
from recgraph.stages.recall import unavailable

_EXPLORE_AMONG: Final = 50
_REMEMBER: Final = 100


@dataclass
class Ranked:
    """The candidates, deduplicated and best first: columns of one length. `removed` has ids by reason."""

    items: list[str]
    scores: Floats
    coarse: Floats
    sources: list[str]
    removed: dict[str, list[str]]

    def __len__(self) -> int:
        return len(self.items)

    def rows(self, rows: list[int]) -> Ranked:
        """The given rows, in that order."""
        return Ranked(
            [self.items[row] for row in rows],
            self.scores[rows],
            self.coarse[rows],
            [self.sources[row] for row in rows],
            self.removed,
        )

    def then(self, others: Ranked) -> Ranked:
        """These candidates and behind them others of the same request."""
        return Ranked(
            self.items + others.items,
            np.concatenate([self.scores, others.scores]),
            np.concatenate([self.coarse, others.coarse]),
            self.sources + others.sources,
            self.removed,
        )


@dataclass(frozen=True)
class Facts:
    """What is known of the head's items, row by row; empty text and NaN where nothing is."""

    category: list[str]
    creator: list[str]
    age_s: Floats
    score: Floats
    embedding: npt.NDArray[Any] | None


class RerankStage(Stage):
    """Dedup, exclude, pin, boost, freshness, diversity, category cap, one exploration place, and a full page.

    The model, boosts, freshness and diversity work on the best `rerank_best` (and on pinned items). The rest only fill
    the page, and are read for it where the rules take so much out of the head that they are needed. Falls back to the
    rules alone, without the model; without features, to those that need none.
    """

    name = "rerank"

    async def work(self, run: Run) -> Outcome:
        """Reads and scores the head, then makes the page."""
        return self._remembered(run, await self._rerank(run))

    async def _rerank(self, run: Run) -> Outcome:
        ranked = rank(run)
        head = head_of(run, ranked)
        if not len(head):
            return self._done(run, head, [], ranked, head.scores)
        user_blocks, item_blocks = await asyncio.gather(
            self.read(run, "user", [run.user_id]), self.read(run, "item", head.items)
        )
        try:
            inputs = rerank_inputs(head.items, head.scores, head.coarse, user_blocks, item_blocks, run.context)
            outputs = await self.predict(run, inputs)
            score, embedding = _finite(scores_of(outputs, len(head))), outputs.get("embedding")
        except StageFailure as failure:
            run.degrade(self.name, failure.reason, "rules_without_model")
            score, embedding = head.scores, None
        facts = _facts(item_blocks, head.items, run.context.now_s, score, embedding)
        gone = unavailable(item_blocks, head.items) if run.scene.filters.unavailable else frozenset()
        shown = self._showable(run, head, facts, gone, ranked.removed)
        checked, facts = head.rows(shown), _facts_of(facts, shown)
        rest, categories = head.rows([]), list[str]()
        if len(checked) < page_size(run) and len(head) < len(ranked):
            rest, categories = await self._rest(run, ranked, head)
        return self._page(run, ranked, checked, facts, rest, categories)

    async def fallback(self, run: Run, reason: str) -> Outcome:
        """The rules that need neither model nor features, over the scores received."""
        run.degrade(self.name, reason, "rules_without_features")
        ranked = rank(run)
        head = head_of(run, ranked)
        nothing = [""] * len(head)
        facts = Facts(nothing, nothing, np.full(len(head), np.nan), head.scores, None)
        return self._remembered(run, self._page(run, ranked, head, facts, head.rows([]), []))

    async def _rest(self, run: Run, ranked: Ranked, head: Ranked) -> tuple[Ranked, list[str]]:
        """What ranks behind the head, checked as the head was, with the categories: for a page that the head, after
        what the rules took out of it, does not fill.
        """
        known = set(head.items)
        rest = ranked.rows([row for row, item in enumerate(ranked.items) if item not in known])
        try:
            blocks = await self.read(run, "item", rest.items)
        except StageFailure as failure:
            run.degrade(self.name, failure.reason, "fill_unchecked")
            return rest, [""] * len(rest)
        facts = _facts(blocks, rest.items, run.context.now_s, rest.scores, None)
        gone = unavailable(blocks, rest.items) if run.scene.filters.unavailable else frozenset()
        shown = self._showable(run, rest, facts, gone, ranked.removed)
        return rest.rows(shown), [facts.category[row] for row in shown]

    def _page(
        self, run: Run, ranked: Ranked, head: Ranked, facts: Facts, rest: Ranked, categories: list[str]
    ) -> Outcome:
        """The page from the head, and behind all of it from the rest (with its categories)."""
        rules = run.scene.rules
        value = relevance(
            facts.score, head.items, facts.category, facts.creator, facts.age_s, rules.boost, rules.freshness
        )
        size = page_size(run)
        fixed, explored = fixed_places(run, head, ranked, min(size, len(head) + len(rest)))
        shelf = Shelf(value, facts.category, facts.embedding).then(categories)
        rows = fill(shelf, size, fixed=fixed, cap=rules.cap, mmr_lambda=rules.mmr_lambda)
        if explored is not None and explored in rows:
            head.sources[explored] = "explore"
        return self._done(run, head.then(rest), rows, ranked, np.concatenate([facts.score, rest.scores]))

    @staticmethod
    def _showable(
        run: Run, some: Ranked, facts: Facts, gone: frozenset[str], removed: dict[str, list[str]]
    ) -> list[int]:
        """The rows that may be on a page; the others are noted in `removed`."""
        exclude = run.scene.rules.exclude
        shown: list[int] = []
        for row, item in enumerate(some.items):
            if item in gone:
                removed.setdefault("unavailable", []).append(item)
            elif facts.category[row] in exclude.categories or facts.creator[row] in exclude.creators:
                removed.setdefault("excluded", []).append(item)
            else:
                shown.append(row)
        return shown

    def _done(self, run: Run, shown: Ranked, rows: list[int], ranked: Ranked, score: Floats) -> Outcome:
        """The page of the given rows; what else could have been on it is below the page."""
        page = shown.rows(rows)
        # Of an item that came twice, one place is left.
        hidden = {item for reason, items in ranked.removed.items() if reason != "duplicate" for item in items}
        hidden.update(page.items)
        return Outcome(
            items=page.items,
            scores=score[rows].tolist(),
            sources=page.sources,
            removed={**ranked.removed, "below_page": [item for item in ranked.items if item not in hidden]},
            short=page_size(run) - len(page),
        )

    def _remembered(self, run: Run, outcome: Outcome) -> Outcome:
        """Keeps the result for recall's fallback, unless it came from that fallback. On the event loop."""
        items = [*outcome.items, *outcome.removed["below_page"]]
        if items and not any(entry.stage == "recall" for entry in run.envelope.degraded):
            self.deps.cache.remember_result(run.user_id, run.envelope.user.scene, items[:_REMEMBER])
        return outcome


def page_size(run: Run) -> int:
    """Places of the page: what entry said, else the scene's."""
    return run.envelope.page_size or run.scene.page_size


def rank(run: Run) -> Ranked:
    """The candidates by score, best first and stable; without scores (a stage called alone) in the order given."""
    envelope, items = run.envelope, run.items
    count = len(items)
    by_place = 1.0 - np.arange(count) / max(count, 1)
    scores = by_place if envelope.scores is None else np.asarray(envelope.scores, np.float64)
    coarse = (
        np.full(count, np.nan) if envelope.coarse_scores is None else np.asarray(envelope.coarse_scores, np.float64)
    )
    finite = np.isfinite(scores)
    order = np.argsort(np.where(finite, -scores, np.inf), kind="stable").tolist()
    removed: dict[str, list[str]] = {}
    kept: list[int] = []
    known: set[str] = set()
    for row in order:
        item = items[row]
        reason = _reason(item, bool(finite[row]), known, run.scene.rules.exclude.items)
        if reason is None:
            known.add(item)
            kept.append(row)
        else:
            removed.setdefault(reason, []).append(item)
    sources = envelope.sources or [""] * count
    return Ranked([items[row] for row in kept], scores[kept], coarse[kept], [sources[row] for row in kept], removed)


def head_of(run: Run, ranked: Ranked) -> Ranked:
    """The best `rerank_best`, and behind them the pinned items and the one to explore, wherever they rank."""
    best = max(run.scene.rerank_best, page_size(run))
    rows = list(range(min(best, len(ranked))))
    wanted = {pin.item_id for pin in run.scene.rules.pin}
    pick = exploration_pick(run, ranked, page_size(run))
    if pick is not None:
        wanted.add(ranked.items[pick])
    rows += [row for row in range(len(rows), len(ranked)) if ranked.items[row] in wanted]
    return ranked.rows(rows)


def fixed_places(run: Run, head: Ranked, ranked: Ranked, size: int) -> tuple[dict[int, int], int | None]:
    """Place (0-based) -> row of the head, for pins and exploration; and the explored row, if there is one."""
    places: dict[int, int] = {}
    by_item = {item: row for row, item in enumerate(head.items)}
    for pin in run.scene.rules.pin:
        if pin.item_id in by_item and pin.position <= size:
            places[pin.position - 1] = by_item[pin.item_id]
    pick = exploration_pick(run, ranked, size)
    place = run.scene.rules.exploration.position - 1
    row = by_item.get(ranked.items[pick]) if pick is not None else None
    # A page that cannot be filled up to the place has nothing to gain from exploring there.
    if row is None or place in places or row in places.values() or not place < min(size, len(head)):
        return places, None
    places[place] = row
    return places, row


def exploration_pick(run: Run, ranked: Ranked, size: int) -> int | None:
    """The row to explore with: one of the best from the exploration channels that the page by score leaves out.

    Follows from the request id alone, so that a request asked twice explores alike.
    """
    rule = run.scene.rules.exploration
    if rule.share <= 0.0 or rule.position > size:
        return None
    digest = hashlib.blake2b(run.envelope.request_id.encode(), digest_size=16, person=b"explore").digest()
    if int.from_bytes(digest[:8], "big") / 2**64 >= rule.share:
        return None
    eligible = [row for row in range(size, len(ranked)) if ranked.sources[row] in rule.channels][:_EXPLORE_AMONG]
    return eligible[int.from_bytes(digest[8:], "big") % len(eligible)] if eligible else None


def _reason(item: str, finite: bool, known: set[str], excluded: frozenset[str]) -> str | None:
    if item in known:
        return "duplicate"
    if not finite:
        return "not_finite"
    return "excluded" if item in excluded else None


def _finite(score: Floats) -> Floats:
    """Scores with the lowest finite one in place of what is not finite: it must neither win nor leave."""
    return np.where(np.isfinite(score), score, np.nanmin(np.where(np.isfinite(score), score, np.nan)))


def _facts(blocks: Blocks, items: list[str], now_s: float, score: Floats, embedding: npt.NDArray[Any] | None) -> Facts:
    profile = blocks["item_profile"]
    published = np.asarray(profile.columns["publish_time"]).astype(np.float64)
    known = ~(profile.missing | profile.stale) & (published > 0)
    if embedding is not None and (embedding.ndim != 2 or len(embedding) != len(items)):
        embedding = None
    return Facts(
        category=_text(blocks, "category"),
        creator=_text(blocks, "creator"),
        age_s=np.where(known, now_s - published, np.nan),
        score=score,
        embedding=None if embedding is None else np.nan_to_num(embedding),
    )


def _facts_of(facts: Facts, rows: list[int]) -> Facts:
    return Facts(
        [facts.category[row] for row in rows],
        [facts.creator[row] for row in rows],
        facts.age_s[rows],
        facts.score[rows],
        None if facts.embedding is None else facts.embedding[rows],
    )


def _text(blocks: Blocks, name: str) -> list[str]:
    column = blocks["item_profile"].columns[name]
    assert not isinstance(column, ListColumn), name
    texts: list[str] = column.tolist()
    return texts
