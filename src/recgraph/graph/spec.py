"""The manifest of an InferenceGraph (serving.kserve.io/v1alpha1), as the API server and KServe's webhook accept it.

`load_graph` also refuses what the webhook lets through and the router then answers with a 500 or a crash: a nodeName
that does not exist, a cycle, a node without steps, a condition that cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from recgraph.errors import DataError
from recgraph.graph.condition import parse_condition

ROOT = "root"
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
Seconds = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Step(_Strict):
    """One step of a node: exactly one of node_name, service_name and service_url is set."""

    name: str = ""
    node_name: str = Field(default="", alias="nodeName")
    service_name: str = Field(default="", alias="serviceName")
    service_url: str = Field(default="", alias="serviceUrl")
    data: str = ""
    map_predictions_to_instances: bool = Field(default=False, alias="mapPredictionsToInstances")
    weight: int | None = None
    condition: str = ""
    dependency: Literal["Soft", "Hard"] = "Soft"

    @property
    def targets(self) -> list[str]:
        """The names of the target fields that are set."""
        fields = {"nodeName": self.node_name, "serviceName": self.service_name, "serviceUrl": self.service_url}
        return [name for name, value in fields.items() if value]


class Node(_Strict):
    """A router of the graph."""

    router_type: Literal["Sequence", "Splitter", "Ensemble", "Switch"] = Field(alias="routerType")
    steps: list[Step] = []


class RouterTimeouts(_Strict):
    """Whole seconds, one value for the whole router. No service_client means that no call ever times out."""

    server_read: Seconds = Field(default=60, alias="serverRead")
    server_write: Seconds = Field(default=60, alias="serverWrite")
    server_idle: Seconds = Field(default=180, alias="serverIdle")
    service_client: Seconds | None = Field(default=None, alias="serviceClient")


class GraphSpec(_Strict):
    """The `spec` of an InferenceGraph; what only the controller uses is kept as it is."""

    nodes: dict[str, Node]
    router_timeouts: RouterTimeouts = Field(default=RouterTimeouts(), alias="routerTimeouts")
    resources: dict[str, Any] | None = None
    affinity: dict[str, Any] | None = None
    tolerations: list[dict[str, Any]] | None = None
    node_selector: dict[str, str] | None = Field(default=None, alias="nodeSelector")
    node_name: str | None = Field(default=None, alias="nodeName")
    service_account_name: str | None = Field(default=None, alias="serviceAccountName")
    timeout: int | None = None
    min_replicas: int | None = Field(default=None, alias="minReplicas")
    max_replicas: int | None = Field(default=None, alias="maxReplicas")
    scale_target: int | None = Field(default=None, alias="scaleTarget")
    scale_metric: Literal["cpu", "memory", "concurrency", "rps"] | None = Field(default=None, alias="scaleMetric")

    def service_names(self) -> list[str]:
        """The services that the graph calls, each once, in the order of the file."""
        return list(dict.fromkeys(s.service_name for n in self.nodes.values() for s in n.steps if s.service_name))

    def resolve(self, services: Mapping[str, str]) -> GraphSpec:
        """The spec with every serviceName replaced by its URL, as the controller hands it to the router.

        `services` maps a name to `http://host:port`. Raises DataError for a service that it does not know.
        """
        missing = [name for name in self.service_names() if name not in services]
        if missing:
            raise DataError(f"the graph names services that are not deployed: {', '.join(missing)}")

        def resolved(step: Step) -> Step:
            url = f"{services[step.service_name]}/v1/models/{step.service_name}:predict" if step.service_name else ""
            return step.model_copy(update={"service_url": url}) if url else step

        nodes = {k: n.model_copy(update={"steps": [resolved(s) for s in n.steps]}) for k, n in self.nodes.items()}
        return self.model_copy(update={"nodes": nodes})

    def router_json(self) -> str:
        """What `kserve-router --graph-json` takes."""
        return self.model_dump_json(by_alias=True, exclude_defaults=True, include={"nodes", "router_timeouts"})


class Metadata(BaseModel):
    """The part of the metadata that is read here; the rest belongs to Kubernetes."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    namespace: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class InferenceGraph(_Strict):
    """A whole manifest."""

    api_version: Literal["serving.kserve.io/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["InferenceGraph"]
    metadata: Metadata
    spec: GraphSpec
    status: dict[str, Any] | None = None


def load_graph(path: Path) -> InferenceGraph:
    """The manifest in a file. Raises DataError with the file and the path of every bad value."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DataError(f"{path}: {error}") from error
    try:
        return parse_graph(document)
    except DataError as error:
        raise DataError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from error


def parse_graph(document: object) -> InferenceGraph:
    """The manifest as a checked model. Raises DataError with one line per problem, each with its path."""
    try:
        graph = InferenceGraph.model_validate(document)
    except ValidationError as error:
        raise DataError("\n".join(_line(e["loc"], e["msg"]) for e in error.errors())) from error
    problems = list(_problems(graph))
    if problems:
        raise DataError("\n".join(problems))
    return graph


def _line(location: tuple[int | str, ...], message: str) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    return f"{path or '$'}: {message}"


def _problems(graph: InferenceGraph) -> Iterator[str]:
    if not _NAME.fullmatch(graph.metadata.name):
        yield f"metadata.name: {graph.metadata.name!r} does not match {_NAME.pattern}"
    nodes = graph.spec.nodes
    if ROOT not in nodes:
        yield f"spec.nodes: there is no node {ROOT!r}"
    for name, node in nodes.items():
        yield from _node_problems(f"spec.nodes.{name}", node, nodes)
    cycle = _cycle(nodes)
    if cycle:
        yield f"spec.nodes.{cycle[0]}: the nodes form a cycle: {' -> '.join(cycle)}"


def _node_problems(path: str, node: Node, nodes: Mapping[str, Node]) -> Iterator[str]:
    if not node.steps:
        yield f"{path}.steps: a node needs at least one step"
    names = [step.name for step in node.steps]
    for index, step in enumerate(node.steps):
        here = f"{path}.steps[{index}]"
        if step.name and names.index(step.name) != index:
            yield f"{here}.name: {step.name!r} is the name of an earlier step"
        yield from _target_problems(here, step, nodes)
        yield from _condition_problems(here, index, node, step)
    if node.router_type == "Splitter":
        yield from _weight_problems(path, node)


def _target_problems(path: str, step: Step, nodes: Mapping[str, Node]) -> Iterator[str]:
    if len(step.targets) != 1:
        found = " and ".join(step.targets) or "none of them"
        yield f"{path}: exactly one of nodeName, serviceName and serviceUrl is needed, found {found}"
    if step.node_name and step.node_name not in nodes:
        yield f"{path}.nodeName: there is no node {step.node_name!r}"
    if step.service_url and not step.service_url.startswith(("http://", "https://")):
        yield f"{path}.serviceUrl: {step.service_url!r} is not an http URL"


def _condition_problems(path: str, index: int, node: Node, step: Step) -> Iterator[str]:
    if step.condition:
        try:
            parse_condition(step.condition)
        except DataError as error:
            yield f"{path}.condition: {error}"
    elif node.router_type == "Switch":
        yield f"{path}.condition: a step of a Switch without a condition never runs"
    if step.condition and node.router_type == "Sequence" and index == 0:
        yield f"{path}.condition: the first step of a Sequence has no response to test, so the router answers 500"


def _weight_problems(path: str, node: Node) -> Iterator[str]:
    weights = [step.weight for step in node.steps]
    for index, weight in enumerate(weights):
        if weight is None or weight < 0:
            yield f"{path}.steps[{index}].weight: a step of a Splitter needs a weight from 0 to 100, found {weight}"
    total = sum(weight or 0 for weight in weights)
    if node.steps and total != 100:
        yield f"{path}.steps: the weights of a Splitter have to sum up to 100, found {total}"


def _cycle(nodes: Mapping[str, Node]) -> list[str]:
    """The names along a cycle, first and last the same, or an empty list."""
    finished: set[str] = set()

    def visit(name: str, trail: list[str]) -> list[str]:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in finished or name not in nodes:
            return []
        for step in nodes[name].steps:
            found = visit(step.node_name, [*trail, name]) if step.node_name else []
            if found:
                return found
        finished.add(name)
        return []

    return next((found for name in nodes if (found := visit(name, []))), [])
