"""A transformer: envelopes over HTTP, the stage's logic, features from the online store, the model behind gRPC.

Readiness: a transformer is ready once it has answered the recorded requests, with its model or without. It waits
`warmup_wait_s` for its predictor, so that a rollout does not begin degraded, and then becomes ready anyway: a stage
whose predictor is gone answers with its fallback, a stage that is not ready would end every request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from recgraph import metrics
from recgraph.bundle import Bundle
from recgraph.cache import RedisCache
from recgraph.clock import DataClock
from recgraph.contract import Envelope
from recgraph.edge import ProcessState
from recgraph.errors import StageFailure
from recgraph.features.feast_hash import FeastHashReader
from recgraph.features.packed import PackedReader
from recgraph.features.reader import FeatureReader
from recgraph.pools import CachedPools
from recgraph.scenes import SceneFileWatch
from recgraph.settings import Settings
from recgraph.stages.base import StageDeps
from recgraph.stages.cascade import STAGES
from recgraph.stages.warmup import warm_up
from recgraph_predictors import host
from recgraph_transformers.client import PredictorClient

_CONNECT_TIMEOUT_S: Final = 1.0
_ATTEMPTS: Final = 3
_POLL_S: Final = 0.1
_log = logging.getLogger(__name__)


class Reader(FeatureReader, Protocol):
    """A reader that can connect ahead of the first request."""

    async def warm_up(self, timeout_s: float = ...) -> None:
        """Connects. Raises StageFailure."""
        ...


class Transformer:
    """Builds one stage over its real dependencies, on the running loop."""

    def __init__(self, stage: str, model_name: str, predictor: str, bundle: Bundle, settings: Settings) -> None:
        self._stage = stage
        self._model_name = model_name
        self._predictor = predictor
        self._bundle = bundle
        self._settings = settings

    async def build(self) -> host.Runner:
        """The stage's `run`, after the warm-up."""
        settings = self._settings
        client = PredictorClient(self._predictor, self._model_name, self._bundle.version)
        reader = open_reader(settings)
        cache = RedisCache(
            settings.caches_redis, last_ttl_s=settings.last_result_ttl_s, record_ttl_s=settings.record_ttl_s
        )
        deps = StageDeps(
            reader=reader,
            predict=client.predict,
            cache=cache,
            pools=CachedPools(cache, self._bundle.pools, refresh_s=settings.pools_refresh_s),
            scenes=SceneFileWatch(settings.scenes),
            bundle=self._bundle,
            clock=DataClock(settings.clock_offset_s),
            budgets=settings.budgets,
            max_in_flight=settings.max_in_flight,
        )
        await self._connect(client, reader, cache)
        await self._warm(deps)
        metrics.watch_writes(self._stage, cache.writes)
        stage = STAGES[self._stage](metrics.counting(deps, self._stage))

        async def run(envelope: Envelope) -> Envelope:
            return await stage.run(envelope)

        return run

    async def _connect(self, client: PredictorClient, reader: Reader, cache: RedisCache) -> None:
        await reach("features", reader.warm_up)
        await reach("cache", cache.ping)
        give_up = time.monotonic() + self._settings.warmup_wait_s
        while not await client.ready(_CONNECT_TIMEOUT_S):
            if time.monotonic() >= give_up:
                _log.warning("starting without the predictor at %s", self._predictor)
                return
            await asyncio.sleep(_POLL_S)

    async def _warm(self, deps: StageDeps) -> None:
        answers = await warm_up(self._stage, deps, self._bundle.path)
        reasons = sorted(
            {entry.reason for answer in answers for entry in answer.degraded if entry.stage == self._stage}
        )
        if reasons:
            _log.warning("the warm-up was answered with fallbacks: %s", ", ".join(reasons))


async def reach(name: str, connect: Callable[[float], Awaitable[None]]) -> None:
    """Connects, in a few attempts: the server's own start holds the loop for longer than one of them may take."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return await connect(_CONNECT_TIMEOUT_S)
        except StageFailure as failure:
            if attempt == _ATTEMPTS:
                _log.warning("starting without %s: %s", name, failure)


def open_reader(settings: Settings) -> Reader:
    """The reader that the settings name."""
    kind = PackedReader if settings.reader == "packed" else FeastHashReader
    return kind(settings.features_redis, settings.project)


def run(stage: str, argv: Sequence[str] | None = None) -> None:
    """The main program of a transformer."""
    args = host.arguments(f"Transformer of the {stage} stage.", argv)
    settings = Settings()  # type: ignore[call-arg]  # from the environment
    host.start_logging(settings, stage)
    if not args.predictor_host:
        raise SystemExit("--predictor_host HOST:GRPCPORT is needed")
    state = ProcessState(args.model_name)
    bundle = Bundle.open(settings.bundle)
    transformer = Transformer(stage, args.model_name, args.predictor_host, bundle, settings)
    model = host.EnvelopeModel(
        args.model_name,
        state,
        stage=stage,
        build=transformer.build,
        bundle=bundle.version,
        whole_ms=settings.budgets.whole,
    )
    host.serve(model, args, settings, grpc=False)
