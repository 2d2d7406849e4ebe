"""The v2 client against a real gRPC server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import grpc.aio
import numpy as np
import pytest
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc import grpc_predict_v2_pb2_grpc as services

from recgraph import logs, tensors
from recgraph.errors import StageFailure
from recgraph_transformers.client import PredictorClient


class _Server(services.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Doubles `x`; does what `mode` says besides."""

    def __init__(self) -> None:
        self.mode = ""
        self.asked: list[pb.ModelInferRequest] = []

    async def ModelInfer(
        self, request: pb.ModelInferRequest, context: grpc.aio.ServicerContext
    ) -> pb.ModelInferResponse:
        self.asked.append(request)
        if self.mode == "hang":
            await asyncio.sleep(3600)
        if self.mode in ("RESOURCE_EXHAUSTED", "INTERNAL"):
            await context.abort(grpc.StatusCode[self.mode], "no")
        array = tensors.decode("x", request.inputs[0].datatype, request.inputs[0].shape, request.raw_input_contents[0])
        datatype, raw = tensors.encode("y", array * 2)
        version = "v0" if self.mode == "other bundle" else "v1"
        response = pb.ModelInferResponse(model_version=version, raw_output_contents=[raw])
        response.outputs.add(name="y", datatype=datatype, shape=[9] if self.mode == "bad shape" else array.shape)
        return response

    async def ModelReady(
        self, request: pb.ModelReadyRequest, context: grpc.aio.ServicerContext
    ) -> pb.ModelReadyResponse:
        return pb.ModelReadyResponse(ready=request.name == "fine")


@pytest.fixture
async def served() -> AsyncIterator[tuple[_Server, str]]:
    servicer, server = _Server(), grpc.aio.server()
    services.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield servicer, f"127.0.0.1:{port}"
    await server.stop(None)


async def test_tensors_and_the_request_id_go_there_and_back(served: tuple[_Server, str]) -> None:
    server, target = served
    client = PredictorClient(target, "fine", "v1")
    token = logs.request_id.set("req_9")
    try:
        outputs = await client.predict({"x": np.array([[1.0, 2.0]], np.float32)}, 5.0)
    finally:
        logs.request_id.reset(token)
    assert outputs["y"].tolist() == [[2.0, 4.0]]
    assert (server.asked[0].id, server.asked[0].model_name) == ("req_9", "fine")
    assert await client.ready(5.0)
    await client.aclose()


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("hang", "predictor_timeout"),
        ("RESOURCE_EXHAUSTED", "predictor_overload"),
        ("INTERNAL", "predictor_error"),
        ("other bundle", "predictor_other_bundle"),
        ("bad shape", "predictor_bad_output"),
    ],
)
async def test_every_failure_has_its_reason(served: tuple[_Server, str], mode: str, reason: str) -> None:
    server, target = served
    client = PredictorClient(target, "fine", "v1")
    server.mode = mode
    with pytest.raises(StageFailure) as caught:
        await client.predict({"x": np.zeros(1, np.float32)}, 0.2 if mode == "hang" else 5.0)
    assert caught.value.reason == reason
    await client.aclose()


async def test_a_predictor_that_is_gone_fails_at_once_and_is_found_when_it_comes() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    client = PredictorClient(f"127.0.0.1:{port}", "fine", "v1")
    with pytest.raises(StageFailure) as caught:
        await client.predict({"x": np.zeros(1, np.float32)}, 5.0)
    assert caught.value.reason == "predictor_unavailable"
    assert not await client.ready(1.0)
    server = grpc.aio.server()
    services.add_GRPCInferenceServiceServicer_to_server(_Server(), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    for _ in range(100):
        if await client.ready(1.0):
            break
        await asyncio.sleep(0.05)
    assert (await client.predict({"x": np.ones(1, np.float32)}, 5.0))["y"].tolist() == [2.0]
    await server.stop(None)
    await client.aclose()
