"""The acts in their order, against a stand-in for helm and the cluster that behaves like a small release."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest

from recgraph.errors import DataError
from recgraph.release import arms as arms_of
from recgraph.release.canary import Canary, Release, Usage, WaitTimeout
from recgraph.release.cluster import ClusterError, Pod
from recgraph.release.helm import Changes, Objects

VALUES: dict[str, Any] = {
    "bundles": {"stable": "v1"},
    "canary": {"bundle": "", "weight": 0, "layers": ["cascade"], "salt": "s"},
    "stages": [{"name": name} for name in ("entry", "recall", "coarse", "fine", "rerank")],
    "scenes": {"home": {}, "away": {}},
    "gateway": {"enabled": True, "paths": ["/ask", "/v1/recommend"]},
}


@dataclass
class World:
    """A release: values, what is in force at the entries, and a log of what was done."""

    values: dict[str, Any] = field(default_factory=lambda: copy.deepcopy(VALUES))
    revision: int = 3
    in_force: int = 3000
    log: list[str] = field(default_factory=list)
    slow_pods: int = 2
    stuck: bool = False

    def set(self, changes: Changes) -> None:
        for path, value in changes.items():
            group, _, name = path.partition(".")
            self.values[group][name] = value

    # helm

    def upgrade_command(self, changes: Changes) -> list[str]:
        return ["helm", "upgrade", *(f"{path}={value}" for path, value in changes.items())]

    def upgrade(self, changes: Changes) -> int:
        self.set(changes)
        self.revision += 1
        self.in_force = self.in_force if self.stuck else self.revision * 1000
        self.log.append(" ".join(self.upgrade_command(changes)))
        return self.revision

    def objects(self) -> Objects:
        release = self.release()
        held = {*release.services(release.stable, release.stages)}
        if release.canary:
            held |= {*release.services(release.canary, release.covered())}
        return {f"InferenceService/{name}": "" for name in held}

    def preview(self, changes: Changes) -> Objects:
        then = World(values=copy.deepcopy(self.values))
        then.set(changes)
        return then.objects()

    # cluster

    def release(self) -> Release:
        return Release.of("rg", "rg", self.values)

    def pods(self, release: str) -> list[Pod]:
        return [
            Pod("entry-0", "entry", "predictor"),
            Pod("entry-1", "entry", "predictor"),
            Pod("x", "fine", "transformer"),
        ]

    def metrics(self, pod: str) -> str:
        if pod == "x":
            raise ClusterError("not asked for arms")
        return f"# TYPE recgraph_arms_version gauge\nrecgraph_arms_version {float(self.in_force)}\n"

    def post(self, service: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        self.log.append(f"ask {service}")
        if service.endswith("-canary:http"):
            return 200, {"bundle": body["bundle"]}
        found = arms_of.assign(self.release().arms(), body["user"]["user_id"])
        return 200, {"bundle": {"version": found.bundle, "stages": found.stages}}

    def missing(self, deployments: list[str], services: list[str]) -> str:
        self.slow_pods -= 1
        self.log.append(f"wait for {len(deployments)} deployments")
        return "deployment/x has 0 of 1 pods available" if self.slow_pods > 0 else ""

    def left(self, services: list[str]) -> list[str]:
        held = self.objects()
        return [name for name in services if f"InferenceService/{name}" in held]

    def execute(self, pod: str, command: list[str]) -> str:
        self.log.append(f"{pod}: {' '.join(command[3:])}")
        return ""


def _canary(world: World, timeout_s: float = 100.0) -> Canary:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if seconds > 1.0:
            world.log.append(f"sleep {seconds:g}")

    return Canary(world.release(), world, world, timeout_s, monotonic=lambda: now[0], sleep=sleep)


def _run(world: World, act: str, *arguments: Any) -> list[str]:
    canary = _canary(world)
    world.log.clear()
    canary.run(getattr(canary, act)(*arguments), lambda _: None)
    return world.log


def test_start_gives_users_only_to_pods_that_answer() -> None:
    assert _run(World(), "start", "v2", 5.0, ["cascade"]) == [
        "helm upgrade canary.bundle=v2 canary.weight=0 canary.layers=['cascade']",
        "wait for 8 deployments",
        "wait for 8 deployments",
        "ask rg-recall-canary:http",
        "helm upgrade canary.weight=5",
        "ask rg-gateway:http",
    ]


def test_a_canary_of_one_stage_brings_up_one_stage() -> None:
    world = World()
    log = _run(world, "start", "v2", 50.0, ["fine"])
    assert "wait for 2 deployments" in log
    assert "ask rg-fine-canary:http" in log
    assert world.release().covered() == ("fine",)
    with pytest.raises(Usage, match=r"covers only fine.*start rg --bundle v2"):
        _canary(world).promote()


def test_promote_moves_the_users_before_the_pods_go() -> None:
    world = World()
    _run(world, "start", "v2", 5.0, ["cascade"])
    assert _run(world, "promote") == [
        "helm upgrade canary.weight=100",
        "ask rg-gateway:http",
        "sleep 95",
        "helm upgrade bundles.stable=v2 canary.bundle= canary.weight=0",
        "ask rg-gateway:http",
    ]
    release = world.release()
    assert (release.stable, release.canary, release.weight) == ("v2", "", 0.0)


def test_abort_sends_users_back_before_anything_else() -> None:
    world = World()
    _run(world, "start", "v2", 50.0, ["cascade"])
    assert _run(world, "abort") == [
        "entry-0: recgraph.release weight 0",
        "sleep 3",
        "helm upgrade canary.bundle= canary.weight=0",
        "ask rg-gateway:http",
    ]
    assert (world.release().stable, world.release().canary) == ("v1", "")


def test_set_back_to_zero_keeps_the_pods() -> None:
    world = World()
    _run(world, "start", "v2", 50.0, ["cascade"])
    assert _run(world, "set", 0.0) == ["helm upgrade canary.weight=0"]
    assert world.release().canary == "v2"


def test_what_does_not_come_about_in_time_is_told() -> None:
    world = World(slow_pods=10**6)
    with pytest.raises(WaitTimeout, match="not within 100 s: deployment/x has 0 of 1"):
        _run(world, "start", "v2", 5.0, ["cascade"])
    assert world.release().weight == 0.0, "no user was given to pods that are not up"
    world = World()
    _run(world, "start", "v2", 5.0, ["cascade"])
    world.stuck = True
    with pytest.raises(WaitTimeout, match="entry-0 has arms 5000, entry-1 has arms 5000"):
        _run(world, "set", 50.0)


def test_acts_that_do_not_fit_are_refused() -> None:
    world = World()
    for act in (lambda one: one.set(5.0), lambda one: one.promote(), lambda one: one.abort()):
        with pytest.raises(Usage, match="no canary"):
            act(_canary(world))
    with pytest.raises(Usage, match="stable one already"):
        _canary(world).start("v1", 5.0, ["cascade"])
    _run(world, "start", "v2", 5.0, ["cascade"])
    with pytest.raises(Usage, match="v2 is the canary already"):
        _canary(world).start("v3", 5.0, ["cascade"])
    with pytest.raises(DataError, match="not those of the recgraph chart"):
        Release.of("rg", "rg", {"bundles": {}})


def test_a_plan_changes_nothing_and_names_what_would_change() -> None:
    world = World()
    canary = _canary(world)
    before = copy.deepcopy(world)
    planned = list(canary.plan(canary.start("v2", 5.0, ["fine"])))
    assert world == before
    assert planned[0][1] == ["helm", "upgrade", "canary.bundle=v2", "canary.weight=0", "canary.layers=['fine']"]
    assert planned[0][2] == {"created": ["InferenceService/rg-fine-v2"], "removed": [], "changed": []}
    assert [objects for _, _, objects in planned if objects][1] == {"created": [], "removed": [], "changed": []}


def test_it_asks_what_clients_ask() -> None:
    release = World().release()
    assert (release.entrance, release.path) == ("rg-gateway:http", "/ask")
    bare = Release.of("rg", "rg", VALUES | {"gateway": {"enabled": False, "paths": ["/ask"]}})
    assert (bare.entrance, bare.path) == ("rg:80", "/")
