"""The stages' own code at past moments: what training and evaluation run their requests through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from recgraph.bundle import Pools
from recgraph.cache import NoCache, PoolKind
from recgraph.contract import Envelope, User
from recgraph.data.progress import Progress, silent
from recgraph.data.world import World
from recgraph.errors import DataError
from recgraph.features.assembly import Blocks, Context
from recgraph.features.reader import FeatureReader
from recgraph.features.schema import FeatureSet
from recgraph.models.base import StageModel
from recgraph.scenes import Scene, Scenes
from recgraph.settings import Budgets
from recgraph.stages.base import Stage, StageDeps, context_of
from recgraph.stages.cascade import STAGES, SetClock, local_predict
from recgraph.training.pools import FreshPool, HotPool
from recgraph.training.samples import Request

_TIMEOUT_S = 3600.0
_REPORT_EVERY = 200


@dataclass(frozen=True)
class PastPools:
    """Pools as they would have stood at the clock's moment."""

    hot: HotPool
    fresh: FreshPool
    ids: npt.NDArray[np.object_]
    clock: SetClock

    async def pool(self, scene: str, kind: PoolKind, limit: int, timeout_s: float) -> list[str]:
        """As `recgraph.pools.PoolSource`; every scene has the same pools, since events do not say where they were."""
        source = self.hot if kind == "hot" else self.fresh
        rows, _ = source.at(round(self.clock.now_s() * 1e6) + 1, limit)
        found: list[str] = self.ids[rows].tolist()
        return found


@dataclass(frozen=True)
class PastBundle:
    """As much of a bundle as the stages look at, before there is one."""

    features: FeatureSet
    version: str = "training"
    pools: Pools = field(default_factory=dict)


class Replay:
    """Runs stages for past requests, without time limits, on what was known at each one's moment."""

    def __init__(
        self,
        world: World,
        features: FeatureSet,
        reader: FeatureReader,
        scenes: Scenes,
        scene: str,
        progress: Progress = silent,
    ) -> None:
        self.world = world
        self.scene = scene
        self._bundle = PastBundle(features)
        self._reader = reader
        self._scenes = scenes
        self._progress = progress
        self._clock = SetClock()
        self._pools = PastPools(HotPool.of(world), FreshPool.of(world), world.item_ids, self._clock)
        self._rows = {item: row for row, item in enumerate(world.item_ids.tolist())}

    @property
    def settings(self) -> Scene:
        """The scene that is replayed."""
        return self._scenes.get(self.scene)

    def stage(self, name: str, model: StageModel, settings: Scene | None = None) -> Stage:
        """A stage around a model; `settings` replace the scene's."""
        scenes = self._scenes if settings is None else Scenes({self.scene: settings})
        return STAGES[name](
            StageDeps(
                reader=self._reader,
                predict=local_predict(model),
                cache=NoCache(),
                pools=self._pools,
                scenes=scenes,
                bundle=self._bundle,
                clock=self._clock,
                budgets=Budgets.unbounded(),
            )
        )

    def ask(self, request: Request) -> Envelope:
        """The envelope with which a request enters recall."""
        user = User(user_id=self.world.user_ids[request.user], scene=self.scene)
        return Envelope(request_id=f"{request.user}-{request.time_us}", user=user)

    async def run(
        self, task: str, stages: Sequence[Stage], requests: Sequence[Request], envelopes: Sequence[Envelope]
    ) -> list[Envelope]:
        """What stages pass on for each request. `stages` is one for all of them, or one per request.

        Raises DataError when a stage had to fall back: then the lists are not what serving would give.
        """
        answers = []
        for index, (request, envelope) in enumerate(zip(requests, envelopes, strict=True)):
            stage = stages[index] if len(stages) > 1 else stages[0]
            answers.append(await self._one(stage, request, envelope))
            if index % _REPORT_EVERY == 0:
                self._progress(task, index / len(requests))
        return answers

    async def blocks(self, stage: str, request: Request, items: Sequence[str]) -> tuple[Blocks, Blocks, Context]:
        """The user's and the items' features for a stage at the request's moment, and its context."""
        features, now_s = self._bundle.features, request.now_s
        user = await self._reader.read(
            "user",
            features.of_stage(stage, "user"),
            [self.world.user_ids[request.user]],
            now_s=now_s,
            timeout_s=_TIMEOUT_S,
        )
        item = await self._reader.read(
            "item", features.of_stage(stage, "item"), items, now_s=now_s, timeout_s=_TIMEOUT_S
        )
        return user, item, context_of(self.ask(request), now_s)

    def rows(self, items: Sequence[str]) -> npt.NDArray[np.int64]:
        """Item rows, in the order of the world's items, which is that of every per-item array of the bundle."""
        return np.array([self._rows[item] for item in items], np.int64)

    async def _one(self, stage: Stage, request: Request, envelope: Envelope) -> Envelope:
        self._clock.at_s = request.now_s
        fresh = msgspec.structs.replace(envelope, trace=[], degraded=[], bundle=None)
        answer = await stage.run(fresh)
        if answer.degraded:
            fallback = answer.degraded[0]
            raise DataError(f"request {request.user} at {request.now_s}: {fallback.stage} fell back, {fallback.reason}")
        return answer
