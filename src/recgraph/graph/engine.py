"""The semantics of KServe's graph router (v0.20), without any I/O of its own.

Found out by running `kserve-router`; `tests/contract` holds both to the same cases. What surprises:

- A transport error ends the request with a 500, Soft or Hard. Soft only says that an answer outside 2xx goes on.
- A condition in a Sequence is tested against the response before; not met, the graph ends with 200 and that response.
- A Switch without a match is a 404 at the root and a 500 anywhere else.
- `mapPredictionsToInstances` keeps nothing of the body but the predictions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from recgraph.graph import gojson
from recgraph.graph.condition import Condition, parse_condition
from recgraph.graph.spec import ROOT, GraphSpec, Node, Step


class Reply(NamedTuple):
    """Status and body of a step, or of the whole graph."""

    status: int
    body: bytes

    @property
    def successful(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status <= 299


class RoutingError(Exception):
    """The graph could not answer; `cause` is what the router reports."""

    def __init__(self, cause: str, status: int = 500) -> None:
        super().__init__(cause)
        self.cause = cause
        self.status = status


Member = tuple[dict[str, object] | None, Reply]
Headers = Sequence[tuple[str, str]]
Call = Callable[[str, bytes, Headers], Awaitable[Reply]]
"""POSTs a body with headers to a URL. Raises RoutingError when no whole response came."""


class GraphRouter:
    """Runs a graph whose services are resolved to URLs."""

    def __init__(self, spec: GraphSpec, call: Call) -> None:
        self._nodes = spec.nodes
        self._call = call
        self._random = random.SystemRandom()
        self._conditions: Mapping[str, Condition] = {
            step.condition: parse_condition(step.condition)
            for node in spec.nodes.values()
            for step in node.steps
            if step.condition
        }
        self._background: set[asyncio.Task[Member]] = set()

    async def route(self, body: bytes, headers: Headers = ()) -> Reply:
        """The graph's answer to a request; never raises RoutingError."""
        try:
            return await self._node(ROOT, body, headers)
        except RoutingError as error:
            failure = {"error": "Failed to process request", "cause": error.cause}
            return Reply(error.status, gojson.marshal(failure, sort_keys=False))

    async def close(self) -> None:
        """Ends what an Ensemble still runs after its answer."""
        members = list(self._background)
        for member in members:
            member.cancel()
        await asyncio.gather(*members, return_exceptions=True)

    async def _node(self, name: str, body: bytes, headers: Headers) -> Reply:
        node = self._nodes[name]
        match node.router_type:
            case "Sequence":
                return await self._sequence(node, body, headers)
            case "Switch":
                return await self._step(self._matching(node, body), body, headers)
            case "Splitter":
                return await self._step(self._drawn(node), body, headers)
            case "Ensemble":
                return await self._ensemble(node, body, headers)

    async def _step(self, step: Step, body: bytes, headers: Headers) -> Reply:
        if not step.node_name:
            return await self._call(step.service_url, body, headers)
        try:
            return await self._node(step.node_name, body, headers)
        except RoutingError as error:
            # Whatever a nested node fails with, the node above reports 500.
            raise RoutingError(error.cause) from error

    async def _sequence(self, node: Node, body: bytes, headers: Headers) -> Reply:
        reply = Reply(0, b"")
        for index, step in enumerate(node.steps):
            if step.condition and not self._met(step.condition, reply.body):
                return Reply(200, reply.body)
            request = reply.body if step.data == "$response" and index > 0 else body
            if step.map_predictions_to_instances:
                request = predictions_to_instances(request)
            reply = await self._step(step, request, headers)
            if step.dependency == "Hard" and not reply.successful:
                return reply
        return reply

    def _met(self, condition: str, response: bytes) -> bool:
        document = gojson.parse(response)
        if document is gojson.INVALID:
            raise RoutingError("invalid response")
        return self._conditions[condition].exists(document)

    def _matching(self, node: Node, body: bytes) -> Step:
        document = gojson.parse(body)
        if document is not gojson.INVALID:
            for step in node.steps:
                if self._conditions[step.condition].exists(document):
                    return step
        raise RoutingError("None of the routes matched with the switch condition", status=404)

    def _drawn(self, node: Node) -> Step:
        weights = [step.weight or 0 for step in node.steps]
        return self._random.choices(node.steps, weights)[0]

    async def _ensemble(self, node: Node, body: bytes, headers: Headers) -> Reply:
        """All steps on the same input. The first member that fails decides, whatever the others still do."""
        members = [asyncio.create_task(self._member(step, body, headers)) for step in node.steps]
        self._background.update(members)
        for member in members:
            member.add_done_callback(self._forget)
        merged: dict[str, object] = {}
        for index, (step, member) in enumerate(zip(node.steps, members, strict=True)):
            document, reply = await _first_failure_or(member, members)
            if step.dependency == "Hard" and not reply.successful:
                return Reply(reply.status, gojson.marshal(document))
            merged[step.name or str(index)] = document
        return Reply(200, gojson.marshal(merged))

    def _forget(self, member: asyncio.Task[Member]) -> None:
        self._background.discard(member)
        if not member.cancelled():
            member.exception()  # seen: a member may fail after the answer has been given

    async def _member(self, step: Step, body: bytes, headers: Headers) -> Member:
        reply = await self._step(step, body, headers)
        try:
            return gojson.unmarshal_map(reply.body), reply
        except ValueError as error:
            raise RoutingError(str(error)) from error


def predictions_to_instances(body: bytes) -> bytes:
    """`{"instances": predictions}` where the body has a non-empty list of predictions, else the body as it is."""
    try:
        document = gojson.unmarshal_map(body)
    except ValueError:
        return body
    predictions = (document or {}).get("predictions")
    if isinstance(predictions, list) and predictions:
        return gojson.marshal({"instances": predictions})
    return body


async def _first_failure_or(member: asyncio.Task[Member], members: Sequence[asyncio.Task[Member]]) -> Member:
    """The result of `member`, unless one of `members` fails before it is there: then that error is raised."""
    while not member.done():
        pending = [other for other in members if not other.done()]
        done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for other in done:
            other.result()
    return member.result()
