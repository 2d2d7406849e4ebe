"""The transformer's own v2 client: gRPC with binary tensors, timeouts in milliseconds, spread over all pods.

The SDK's client counts in whole seconds and sticks to one pod.
"""

from __future__ import annotations

from typing import Any, Final

import grpc
import grpc.aio
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb

from recgraph import logs, tensors
from recgraph.errors import DataError, StageFailure
from recgraph.models.base import Tensors

DEFAULT_PORT: Final = 8081
_SERVICE: Final = "/inference.GRPCInferenceService"
_MAX_MESSAGE: Final = 16 << 20
_OPTIONS: Final[tuple[tuple[str, Any], ...]] = (
    # Over a headless Service the name resolves to every pod; without this, a channel stays with the first.
    ("grpc.service_config", '{"loadBalancingConfig":[{"round_robin":{}}]}'),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    ("grpc.max_send_message_length", _MAX_MESSAGE),
    ("grpc.max_receive_message_length", _MAX_MESSAGE),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)
_REASONS: Final = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "predictor_timeout",
    grpc.StatusCode.UNAVAILABLE: "predictor_unavailable",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "predictor_overload",
}


class PredictorClient:
    """One channel per process. Is a `Predict` by its method of that name."""

    def __init__(self, target: str, model_name: str, bundle_version: str) -> None:
        """`target` is host:port (port 8081 if it has none). Made on the running loop."""
        address = target if ":" in target else f"{target}:{DEFAULT_PORT}"
        self._channel = grpc.aio.insecure_channel(f"dns:///{address}", options=_OPTIONS)
        self._infer = self._channel.unary_unary(
            f"{_SERVICE}/ModelInfer",
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )
        self._ready = self._channel.unary_unary(
            f"{_SERVICE}/ModelReady",
            request_serializer=pb.ModelReadyRequest.SerializeToString,
            response_deserializer=pb.ModelReadyResponse.FromString,
        )
        self._model_name = model_name
        self._bundle_version = bundle_version

    async def predict(self, inputs: Tensors, timeout_s: float) -> Tensors:
        """The model's outputs. Raises StageFailure("predictor_..."); never fails for longer than the timeout.

        An answer of another bundle is refused: scores of two bundles are never mixed.
        """
        request = self._request(inputs)
        try:
            response = await self._infer(request, timeout=timeout_s, wait_for_ready=False)
        except grpc.aio.AioRpcError as error:
            raise StageFailure(_REASONS.get(error.code(), "predictor_error"), str(error.details())) from error
        if response.model_version != self._bundle_version:
            detail = f"the predictor serves {response.model_version!r}, expected {self._bundle_version!r}"
            raise StageFailure("predictor_other_bundle", detail)
        try:
            return _outputs(response)
        except DataError as error:
            raise StageFailure("predictor_bad_output", str(error)) from error

    async def ready(self, timeout_s: float) -> bool:
        """Whether the predictor says that it is ready."""
        try:
            response = await self._ready(pb.ModelReadyRequest(name=self._model_name), timeout=timeout_s)
        except grpc.aio.AioRpcError:
            return False
        return bool(response.ready)

    async def aclose(self) -> None:
        """Closes the channel."""
        await self._channel.close()

    def _request(self, inputs: Tensors) -> pb.ModelInferRequest:
        request = pb.ModelInferRequest(model_name=self._model_name, id=logs.request_id.get())
        for name, array in inputs.items():
            datatype, raw = tensors.encode(name, array)
            request.inputs.add(name=name, datatype=datatype, shape=array.shape)
            request.raw_input_contents.append(raw)
        return request


def _outputs(response: pb.ModelInferResponse) -> Tensors:
    """Tensors of an answer with raw contents. Raises DataError."""
    if len(response.outputs) != len(response.raw_output_contents):
        raise DataError(f"{len(response.outputs)} outputs, {len(response.raw_output_contents)} raw contents")
    return {
        output.name: tensors.decode(output.name, output.datatype, output.shape, raw)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }
