"""ModelInfer ahead of the SDK's servicer, as recgraph.edge does it for HTTP (docs/adr/0008).

The SDK's way to a model (two interceptors, its own request type, the data plane, four histograms) costs more than
reading a request's tensors. All other methods of the protocol stay the SDK's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio
import kserve.protocol.grpc.server as sdk
import numpy.typing as npt
from grpc_interceptor.exceptions import GrpcException
from kserve import InferRequest
from kserve.errors import InvalidInput, ModelNotFound, ModelNotReady
from kserve.metrics import PREDICT_HIST_TIME, get_labels
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb

from recgraph import tensors
from recgraph.models.base import Tensors

Infer = Callable[[pb.ModelInferRequest], Awaitable[pb.ModelInferResponse]]
"""Raises InvalidInput, ModelNotFound, ModelNotReady, or an exception of grpc_interceptor with its own status."""
_SERVICE: Final = "/inference.GRPCInferenceService"
METHOD: Final = f"{_SERVICE}/ModelInfer"
_REPOSITORY: Final = frozenset({f"{_SERVICE}/RepositoryModelLoad", f"{_SERVICE}/RepositoryModelUnload"})
"""With these anyone could take the model away; a process serves the model of its bundle (see recgraph.edge)."""
_STATUS: Final = {
    InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    ModelNotFound: grpc.StatusCode.NOT_FOUND,
    ModelNotReady: grpc.StatusCode.UNAVAILABLE,
}


class InferEdge(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # no types
    """Gives calls of ModelInfer to `infer`, and everything else to the server."""

    def __init__(self, model_name: str, infer: Infer) -> None:
        self._infer = infer
        # The SDK's own metric, which operators know.
        self._seconds = PREDICT_HIST_TIME.labels(**get_labels(model_name))
        self._handler = grpc.unary_unary_rpc_method_handler(
            self._answer,
            request_deserializer=pb.ModelInferRequest.FromString,
            response_serializer=pb.ModelInferResponse.SerializeToString,
        )

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """The handler of a call."""
        if details.method in _REPOSITORY:
            return grpc.unary_unary_rpc_method_handler(_refuse)
        return self._handler if details.method == METHOD else await continuation(details)

    async def _answer(self, request: pb.ModelInferRequest, context: Any) -> pb.ModelInferResponse:
        with self._seconds.time():
            try:
                return await self._infer(request)
            except (InvalidInput, ModelNotFound, ModelNotReady) as error:
                await context.abort(_STATUS[type(error)], str(error))
            except GrpcException as error:
                await context.abort(error.status_code, error.details)


async def _refuse(request: bytes, context: Any) -> bytes:
    return await context.abort(grpc.StatusCode.PERMISSION_DENIED, "this process serves the model of its bundle")  # type: ignore[no-any-return]


def install(model_name: str, infer: Infer) -> None:
    """Puts the edge where the SDK's server has the interceptor that logs every call."""
    sdk.LoggingInterceptor = lambda: InferEdge(model_name, infer)


def inputs_of(request: pb.ModelInferRequest) -> Tensors:
    """The tensors of a request, raw or typed. Raises DataError or InvalidInput for one that does not fit its shape."""
    raw = request.raw_input_contents
    if not raw:
        return sdk_inputs(InferRequest.from_grpc(request))
    if len(raw) != len(request.inputs):
        raise InvalidInput(f"{len(request.inputs)} inputs, {len(raw)} raw contents")
    return {
        tensor.name: tensors.decode(tensor.name, tensor.datatype, tensor.shape, content)
        for tensor, content in zip(request.inputs, raw, strict=True)
    }


def sdk_inputs(request: InferRequest) -> Tensors:
    """The tensors of a request over REST, or over gRPC with typed contents."""
    return {tensor.name: _bytes(tensor.as_numpy()) for tensor in request.inputs}


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return tensors.as_bytes(array) if array.dtype == object else array
