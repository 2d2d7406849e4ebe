"""The manifest: what KServe's webhook refuses, and what it lets through and the router then fails on."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from recgraph.errors import DataError
from recgraph.graph.spec import load_graph, parse_graph

CASCADE = Path(__file__).parents[4] / "inferencegraph" / "cascade.yaml"


def manifest(nodes: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "InferenceGraph",
        "metadata": {"name": "g"},
        "spec": {"nodes": nodes},
        **changes,
    }


def one(router_type: str, *steps: dict[str, Any], **others: Any) -> dict[str, Any]:
    return manifest({"root": {"routerType": router_type, "steps": list(steps)}, **others})


A = {"serviceName": "a"}


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (one("Sequence", A) | {"apiVersion": "v1"}, "apiVersion: Input should be 'serving.kserve.io/v1alpha1'"),
        (one("Sequence", A) | {"metadata": {"name": "Bad_Name"}}, "metadata.name: 'Bad_Name' does not match"),
        (manifest({"other": {"routerType": "Sequence", "steps": [A]}}), "spec.nodes: there is no node 'root'"),
        (
            one("Serial", A),
            "spec.nodes.root.routerType: Input should be 'Sequence', 'Splitter'",
        ),
        (one("Sequence", {**A, "retries": 3}), "spec.nodes.root.steps[0].retries: Extra inputs are not permitted"),
        (one("Sequence", {**A, "dependency": "hard"}), "spec.nodes.root.steps[0].dependency: Input should be 'Soft'"),
        (one("Sequence", {**A, "weight": "7"}), "spec.nodes.root.steps[0].weight: Input should be a valid integer"),
        (one("Sequence", {**A, "name": "x"}, {**A, "name": "x"}), "spec.nodes.root.steps[1].name: 'x' is the name of"),
        (
            one("Sequence", {}),
            "spec.nodes.root.steps[0]: exactly one of nodeName, serviceName and serviceUrl is needed",
        ),
        (one("Sequence", {**A, "serviceUrl": "http://b"}), "spec.nodes.root.steps[0]: exactly one of"),
        (one("Sequence", {"serviceUrl": "b/c"}), "spec.nodes.root.steps[0].serviceUrl: 'b/c' is not an http URL"),
        (one("Splitter", {**A, "weight": 50}, {**A, "weight": 40}), "have to sum up to 100, found 90"),
        (one("Splitter", {**A, "weight": 100}, A), "spec.nodes.root.steps[1].weight: a step of a Splitter needs"),
        (one("Splitter", {**A, "weight": 110}, {**A, "weight": -10}), "spec.nodes.root.steps[1].weight"),
        (one("Sequence"), "spec.nodes.root.steps: a node needs at least one step"),
        (one("Sequence", {"nodeName": "x"}), "spec.nodes.root.steps[0].nodeName: there is no node 'x'"),
        (one("Sequence", {"nodeName": "root"}), "spec.nodes.root: the nodes form a cycle: root -> root"),
        (
            one("Sequence", {"nodeName": "b"}, b={"routerType": "Sequence", "steps": [A, {"nodeName": "root"}]}),
            "the nodes form a cycle: root -> b -> root",
        ),
        (one("Sequence", {**A, "condition": "x"}), "spec.nodes.root.steps[0].condition: the first step of a Sequence"),
        (one("Switch", A), "spec.nodes.root.steps[0].condition: a step of a Switch without a condition never runs"),
        (one("Switch", {**A, "condition": "a.#(b==1)"}), "spec.nodes.root.steps[0].condition: condition 'a.#(b==1)'"),
        ([], "$: Input should be a valid dictionary"),
    ],
)
def test_a_manifest_that_cannot_work_is_refused_with_the_path(document: Any, problem: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_graph(document)
    assert problem in str(caught.value)


def test_every_problem_of_a_manifest_is_reported_at_once() -> None:
    document = one("Sequence", {"nodeName": "x"}, {"serviceUrl": "b"}, {})
    with pytest.raises(DataError) as caught:
        parse_graph(document)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "spec.nodes.root.steps[0].nodeName",
        "spec.nodes.root.steps[1].serviceUrl",
        "spec.nodes.root.steps[2]",
    ]


def test_a_shared_node_is_no_cycle() -> None:
    shared = {"routerType": "Sequence", "steps": [A]}
    switch = [{"nodeName": "s", "condition": "x"}, {"nodeName": "s", "condition": "y"}]
    assert parse_graph(one("Switch", *switch, s=shared)).spec.service_names() == ["a"]


def test_load_names_the_file_in_every_line(tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    path.write_text(yaml.safe_dump(one("Sequence", {"nodeName": "x"}, {})))
    with pytest.raises(DataError) as caught:
        load_graph(path)
    assert all(line.startswith(f"{path}: spec.nodes.root.steps[") for line in str(caught.value).splitlines())
    path.write_text("a: [")
    with pytest.raises(DataError, match=str(path)):
        load_graph(path)
    with pytest.raises(DataError, match="No such file"):
        load_graph(tmp_path / "absent.yaml")


def test_resolving_gives_the_controllers_urls_and_leaves_others_alone() -> None:
    spec = parse_graph(one("Sequence", A, {"serviceUrl": "http://b/x"})).spec.resolve({"a": "http://127.0.0.1:9"})
    assert [s.service_url for s in spec.nodes["root"].steps] == ["http://127.0.0.1:9/v1/models/a:predict", "http://b/x"]
    with pytest.raises(DataError, match="not deployed: a"):
        parse_graph(one("Sequence", A)).spec.resolve({})


def test_the_cascade_is_hard_throughout_and_names_only_the_stable_services() -> None:
    graph = load_graph(CASCADE)
    assert graph.spec.service_names() == ["entry", "recall", "coarse", "fine", "rerank"]
    assert {s.dependency for n in graph.spec.nodes.values() for s in n.steps} == {"Hard"}
    assert graph.spec.router_timeouts.service_client == 1


def test_parsing_does_not_change_the_document() -> None:
    document = yaml.safe_load(CASCADE.read_text())
    before = copy.deepcopy(document)
    parse_graph(document)
    assert document == before
