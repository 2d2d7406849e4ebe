"""The acts of a canary on a Helm release: start, set, promote, abort. Each is a list of steps that can be shown first.

A step changes values through helm, or waits for what the step before started. No step restarts a pod that serves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from recgraph.errors import DataError, RecgraphError
from recgraph.release import compare
from recgraph.release.arms import CANARY, CASCADE, STABLE, STEP, Arms, Layer, arm_of
from recgraph.release.cluster import ClusterError, Pod
from recgraph.release.helm import Changes, Objects, difference

SETTLE_S: Final = 95.0
"""The router keeps idle connections for 90 s; only then does none lead to pods that are about to go."""
IN_FLIGHT_S: Final = 3.0
"""Longer than any request: a second for each of the router's calls is the most, a tenth in all is usual."""
_POLL_S: Final = 0.5
_USERS: Final = 100_000


class WaitTimeout(RecgraphError):
    """What was started did not come about in time; the message says what is missing."""


class Usage(DataError):
    """The act does not fit the release as it is."""


class HelmLike(Protocol):
    """What the acts need of helm (recgraph.release.helm.Helm)."""

    def upgrade_command(self, changes: Changes) -> list[str]: ...
    def upgrade(self, changes: Changes) -> int: ...
    def preview(self, changes: Changes) -> Objects: ...
    def objects(self) -> Objects: ...


class ClusterLike(Protocol):
    """What the acts need of a cluster (recgraph.release.cluster.Cluster)."""

    def pods(self, release: str) -> list[Pod]: ...
    def metrics(self, pod: str) -> str: ...
    def post(self, service: str, path: str, body: object) -> tuple[int, dict[str, Any]]: ...
    def missing(self, deployments: list[str], services: list[str]) -> str: ...
    def left(self, services: list[str]) -> list[str]: ...
    def execute(self, pod: str, command: list[str]) -> str: ...


@dataclass(frozen=True)
class Release:
    """A release as its values say."""

    name: str
    fullname: str
    stable: str
    canary: str
    weight: float
    layers: tuple[str, ...]
    stages: tuple[str, ...]
    salt: str
    scene: str
    entrance: str
    """What clients ask, `SERVICE:PORT`: the gateway, else the graph, whose Service is KServe's."""
    path: str

    @classmethod
    def of(cls, name: str, fullname: str, values: Mapping[str, Any]) -> Release:
        """From all values in force. Raises DataError for a chart that has not these values."""
        try:
            canary, gateway = values["canary"], values["gateway"]
            return cls(
                name=name,
                fullname=fullname,
                stable=values["bundles"]["stable"],
                canary=canary["bundle"],
                weight=float(canary["weight"]),
                layers=tuple(canary["layers"]),
                stages=tuple(stage["name"] for stage in values["stages"][1:]),
                salt=canary["salt"],
                scene=min(values["scenes"]),
                entrance=f"{fullname}-gateway:http" if gateway["enabled"] else f"{fullname}:80",
                path=gateway["paths"][0] if gateway["enabled"] else "/",
            )
        except (KeyError, TypeError) as error:
            raise DataError(f"release {name}: its values are not those of the recgraph chart ({error})") from error

    def covered(self) -> tuple[str, ...]:
        """The stages that the canary covers."""
        return self.stages if CASCADE in self.layers else self.layers

    def services(self, bundle: str, stages: Sequence[str]) -> list[str]:
        """Names of the InferenceServices of a bundle's stages."""
        return [f"{self.fullname}-{stage}-{bundle}" for stage in stages]

    def bundles(self) -> dict[str, frozenset[str]]:
        """By arm, the bundles of the pods that serve it: a canary of single stages has stable ones around it."""
        around = frozenset() if CASCADE in self.layers else frozenset({self.stable})
        return {STABLE: frozenset({self.stable}), CANARY: frozenset({self.canary}) | around}

    def arms(self) -> Arms:
        """As entry assigns by these values."""
        layer = Layer(stable=self.stable, canary=self.canary, weight=self.weight if self.canary else 0.0)
        layers = {name: layer for name in self.layers} if self.canary else {}
        return Arms(version=0, salt=self.salt, layers={CASCADE: Layer(stable=self.stable)} | layers)


@dataclass(frozen=True)
class Step:
    """`changes` are made by helm, or `wait` returns what is still missing until it is empty, or `act` is done once."""

    what: str
    changes: Changes | None = None
    wait: Callable[[], str] | None = None
    act: Callable[[], None] | None = None


@dataclass
class Canary:
    """The acts, on one release. `revision` is the last that this process has made."""

    release: Release
    helm: HelmLike
    cluster: ClusterLike
    timeout_s: float = 600.0
    settle_s: float = SETTLE_S
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    revision: int = 0

    def start(self, bundle: str, weight: float, layers: Sequence[str]) -> list[Step]:
        """Brings up the canary's pods without a user, then gives it its share. Raises Usage."""
        release = self.release
        if release.canary and release.canary != bundle:
            raise Usage(f"bundle {release.canary} is the canary already: promote or abort it first")
        if bundle == release.stable:
            raise Usage(f"bundle {bundle} is the stable one already")
        self.release = replace(release, canary=bundle, weight=weight, layers=tuple(layers))
        changes = {"canary.bundle": bundle, "canary.weight": 0, "canary.layers": list(layers)}
        steps = [
            Step(f"bring up bundle {bundle} beside {release.stable}, without users", changes=changes),
            Step("wait for its Deployments and InferenceServices", wait=self._not_up),
            Step("ask it", wait=self._canary_is_silent),
        ]
        return steps + (self._weigh(weight) if weight else [])

    def set(self, weight: float) -> list[Step]:
        """Changes the share. Raises Usage without a canary."""
        self._need_canary()
        self.release = replace(self.release, weight=weight)
        return self._weigh(weight)

    def promote(self) -> list[Step]:
        """Everyone to the canary, then its bundle becomes the stable one and the old pods go. Raises Usage."""
        release = self._need_canary()
        if CASCADE not in release.layers:
            raise Usage(
                f"the canary covers only {', '.join(release.layers)}, a stable bundle serves every stage: first "
                f"recgraph canary start {release.name} --bundle {release.canary}"
            )
        old = release.services(release.stable, release.stages)
        self.release = replace(release, weight=100.0)
        steps = self._weigh(100.0) if release.weight < 100.0 else []
        changes = {"bundles.stable": release.canary, "canary.bundle": "", "canary.weight": 0}
        return [
            *steps,
            Step(f"wait {self.settle_s:.0f} s, until the router has closed its connections", act=self._settle),
            Step(f"make {release.canary} the stable bundle and remove the pods of {release.stable}", changes=changes),
            Step("wait until every entry knows", wait=self._not_in_force),
            Step("ask", wait=lambda: self._answers_otherwise(STABLE, release.canary)),
            Step("wait until the old InferenceServices are gone", wait=lambda: ", ".join(self.cluster.left(old))),
        ]

    def abort(self) -> list[Step]:
        """Everyone back to the stable bundle at once, then the canary's pods go. Raises Usage without a canary."""
        release = self._need_canary()
        gone = release.services(release.canary, release.covered())
        return [
            Step("send everyone to the stable arm, at once", act=self._withdraw),
            Step("let the requests end that are under way", act=lambda: self.sleep(IN_FLIGHT_S)),
            Step(f"remove the pods of {release.canary}", changes={"canary.bundle": "", "canary.weight": 0}),
            Step("wait until every entry knows", wait=self._not_in_force),
            Step("ask", wait=lambda: self._answers_otherwise(STABLE, release.stable)),
            Step("wait until its InferenceServices are gone", wait=lambda: ", ".join(self.cluster.left(gone))),
        ]

    def plan(self, steps: Sequence[Step]) -> Iterator[tuple[str, list[str], dict[str, list[str]]]]:
        """Each step in words, its command, and which objects it creates, removes and changes. Changes nothing."""
        before, made = self.helm.objects(), dict[str, Any]()
        for step in steps:
            if step.changes is None:
                yield step.what, [], {}
                continue
            made |= step.changes
            after = self.helm.preview(made)
            yield step.what, self.helm.upgrade_command(step.changes), difference(before, after)
            before = after

    def run(self, steps: Sequence[Step], tell: Callable[[str], None]) -> None:
        """Takes the steps. Raises WaitTimeout, HelmError, ClusterError."""
        until = self.monotonic() + self.timeout_s
        for step in steps:
            tell(step.what)
            if step.changes is not None:
                self.revision = self.helm.upgrade(step.changes)
            elif step.act is not None:
                step.act()
            elif step.wait is not None:
                self._wait(step.what, step.wait, until)

    def _wait(self, what: str, missing: Callable[[], str], until: float) -> None:
        while why := missing():
            if self.monotonic() >= until:
                raise WaitTimeout(f"{what}: not within {self.timeout_s:.0f} s: {why}")
            self.sleep(_POLL_S)

    def _weigh(self, weight: float) -> list[Step]:
        bundle = self.release.canary
        steps = [
            Step(f"give the canary {weight:g} % of the users", changes={"canary.weight": _number(weight)}),
            Step("wait until every entry knows", wait=self._not_in_force),
        ]
        return [*steps, Step("ask", wait=lambda: self._answers_otherwise(CANARY, bundle))] if weight else steps

    def _need_canary(self) -> Release:
        if not self.release.canary:
            raise Usage(f"release {self.release.name} has no canary: recgraph canary start")
        return self.release

    def _settle(self) -> None:
        self.sleep(self.settle_s)

    def _not_up(self) -> str:
        services = self.release.services(self.release.canary, self.release.covered())
        deployments = [f"{service}-{role}" for service in services for role in ("predictor", "transformer")]
        return self.cluster.missing(deployments, services)

    def _canary_is_silent(self) -> str:
        """A request to the first covered stage, with no user behind it: what is wrong with the answer."""
        stage, bundle = self.release.covered()[0], self.release.canary
        user = {"user_id": "canary-probe", "scene": self.release.scene}
        body = {"user": user, "items": [], "bundle": {"version": bundle}}
        service = f"{self.release.fullname}-{stage}-canary:http"
        status, answer = self.cluster.post(service, f"/v1/models/{stage}:predict", body)
        return "" if status == 200 else f"{service} answers {status} {answer.get('error', '')}"

    def entries(self) -> dict[str, float]:
        """The version of the arms that each entry pod goes by."""
        found = {}
        for pod in self.cluster.pods(self.release.name):
            if pod.stage == "entry":
                shown = compare.parse(self.cluster.metrics(pod.name))
                found[pod.name] = shown.get(("recgraph_arms_version", ()), -1.0)
        return found

    def _not_in_force(self) -> str:
        try:
            entries = self.entries()
        except ClusterError as error:  # a pod that is just coming or going: look again
            return str(error)
        behind = [f"{pod} has arms {version:.0f}" for pod, version in entries.items() if version < self.revision * STEP]
        return ", ".join(behind) if entries else "no entry pod is running"

    def _withdraw(self) -> None:
        entry = next((pod.name for pod in self.cluster.pods(self.release.name) if pod.stage == "entry"), None)
        if entry is None:
            raise ClusterError("no entry pod is running: nobody is served by the canary, or by the stable bundle")
        self.cluster.execute(entry, ["python", "-P", "-m", "recgraph.release", "weight", "0"])

    def _answers_otherwise(self, arm: str, bundle: str) -> str:
        """A request of a user of `arm` through the entrance: what is wrong with the answer."""
        service = self.release.entrance
        body = {"user": {"user_id": self._user_of(arm), "scene": self.release.scene}}
        status, answer = self.cluster.post(service, self.release.path, body)
        found = answer.get("bundle") or {}
        named = {found.get("version"), *found.get("stages", {}).values()}
        if status == 200 and bundle in named:
            return ""
        return f"{service} answers {status} with bundle {found.get('version')}, expected {bundle}"

    def _user_of(self, arm: str) -> str:
        """A user whom entry puts into `arm`, by the values that are about to hold."""
        arms = self.release.arms()
        if arm == STABLE:
            return "canary-probe"
        layer = self.release.layers[0]
        users = (f"canary-probe-{number}" for number in range(_USERS))
        return next((user for user in users if arm_of(arms, layer, user) == arm), "canary-probe")


def _number(weight: float) -> int | float:
    return int(weight) if weight == int(weight) else weight
