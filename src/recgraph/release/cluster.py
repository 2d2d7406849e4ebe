"""The cluster as `recgraph canary` needs it: rollouts, readiness, metrics and requests, all through the API server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from recgraph.errors import DataError, RecgraphError

_TIMEOUT_S: Final = 20.0
_HTTP_PORT: Final = 8080
T = TypeVar("T")


class ClusterError(RecgraphError):
    """The API server refused or could not be reached; the message names what was asked."""


@dataclass(frozen=True)
class Pod:
    """A running pod of a stage."""

    name: str
    stage: str
    role: str


class Cluster:
    """One namespace. Every call is bounded; none is tried again."""

    def __init__(self, namespace: str, context: str = "") -> None:
        """By the kubeconfig (KUBECONFIG), or inside a pod by its service account. Raises DataError."""
        try:
            from kubernetes import client, config
            from kubernetes.config.config_exception import ConfigException
        except ImportError as error:
            raise DataError("the package `kubernetes` is missing: pip install 'recgraph[cluster]'") from error
        try:
            config.load_config(context=context or None)
        except (ConfigException, OSError) as error:
            raise DataError(f"no cluster: {error}") from error
        self.namespace = namespace
        self._api = client.ApiClient()
        self._core = client.CoreV1Api(self._api)
        self._apps = client.AppsV1Api(self._api)
        self._custom = client.CustomObjectsApi(self._api)

    def fullname(self, release: str) -> str:
        """What the names of a release's objects begin with. Raises DataError where no release of that name is."""
        services = self._list(self._core.list_namespaced_service, f"{_of(release)},recgraph.io/stage=entry")
        for service in services:
            name, _, arm = service.metadata.name.rpartition("-entry-")
            if arm == "stable":
                return str(name)
        raise DataError(f"no recgraph release {release!r} in namespace {self.namespace!r}: it has no entry Service")

    def pods(self, release: str) -> list[Pod]:
        """The running pods of all stages, those that are going excepted."""
        found = self._list(self._core.list_namespaced_pod, f"{_of(release)},app.kubernetes.io/component=stage")
        return [
            Pod(pod.metadata.name, pod.metadata.labels["recgraph.io/stage"], pod.metadata.labels["recgraph.io/role"])
            for pod in found
            if pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
        ]

    def metrics(self, pod: str) -> str:
        """What a stage's pod shows to Prometheus."""
        return self._proxy("GET", f"pods/{pod}:{_HTTP_PORT}", "/metrics")[1]

    def post(self, service: str, path: str, body: object) -> tuple[int, dict[str, Any]]:
        """Status and JSON of a POST to a Service, `NAME:PORT` with the port's name or number."""
        status, text = self._proxy("POST", f"services/{service}", path, json.dumps(body).encode())
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {"error": text[:300]}
        return status, answer if isinstance(answer, dict) else {"error": text[:300]}

    def missing(self, deployments: list[str], services: list[str]) -> str:
        """Which Deployment has not rolled out, or which InferenceService is not ready, and why; empty when all are.

        KServe says in the InferenceService's condition why it makes no Deployment.
        """
        held = {one.metadata.name: one for one in self._list(self._apps.list_namespaced_deployment, "")}
        ready = self._inference_services()
        told = "; ".join(f"{name}: {ready[name]}" for name in services if ready.get(name))
        for name in deployments:
            why = _rollout(held[name]) if name in held else f"is not there yet; {told}"
            if why:
                return f"deployment/{name} {why}"
        absent = next((name for name in services if name not in ready), "")
        return f"inferenceservice/{absent} is not there yet" if absent else told

    def left(self, services: list[str]) -> list[str]:
        """Those of the InferenceServices that still exist."""
        held = self._inference_services()
        return [name for name in services if name in held]

    def execute(self, pod: str, command: list[str]) -> str:
        """A command in a pod's stage container. Raises ClusterError with its output where it fails."""
        from kubernetes.stream import stream
        from kubernetes.stream.ws_client import ERROR_CHANNEL

        with self._errors(f"exec in {pod}"):
            response = stream(
                self._core.connect_get_namespaced_pod_exec,
                pod,
                self.namespace,
                container="kserve-container",
                command=command,
                stdout=True,
                stderr=True,
                stdin=False,
                tty=False,
                _preload_content=False,
            )
            response.run_forever(timeout=_TIMEOUT_S)
            # Without a status, the connection ended before the command did.
            status = json.loads(response.read_channel(ERROR_CHANNEL) or "{}").get("status")
            output = response.read_all()
            if status != "Success":
                raise ClusterError(f"{' '.join(command)} in {pod}: {output.strip() or 'no end in time'}")
        return str(output)

    def _inference_services(self) -> dict[str, str]:
        """By name, why one is not ready; empty where it is."""
        with self._errors("list inferenceservices"):
            found = self._custom.list_namespaced_custom_object(
                "serving.kserve.io", "v1beta1", self.namespace, "inferenceservices", _request_timeout=_TIMEOUT_S
            )
        return {one["metadata"]["name"]: _unready(one) for one in found["items"]}

    def _list(self, call: Callable[..., Any], selector: str) -> list[Any]:
        with self._errors(call.__name__):
            found: list[Any] = call(self.namespace, label_selector=selector, _request_timeout=_TIMEOUT_S).items
            return found

    def _proxy(self, method: str, target: str, path: str, body: bytes | None = None) -> tuple[int, str]:
        # The typed proxy calls take no body, and decode what is not theirs to decode.
        configuration = self._api.configuration
        headers = {"Content-Type": "application/json"}
        headers |= {auth["key"]: auth["value"] for auth in configuration.auth_settings().values() if auth["value"]}
        url = f"{configuration.host}/api/v1/namespaces/{self.namespace}/{target}/proxy{path}"
        with self._errors(f"{method} {target}{path}"):
            pool = self._api.rest_client.pool_manager
            response = pool.request(method, url, body=body, headers=headers, timeout=_TIMEOUT_S, retries=False)
        text = response.data.decode(errors="replace")
        if method == "GET" and response.status != 200:
            raise ClusterError(f"{target}{path}: {response.status} {text[:300]}")
        return int(response.status), text

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as error:
            raise ClusterError(f"{what}: {error.status} {error.reason}") from error
        except (HTTPError, OSError) as error:
            raise ClusterError(f"{what}: {type(error).__name__}: {error}") from error


def _of(release: str) -> str:
    return f"app.kubernetes.io/instance={release}"


def _rollout(deployment: Any) -> str:
    """Why a Deployment is not rolled out; empty when it is, as `kubectl rollout status` sees it."""
    status, wanted = deployment.status, deployment.spec.replicas
    if (status.observed_generation or 0) < deployment.metadata.generation:
        return "was not seen by its controller yet"
    updated, total, available = status.updated_replicas or 0, status.replicas or 0, status.available_replicas or 0
    if updated < wanted or total > updated or available < updated:
        return f"has {available} of {wanted} pods available"
    return ""


def _unready(service: dict[str, Any]) -> str:
    conditions = service.get("status", {}).get("conditions", [])
    ready = next((one for one in conditions if one["type"] == "Ready"), {"status": "Unknown"})
    return "" if ready["status"] == "True" else str(ready.get("message") or "not ready")
