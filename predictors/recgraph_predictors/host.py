"""What every process on the KServe SDK shares: arguments, logging, event loop, warm-up, errors, metrics, draining.

Used by the predictors and by the transformers, so that there is one place that knows the SDK's ways.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import signal
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any, Final

import kserve.model_server as sdk
import uvloop
from fastapi import FastAPI
from kserve import Model, ModelServer

from recgraph import contract, logs
from recgraph.edge import Edge, ProcessState, Reply
from recgraph.errors import ClientError
from recgraph.metrics import StageMetrics
from recgraph.settings import Budgets, Settings

Runner = Callable[[contract.Envelope], Awaitable[contract.Envelope]]
Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None
KEEP_ALIVE_S: Final = 120  # longer than the router keeps idle connections (90 s)
_log = logging.getLogger(__name__)


class HostedModel(Model):  # type: ignore[misc]  # the SDK has no types
    """A model that the server knows from the start and that is ready once `warm_up` is through."""

    def __init__(self, name: str, state: ProcessState) -> None:
        super().__init__(name, return_response_headers=True)
        self.state = state
        # The SDK registers only what is ready, and runs `start_engine` beside its servers for what has an engine.
        self.ready = True
        self.engine = True

    def start(self) -> None:
        """Registered; from here on not ready until warm."""
        self.ready = False

    def load(self) -> bool:
        """The SDK calls this for a model that is not ready; only the warm-up may change that."""
        return bool(self.ready)

    async def start_engine(self) -> None:
        """Warms up, freezes what was built so that no collection walks it again, and declares the process ready."""
        await self.warm_up()
        gc.collect()
        gc.freeze()
        self.ready = self.state.ready = True
        _log.info("ready", extra={"model": self.name})

    async def warm_up(self) -> None:
        """Builds what the model needs on the running loop and answers the recorded requests."""
        raise NotImplementedError

    def stop(self) -> None:
        """The server unloads at its end, while requests are still in work: nothing to do."""

    def stop_engine(self) -> None:
        """See `stop`."""


class EnvelopeModel(HostedModel):
    """A stage that takes envelopes: entry and the transformers. `build` gives the stage's `run`, warm."""

    def __init__(
        self,
        name: str,
        state: ProcessState,
        *,
        stage: str,
        build: Callable[[], Awaitable[Runner]],
        bundle: str = "",
        whole_ms: float = Budgets().whole,
    ) -> None:
        super().__init__(name, state)
        self._metrics = StageMetrics(stage, bundle, whole_ms=whole_ms)
        self._stage = stage
        self._build = build
        self._run: Runner | None = None

    async def warm_up(self) -> None:
        """See HostedModel."""
        self._run = await self._build()

    async def answer(self, payload: bytes, headers: dict[str, str]) -> Reply:
        """Body and headers to the answer, a client's fault included (see `recgraph.edge.Answer`)."""
        assert self._run is not None, "the edge answers 503 until the warm-up is through"
        header = headers.get("x-request-id", "")
        token = logs.request_id.set("")
        try:
            envelope = self._parse(payload, header, headers.get("traceparent", ""))
            logs.request_id.set(envelope.request_id)
            known = len(envelope.degraded)
            with self._metrics.failures(envelope):
                answered = await self._run(envelope)
            self._metrics.answered(answered, answered.degraded[known:])
            more = {"x-request-id": _header(answered.request_id)}
            for entry in answered.degraded[known:]:
                if entry.reason == "other_bundle":
                    # The caller's connection leads to pods that its requests have left: it shall open a new one.
                    more["connection"] = "close"
                _log.info("degraded", extra={"stage": entry.stage, "reason": entry.reason, "action": entry.action})
            encode = contract.encode_answer if self._stage == "rerank" else contract.encode
            return Reply(200, encode(answered), more)
        except ClientError as error:
            return self._refusal(error, payload, header)
        finally:
            logs.request_id.reset(token)

    def _parse(self, payload: bytes, request_id: str, traceparent: str) -> contract.Envelope:
        if self._stage == "entry":
            return contract.parse_request(payload, request_id=request_id, traceparent=traceparent)
        needs_items = self._stage != "recall"
        return contract.parse_envelope(payload, needs_items=needs_items, request_id=request_id, traceparent=traceparent)

    def _refusal(self, error: ClientError, payload: bytes, header: str) -> Reply:
        request_id = logs.request_id.get() or contract.request_id_of(payload, header)
        self._metrics.refused(error)
        _log.info("refused", extra={"status": error.status, "error": str(error), "request_id": request_id})
        return Reply(error.status, contract.error_body(error, request_id), {"x-request-id": _header(request_id)})


def arguments(description: str, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The SDK's own flags; an unknown one is an error. `--workers` above 1 is refused: a pod is one process."""
    parser = argparse.ArgumentParser(description=description, parents=[sdk.parser], conflict_handler="resolve")
    parser.set_defaults(timeout_keep_alive=KEEP_ALIVE_S, enable_latency_logging=False)
    parsed = parser.parse_args(argv)
    if parsed.workers != 1:
        parser.error(f"--workers {parsed.workers}: one process per pod, raise the replicas instead")
    return parsed


def serve(model: HostedModel, args: argparse.Namespace, settings: Settings, *, grpc: bool) -> None:
    """Runs the server until SIGTERM, and through its draining."""
    app: FastAPI = sdk.app
    answer = model.answer if isinstance(model, EnvelopeModel) else None
    inner = app.build_middleware_stack
    # Around the whole stack: what the SDK adds to it is for requests that the edge leaves to the server.
    app.build_middleware_stack = lambda: Edge(inner(), model.state, answer)  # type: ignore[method-assign]
    app.router.lifespan_context = lambda _app: _draining(model.state, settings.drain_s)
    # `--event-loop uvloop` has no effect in a single process: the SDK runs asyncio.run itself.
    uvloop.install()
    asyncio.set_event_loop(asyncio.new_event_loop())
    server = ModelServer(
        http_port=args.http_port,
        grpc_port=args.grpc_port,
        enable_grpc=grpc,
        enable_latency_logging=args.enable_latency_logging,
        timeout_keep_alive=args.timeout_keep_alive,
        workers=1,
    )
    server.start([model])


def start_logging(settings: Settings, stage: str) -> None:
    """Configures logging and prints the settings, once."""
    logs.configure(settings.log_level)
    # The SDK answers with a response class that its FastAPI calls deprecated, on every process's first answer.
    warnings.filterwarnings("ignore", message="ORJSONResponse is deprecated")
    _log.info("starting", extra={"stage": stage, "settings": settings.public()})


def _header(value: str) -> str:
    """An id as a header value: headers are Latin-1 without control characters, ids are any UTF-8."""
    return "".join(char if " " <= char <= "~" else "?" for char in value)


@asynccontextmanager
async def _draining(state: ProcessState, drain_s: float) -> AsyncIterator[None]:
    """Puts draining before the server's own reaction to SIGTERM, which closes the listening socket at once.

    uvicorn installs its handlers before it opens the lifespan, so here they can be taken over and given back.
    """
    loop = asyncio.get_running_loop()
    stop: Handler = signal.getsignal(signal.SIGTERM)

    def finish() -> None:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, stop)
        signal.raise_signal(signal.SIGTERM)

    def begin() -> None:
        if not state.draining:
            state.draining = True
            _log.info("draining", extra={"seconds": drain_s})
            loop.call_later(drain_s, finish)

    loop.add_signal_handler(signal.SIGTERM, begin)
    yield
