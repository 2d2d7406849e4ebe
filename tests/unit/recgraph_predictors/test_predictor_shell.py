"""A predictor's way from a v2 request to its answer, without a server."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc_interceptor.exceptions import ResourceExhausted
from kserve import InferInput, InferRequest, InferResponse
from kserve.errors import InvalidInput, ModelNotFound, ModelNotReady
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb

from recgraph import logs, tensors
from recgraph.edge import ProcessState
from recgraph.models.base import Tensors
from recgraph.settings import Settings
from recgraph_predictors import infer
from recgraph_predictors.shell import Predictor


class _Model:
    """Scores an item by the length of its id, and remembers the request it worked for."""

    bundle_version = "v1"

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.calls = 0

    def predict(self, inputs: Tensors) -> Tensors:
        self.calls += 1
        self.entered.set()
        self.gate.wait(5.0)
        ids = inputs["item_id"]
        if len(ids) > 5:
            raise ValueError("too many")
        return {"score": np.array([len(each) for each in ids], np.float32), "id": ids}


def _predictor(model: _Model | None, **settings: Any) -> Predictor:
    made = Predictor(
        "fine",
        ProcessState("fine"),
        stage="fine",
        bundle=SimpleNamespace(version="v1"),  # type: ignore[arg-type]
        load=lambda *_, **__: _Model(),
        settings=Settings(bundle=Path("/b"), scenes=Path("/s"), **settings),
    )
    made._model = model
    return made


def _grpc(**arrays: Any) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="fine", id="req_1")
    for name, array in arrays.items():
        datatype, raw = tensors.encode(name, array)
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(raw)
    return request


def _ids(*values: bytes) -> Any:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def _cut_short() -> pb.ModelInferRequest:
    request = _grpc(item_id=_ids(b"a"))
    request.inputs[0].shape[:] = [3]
    return request


def _one_content_too_many() -> pb.ModelInferRequest:
    request = _grpc(item_id=_ids(b"a"))
    request.raw_input_contents.append(b"")
    return request


async def test_grpc_tensors_in_and_out_with_the_bundles_version() -> None:
    answer = await _predictor(_Model()).infer(_grpc(item_id=_ids(b"a", "üb".encode())))
    assert (answer.id, answer.model_version) == ("req_1", "v1")
    found = {
        output.name: tensors.decode(output.name, output.datatype, output.shape, raw)
        for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }
    assert found["score"].tolist() == [1.0, 3.0]
    assert found["id"].tolist() == [b"a", "üb".encode()]
    assert logs.request_id.get() == ""


async def test_rest_is_answered_in_json() -> None:
    asked = InferInput("item_id", [2], "BYTES")
    asked._data = ["a", "bcd"]
    answer = await _predictor(_Model()).predict(InferRequest("fine", [asked]), {})
    assert isinstance(answer, InferResponse)
    assert answer.to_rest()[0]["outputs"][0]["data"] == [1.0, 3.0]


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (_grpc(x=np.zeros(1, np.float32)), "the input 'item_id' is missing"),
        (_grpc(item_id=_ids(*[b"a"] * 9)), "too many"),
        (_grpc(item_id=np.zeros((), np.float32)), "unsized"),
        (_grpc(item_id=np.zeros(2, np.float32)), "has no len"),
        (_cut_short(), "shape"),
        (_one_content_too_many(), "1 inputs, 2 raw contents"),
    ],
)
async def test_bad_tensors_are_the_callers_fault(request_: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        await _predictor(_Model()).infer(request_)


async def test_another_protocol_over_rest_is_the_callers_fault() -> None:
    with pytest.raises(InvalidInput, match="Open Inference Protocol v2"):
        await _predictor(_Model()).predict({"instances": []}, {})  # type: ignore[arg-type]


async def test_typed_contents_are_read_too() -> None:
    request = pb.ModelInferRequest(model_name="fine")
    tensor = request.inputs.add(name="item_id", datatype="BYTES", shape=[2])
    tensor.contents.bytes_contents.extend([b"a", b"bcd"])
    answer = await _predictor(_Model()).infer(request)
    assert np.frombuffer(answer.raw_output_contents[0], "<f4").tolist() == [1.0, 3.0]


async def test_a_model_of_another_name_is_not_found() -> None:
    with pytest.raises(ModelNotFound):
        await _predictor(_Model()).infer(pb.ModelInferRequest(model_name="coarse"))


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (_grpc(item_id=_ids(b"a")), None),
        (_grpc(x=np.zeros(1, np.float32)), grpc.StatusCode.INVALID_ARGUMENT),
        (pb.ModelInferRequest(model_name="coarse"), grpc.StatusCode.NOT_FOUND),
    ],
)
async def test_the_servers_edge_answers_with_a_status(request_: Any, code: grpc.StatusCode | None) -> None:
    server = grpc.aio.server(interceptors=(infer.InferEdge("fine", _predictor(_Model()).infer),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(infer.METHOD, pb.ModelInferRequest.SerializeToString)(request_)
            assert await call.code() == (code or grpc.StatusCode.OK)
    finally:
        await server.stop(None)


async def test_nothing_is_predicted_before_the_model_is_there() -> None:
    with pytest.raises(ModelNotReady):
        await _predictor(None).infer(_grpc(item_id=_ids(b"a")))


async def test_more_than_the_limit_is_refused_and_a_cancelled_call_leaves_the_queue() -> None:
    model = _Model()
    model.gate.clear()
    predictor = _predictor(model, max_in_flight=2, executor_workers=1)
    running = asyncio.create_task(predictor.infer(_grpc(item_id=_ids(b"a"))))
    waiting = asyncio.create_task(predictor.infer(_grpc(item_id=_ids(b"a"))))
    await asyncio.to_thread(model.entered.wait, 5.0)
    with pytest.raises(ResourceExhausted):
        await predictor.infer(_grpc(item_id=_ids(b"a")))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    model.gate.set()
    await running
    await predictor.infer(_grpc(item_id=_ids(b"a")))
    assert model.calls == 2, "the cancelled call never ran"


@pytest.mark.parametrize("method", ["RepositoryModelLoad", "RepositoryModelUnload"])
async def test_nobody_takes_the_model_away(method: str) -> None:
    server = grpc.aio.server(interceptors=(infer.InferEdge("fine", _predictor(_Model()).infer),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            asked = pb.RepositoryModelUnloadRequest(model_name="fine").SerializeToString()
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")(asked)
            assert await call.code() == grpc.StatusCode.PERMISSION_DENIED
    finally:
        await server.stop(None)
