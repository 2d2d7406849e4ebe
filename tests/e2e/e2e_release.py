"""A Helm release under test: install, upgrade, ask, load, and what to show when something fails."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "recgraph"
PATH = "/v1/recommend"
RECGRAPH = str(Path(sys.executable).with_name("recgraph"))
READY_S = 600.0
"""Until the first answer: bootstrap and the start of every pod, on two cores."""
TOLD: list[str] = []
"""What was measured, a line each; pytest prints it at the end."""


def run(*command: str, check: bool = True, timeout: float = 600.0) -> str:
    """A command's output. Raises AssertionError with all of it where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout if check else done.stdout + done.stderr


def keep() -> bool:
    """Whether a release is left when its tests are over."""
    return os.environ.get("RECGRAPH_E2E_KEEP") == "1"


def kubectl_json(*arguments: str) -> Any:
    """What kubectl says, as JSON."""
    return json.loads(run("kubectl", *arguments, "-o", "json"))


@dataclass(frozen=True)
class Reply:
    """One request's outcome; status 0 is a transport error, told in `error`."""

    at: float
    seconds: float
    status: int
    body: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def ok(self) -> bool:
        return self.status == 200 and bool(self.body.get("items"))

    @property
    def bundle(self) -> str:
        return str((self.body.get("bundle") or {}).get("version"))

    @property
    def reasons(self) -> list[str]:
        return [f"{entry['stage']}/{entry['reason']}" for entry in self.body.get("degraded", [])]


@dataclass
class Release:
    """Names, and what can be done with them."""

    namespace: str
    address: str
    name: str = "rg"
    port: int = 0
    values: str = "test-values.yaml"
    installed_s: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def fresh(cls, address: str) -> Release:
        return cls(namespace=f"recgraph-e2e-{secrets.token_hex(3)}", address=address)

    @property
    def fullname(self) -> str:
        return f"{self.name}-recgraph"

    # Helm

    def helm(self, verb: str, **values: Any) -> str:
        """`helm upgrade` or `install` with the values file and `values` (a__b is a.b), which stay for the next time."""
        self.settings.update({key.replace("__", "."): value for key, value in values.items()})
        command = ["helm", verb, self.name, str(CHART), "-n", self.namespace, "--timeout", "8m"]
        for path in [
            str(CHART / "ci" / self.values),
            *filter(None, os.environ.get("RECGRAPH_E2E_VALUES", "").split(":")),
        ]:
            command += ["--values", path]
        for key, value in self.settings.items():
            command += ["--set-json", f"{key}={json.dumps(value)}"]
        if verb == "install":
            command.append("--create-namespace")
        return run(*command)

    def install(self) -> None:
        """Installs and waits for the first full answer, for which `installed_s` is the time."""
        begun = time.monotonic()
        self.helm("install", gateway__service__type="NodePort")
        self.attach()
        self.installed_s = time.monotonic() - begun
        TOLD.append(f"helm install with {self.values} to the first full answer: {self.installed_s:.0f} s")

    def remove(self) -> None:
        """Uninstalls and deletes the namespace, without waiting for its end."""
        run("helm", "uninstall", self.name, "-n", self.namespace, "--ignore-not-found", "--wait", check=False)
        run("kubectl", "delete", "namespace", self.namespace, "--wait=false", check=False)

    def attach(self) -> None:
        """Waits for the first full answer of what is installed."""
        self.settings.setdefault("gateway.service.type", "NodePort")
        service = self.get("service", f"{self.fullname}-gateway")
        self.port = service["spec"]["ports"][0]["nodePort"]
        self.wait_ready()

    def upgrade(self, **values: Any) -> None:
        """Upgrades and waits until every Deployment has rolled out."""
        self.helm("upgrade", **values)
        self.wait_rolled_out()

    def wait_rolled_out(self) -> None:
        """KServe's controller has to see the InferenceServices before their Deployments mean anything."""
        for service in self.get("inferenceservice")["items"]:
            generation = service["metadata"]["generation"]
            name = service["metadata"]["name"]
            self.eventually(
                lambda name=name, generation=generation: self._settled(name, generation),
                f"{name} to settle",
                READY_S,
            )
        for deployment in self.get("deployment")["items"]:
            self.kubectl("rollout", "status", f"deployment/{deployment['metadata']['name']}", "--timeout=8m")

    def _settled(self, name: str, generation: int) -> bool:
        """The controller copies the Deployment's observedGeneration, so compare what it makes of the pod instead."""
        service = self.get("inferenceservice", name)
        for kind in ("predictor", "transformer"):
            wanted = service["spec"].get(kind)
            if wanted is None:
                continue
            made = self.get("deployment", f"{name}-{kind}")["spec"]["template"]
            for key in ("image", "resources"):
                if made["spec"]["containers"][0][key] != wanted["containers"][0][key]:
                    return False
            names = {one["name"]: one.get("value") for one in made["spec"]["containers"][0]["env"]}
            if any(names.get(one["name"]) != one.get("value") for one in wanted["containers"][0]["env"]):
                return False
        return bool(service["metadata"]["generation"] == generation)

    def wait_ready(self) -> None:
        """Until the gateway has given a full answer."""
        self.eventually(lambda: (reply := self.ask()).ok and not reply.reasons, "a full answer", READY_S, pause=1.0)

    # Kubernetes

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        return run("kubectl", "-n", self.namespace, *arguments, check=check)

    def apply(self, made: dict[str, Any]) -> None:
        """Applies one object."""
        subprocess.run(
            ["kubectl", "-n", self.namespace, "apply", "-f", "-"],
            input=json.dumps(made), text=True, capture_output=True, check=True, timeout=60.0,
        )  # fmt: skip

    def get(self, kind: str, name: str = "") -> Any:
        return kubectl_json("-n", self.namespace, "get", kind, *([name] if name else []))

    def pods(self, selector: str) -> list[str]:
        """Names of the running pods."""
        found = kubectl_json("-n", self.namespace, "get", "pods", "-l", selector)["items"]
        return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def metrics(self, pod: str) -> str:
        """What a stage's pod shows to Prometheus, by the API server's proxy."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}:8080/proxy/metrics"
        return run("kubectl", "get", "--raw", path)

    @contextmanager
    def forward(self, target: str, port: int) -> Iterator[int]:
        """A local port that leads to `target` (service/name)."""
        command = ["kubectl", "-n", self.namespace, "port-forward", target, f":{port}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert "Forwarding from" in line, line
                yield int(line.split("127.0.0.1:")[1].split()[0])
            finally:
                process.terminate()

    def eventually(self, condition: Callable[[], bool], what: str, seconds: float, pause: float = 0.5) -> None:
        """Polls until it is true. Raises AssertionError after `seconds`."""
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, f"waited {seconds:.0f} s for {what}"
            time.sleep(pause)

    def diagnostics(self) -> str:
        """Pods, events and the last lines of every log."""
        parts = [
            self.kubectl("get", "pods,isvc,ig,jobs", "-o", "wide", check=False),
            self.kubectl("get", "events", "--sort-by=.lastTimestamp", check=False)[-6000:],
        ]
        for pod in self.pods(""):
            parts.append(
                f"--- {pod}\n" + self.kubectl("logs", pod, "--tail=15", "--all-containers", check=False)[-3000:]
            )
        return "\n".join(parts)

    # Requests

    def ask(self, user: str = "u_1", *, timeout: float = 5.0, **more: Any) -> Reply:
        """One request over a connection of its own; nothing is ever tried again."""
        body = {"user": {"user_id": user, "scene": "home_feed"}, **more}
        begun = time.time()
        connection = http.client.HTTPConnection(self.address, self.port, timeout=timeout)
        try:
            connection.request("POST", PATH, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            raw = response.read()
        except (OSError, http.client.HTTPException) as error:
            return Reply(begun, time.time() - begun, 0, error=repr(error))
        finally:
            connection.close()
        try:
            decoded = json.loads(raw)
        except ValueError:
            return Reply(begun, time.time() - begun, response.status, error=raw[:200].decode(errors="replace"))
        return Reply(begun, time.time() - begun, response.status, decoded)

    @contextmanager
    def traffic(self, what: str, rate: float = 5.0, users: int = 400) -> Iterator[list[Reply]]:
        """Constant-rate requests beside the block, open-loop; all replies are there when it ends, told as `what`."""
        replies: list[Reply] = []
        threads: list[threading.Thread] = []
        over = threading.Event()

        def one(number: int) -> None:
            replies.append(self.ask(f"u_{number % users}", request_id=f"e2e-{number}"))

        def pace() -> None:
            begun = time.monotonic()
            number = 0
            while not over.wait(max(0.0, begun + number / rate - time.monotonic())):
                thread = threading.Thread(target=one, args=(number,))
                thread.start()
                threads.append(thread)
                number += 1

        pacer = threading.Thread(target=pace)
        pacer.start()
        try:
            yield replies
        finally:
            over.set()
            pacer.join()
            for thread in threads:
                thread.join()
            TOLD.append(f"{what}: {summary(replies)}")


def summary(replies: list[Reply]) -> str:
    """How many there were, how many were good, why some were degraded, and how long they took."""
    good = [reply for reply in replies if reply.ok]
    reasons = Counter(reason for reply in good for reason in reply.reasons)
    whole = sum(not reply.reasons for reply in good)
    told = f"{len(replies)} requests, {len(good)} answered 200 with a list, {whole} of them whole"
    if reasons:
        told += f" ({', '.join(f'{reason} {count}' for reason, count in reasons.most_common())})"
    if len(replies) > 1:
        cuts = statistics.quantiles((reply.seconds * 1000.0 for reply in replies), n=100)
        told += f"; p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms"
    return told


def failures(replies: list[Reply]) -> list[str]:
    """Everything that is not a 200 with items, told in a line each."""
    return [f"{reply.status} {reply.error or reply.body}"[:300] for reply in replies if not reply.ok]
