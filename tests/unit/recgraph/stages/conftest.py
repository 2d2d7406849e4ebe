"""A stage over features in memory, models that are plain functions, and dependencies that can be made to fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from recgraph.bundle.store import Pools
from recgraph.cache import NoCache
from recgraph.contract import Envelope, User
from recgraph.errors import StageFailure
from recgraph.features.codec import codec_of
from recgraph.features.reader import ViewBlock
from recgraph.features.schema import Entity, FeatureSet, ViewSchema
from recgraph.pools import CachedPools
from recgraph.scenes import Scene, Scenes
from recgraph.settings import Budgets
from recgraph.stages import STAGES, SetClock, Stage, StageDeps, Tensors

NOW_S = 1_700_000_000.0
FEATURES = msgspec.json.decode((Path(__file__).parents[3] / "features.json").read_bytes(), type=FeatureSet)


def _default(dtype: str) -> Any:
    return [] if dtype.endswith("_list") else "" if dtype == "text" else 0 if dtype == "int64" else 0.0


@dataclass
class Memory(NoCache):
    """Cache and reader in one. `rows` is by (role, entity id); `fail` raises, `hang` never answers."""

    rows: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    last: dict[str, list[str]] = field(default_factory=dict)
    records: dict[str, bytes] = field(default_factory=dict)
    fail: str = ""
    hang: bool = False
    reads: list[tuple[Entity, int]] = field(default_factory=list)

    async def read(
        self, entity: Entity, views: Sequence[ViewSchema], ids: Sequence[str], *, now_s: float, timeout_s: float
    ) -> dict[str, ViewBlock]:
        self.reads.append((entity, len(ids)))
        if self.hang:
            await asyncio.sleep(3600)
        if self.fail:
            raise StageFailure(self.fail)
        return {
            view.role: codec_of(view).decode([self._blob(view, each) for each in ids], now_s=now_s) for view in views
        }

    async def last_result(self, user_id: str, scene: str, timeout_s: float) -> list[str]:
        return self.last.get(user_id, [])

    def remember_result(self, user_id: str, scene: str, items: Sequence[str]) -> None:
        self.last[user_id] = list(items)

    def write_record(self, request_id: str, stage: str, record: bytes) -> None:
        self.records[stage] = record

    def _blob(self, view: ViewSchema, entity: str) -> bytes | None:
        values = self.rows.get((view.role, entity))
        if values is None:
            return None
        return codec_of(view).encode(
            [values.get(each.name, _default(each.dtype)) for each in view.fields], int(NOW_S) * 1_000_000
        )


@dataclass
class TestBundle:
    """As much of a bundle as stages look at."""

    __test__ = False
    version: str = "v1"
    features: FeatureSet = FEATURES
    pools: Pools = field(default_factory=dict)


Answer = Callable[[Tensors], Tensors]


@dataclass
class Kit:
    """Makes stages and envelopes."""

    memory: Memory = field(default_factory=Memory)
    bundle: TestBundle = field(default_factory=TestBundle)
    scene: Scene = field(default_factory=Scene)
    budgets: Budgets = field(default_factory=Budgets.unbounded)
    offered: list[Tensors] = field(default_factory=list)
    max_in_flight: int = 64

    def stage(self, name: str, answer: Answer | StageFailure | None = None, *, after_s: float = 0.0) -> Stage:
        """A stage whose predictor gives `answer` after a time, raises it, or (None) hangs."""

        async def predict(inputs: Tensors, timeout_s: float) -> Tensors:
            self.offered.append(inputs)
            await asyncio.sleep(after_s)
            if answer is None:
                await asyncio.sleep(3600)
                raise AssertionError
            if isinstance(answer, StageFailure):
                raise answer
            return answer(inputs)

        return STAGES[name](
            StageDeps(
                reader=self.memory,
                predict=predict,
                cache=self.memory,
                pools=CachedPools(NoCache(), self.bundle.pools, refresh_s=60.0),
                scenes=Scenes({"home": self.scene}),
                bundle=self.bundle,
                clock=SetClock(NOW_S),
                budgets=self.budgets,
                max_in_flight=self.max_in_flight,
            )
        )

    @staticmethod
    def envelope(items: Sequence[str] | None = None, **more: Any) -> Envelope:
        """An envelope with plain business fields."""
        chosen = None if items is None else list(items)
        user = User(user_id=more.pop("user_id", "u"), scene=more.pop("scene", "home"))
        return Envelope(**({"request_id": "r", "user": user, "items": chosen} | more))


def by_number(inputs: Tensors) -> Tensors:
    """Scores i7 as 7 thousandths; by place where the inputs have no ids (coarse)."""
    if "item_id" not in inputs:
        return {"score": np.arange(len(inputs["item_dense"]), dtype=np.float32) / np.float32(1000.0)}
    return {"score": np.array([int(item[1:]) / 1000.0 for item in inputs["item_id"]], np.float32)}


@pytest.fixture
def kit() -> Kit:
    """A fresh kit."""
    return Kit()


@pytest.fixture
def numbered() -> Answer:
    """A model that scores `i<number>` by its number."""
    return by_number
