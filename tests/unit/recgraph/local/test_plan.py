"""The processes of the local graph, as docs/architecture.md lists them."""

from __future__ import annotations

from pathlib import Path

from recgraph.graph.spec import load_graph
from recgraph.local.plan import Cluster, plans
from recgraph.local.router import parse_services

CASCADE = Path(__file__).parents[4] / "inferencegraph" / "cascade.yaml"
CLUSTER = Cluster(Path("/b"), Path("/s.yaml"), "redis://h:1/0", "redis://h:2/0", -5.25, CASCADE, 8080)


def value(command: list[str], option: str) -> str:
    return command[command.index(option) + 1]


def test_every_stage_is_two_processes_entry_one_and_the_router_last() -> None:
    names = [plan.name for plan in plans(CLUSTER)]
    stages = ["recall", "coarse", "fine", "rerank"]
    expected = [f"{s}-predictor" for s in stages] + [f"{s}-transformer" for s in stages] + ["entry", "router"]
    assert names == expected


def test_a_transformer_calls_its_own_predictor() -> None:
    by_name = {plan.name: list(plan.command) for plan in plans(CLUSTER)}
    for stage in ("recall", "coarse", "fine", "rerank"):
        grpc_port = value(by_name[f"{stage}-predictor"], "--grpc_port")
        assert value(by_name[f"{stage}-transformer"], "--predictor_host") == f"127.0.0.1:{grpc_port}"
        assert value(by_name[f"{stage}-transformer"], "--model_name") == stage


def test_the_router_knows_every_service_of_the_graph_at_its_transformer() -> None:
    every = {plan.name: plan for plan in plans(CLUSTER)}
    command = list(every["router"].command)
    services = parse_services([command[i + 1] for i, word in enumerate(command) if word == "--service"])
    spec = load_graph(CASCADE).spec.resolve(services)
    urls = {step.name: step.service_url for node in spec.nodes.values() for step in node.steps if step.service_url}
    assert urls["entry"] == f"http://127.0.0.1:{every['entry'].port}/v1/models/entry:predict"
    assert urls["fine"] == f"http://127.0.0.1:{every['fine-transformer'].port}/v1/models/fine:predict"


def test_processes_never_have_the_repository_on_their_path_and_one_thread_per_library() -> None:
    for plan in plans(CLUSTER):
        assert plan.command[1] == "-P"
        assert plan.env["PYTHONSAFEPATH"] == "1"
        assert plan.env["OMP_NUM_THREADS"] == "1"


def test_the_settings_reach_the_stages() -> None:
    environment = plans(CLUSTER)[0].env
    assert environment["RECGRAPH_BUNDLE"] == "/b"
    assert environment["RECGRAPH_FEATURES_REDIS"] == "redis://h:1/0"
    assert environment["RECGRAPH_CACHES_REDIS"] == "redis://h:2/0"
    assert float(environment["RECGRAPH_CLOCK_OFFSET_S"]) == -5.25
