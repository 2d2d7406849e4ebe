"""A predictor: tensors in by v2, one forward pass in the bounded executor, tensors out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from grpc_interceptor.exceptions import ResourceExhausted
from kserve import InferOutput, InferRequest, InferResponse
from kserve.errors import InvalidInput, ModelNotFound, ModelNotReady
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb

from recgraph import logs, tensors
from recgraph.bundle import Bundle
from recgraph.cache import NoCache
from recgraph.clock import DataClock
from recgraph.edge import ProcessState
from recgraph.errors import BundleError, DataError
from recgraph.models.base import StageModel, Tensors
from recgraph.pools import CachedPools
from recgraph.scenes import SceneFileWatch
from recgraph.settings import Settings
from recgraph.stages.base import StageDeps
from recgraph.stages.warmup import MissingReader, warm_up
from recgraph_predictors import host, infer

T = TypeVar("T")
Load = Callable[..., StageModel]
"""`recgraph.models.<stage>.load(bundle, *, threads)`."""
_log = logging.getLogger(__name__)


class Predictor(host.HostedModel):
    """Serves one stage's model. At most `max_in_flight` calls are in work or wait; more are refused at once."""

    def __init__(
        self, name: str, state: ProcessState, *, stage: str, bundle: Bundle, load: Load, settings: Settings
    ) -> None:
        super().__init__(name, state)
        self._stage = stage
        self._bundle = bundle
        self._load = load
        self._settings = settings
        self._model: StageModel | None = None
        self._executor = ThreadPoolExecutor(settings.executor_workers, thread_name_prefix=f"{stage}-model")
        self._in_flight = 0

    async def warm_up(self) -> None:
        """Loads the model and answers the bundle's recorded requests. Raises BundleError where it cannot."""
        loop = asyncio.get_running_loop()
        self._model = await loop.run_in_executor(
            self._executor, lambda: self._load(self._bundle, threads=self._settings.torch_threads)
        )
        if self._model.bundle_version != self._bundle.version:
            raise BundleError(f"{self._bundle.path}: the {self._stage} model says {self._model.bundle_version}")
        answers = await warm_up(self._stage, self._deps(), self._bundle.path)
        failed = [entry.reason for answer in answers for entry in answer.degraded if entry.stage == self._stage]
        if failed:
            raise BundleError(f"{self._bundle.path}: the {self._stage} model failed its warm-up: {failed[0]}")

    async def infer(self, request: pb.ModelInferRequest) -> pb.ModelInferResponse:
        """One v2 request over gRPC. Raises what `infer.Infer` says."""
        if request.model_name != self.name:
            raise ModelNotFound(request.model_name)

        def answer() -> pb.ModelInferResponse:
            outputs = self._outputs(lambda: infer.inputs_of(request))
            response = pb.ModelInferResponse(model_name=self.name, model_version=self._bundle.version, id=request.id)
            for name, array in outputs.items():
                datatype, raw = tensors.encode(name, array)
                response.outputs.add(name=name, datatype=datatype, shape=array.shape)
                response.raw_output_contents.append(raw)
            return response

        return await self._bounded(request.id, answer)

    async def predict(
        self, payload: InferRequest, headers: dict[str, str], response_headers: dict[str, str] | None = None
    ) -> InferResponse:
        """One v2 request over REST."""
        if not isinstance(payload, InferRequest):
            raise InvalidInput("this predictor speaks the Open Inference Protocol v2, for example over gRPC")

        def answer() -> InferResponse:
            outputs = self._outputs(lambda: infer.sdk_inputs(payload))
            found = []
            for name, array in outputs.items():
                output = InferOutput(name, list(array.shape), tensors.encode(name, array)[0])
                output.set_data_from_numpy(array, binary_data=False)
                found.append(output)
            return InferResponse(payload.id, self.name, found, model_version=self._bundle.version)

        return await self._bounded(payload.id or "", answer)

    async def _bounded(self, request_id: str, work: Callable[[], T]) -> T:
        """`work` in the executor; at most `max_in_flight` at once."""
        if self._model is None:
            raise ModelNotReady(self.name)
        if self._in_flight >= self._settings.max_in_flight:
            raise ResourceExhausted(f"{self._in_flight} calls in work")
        self._in_flight += 1
        token = logs.request_id.set(request_id)
        try:
            # A cancelled call (its client's deadline has passed) is taken out of the queue, if it still waits there.
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            logs.request_id.reset(token)
            self._in_flight -= 1

    def _outputs(self, inputs: Callable[[], Tensors]) -> Tensors:
        assert self._model is not None
        try:
            return self._model.predict(inputs())
        except KeyError as error:
            raise InvalidInput(f"{self._stage}: the input {error} is missing") from error
        except (DataError, ValueError, TypeError, IndexError) as error:
            # numpy's words for tensors of another type, rank or width than the model's.
            raise InvalidInput(f"{self._stage}: {error}") from error

    def _deps(self) -> StageDeps:
        cache = NoCache()
        model = self._model
        assert model is not None
        executor = self._executor

        async def predict(inputs: Tensors, timeout_s: float) -> Tensors:
            return await asyncio.get_running_loop().run_in_executor(executor, model.predict, inputs)

        return StageDeps(
            reader=MissingReader(),
            predict=predict,
            cache=cache,
            pools=CachedPools(cache, self._bundle.pools, refresh_s=self._settings.pools_refresh_s),
            scenes=SceneFileWatch(self._settings.scenes),
            bundle=self._bundle,
            clock=DataClock(self._settings.clock_offset_s),
        )


def run(stage: str, load: Load, argv: Sequence[str] | None = None) -> None:
    """The main program of a predictor."""
    args = host.arguments(f"Predictor of the {stage} stage.", argv)
    settings = Settings()  # type: ignore[call-arg]  # from the environment
    host.start_logging(settings, stage)
    state = ProcessState(args.model_name)
    bundle = Bundle.open(settings.bundle)
    model = Predictor(args.model_name, state, stage=stage, bundle=bundle, load=load, settings=settings)
    infer.install(args.model_name, model.infer)
    host.serve(model, args, settings, grpc=True)
