"""Which processes the local graph consists of: commands, ports and environment (docs/architecture.md, Processes)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from recgraph.bundle.manifest import STAGES
from recgraph.local.supervise import ProcessPlan
from recgraph.ports import free_ports

HOST: Final = "127.0.0.1"
ENTRY: Final = "entry"
ROUTER: Final = "router"
# One thread per library: the stages' own executors are the parallelism, and two cores are shared by ten processes.
_QUIET_THREADS: Final = {
    name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
}
# glibc keeps an arena per thread otherwise, which costs tens of MB per process.
_ENVIRONMENT: Final = _QUIET_THREADS | {"MALLOC_ARENA_MAX": "2", "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}


@dataclass(frozen=True)
class Cluster:
    """What every process is told."""

    bundle: Path
    scenes: Path
    features_redis: str
    caches_redis: str
    clock_offset_s: float
    graph: Path
    port: int

    def environment(self) -> dict[str, str]:
        """The settings of a serving process (recgraph.settings)."""
        return _ENVIRONMENT | {
            "RECGRAPH_BUNDLE": str(self.bundle),
            "RECGRAPH_SCENES": str(self.scenes),
            "RECGRAPH_FEATURES_REDIS": self.features_redis,
            "RECGRAPH_CACHES_REDIS": self.caches_redis,
            "RECGRAPH_CLOCK_OFFSET_S": repr(self.clock_offset_s),
            # All start at once: a transformer had better wait for its predictor than begin with fallbacks.
            "RECGRAPH_WARMUP_WAIT_S": "120",
        }


def plans(cluster: Cluster) -> list[ProcessPlan]:
    """Every process beside the two Redis, the router last: predictors, transformers, entry, router."""
    ports = iter(free_ports(3 * len(STAGES) + 4))
    predictors = [_predictor(stage, cluster, ports) for stage in STAGES]
    transformers = [
        _transformer(stage, cluster, ports, grpc_port) for stage, (_, grpc_port) in zip(STAGES, predictors, strict=True)
    ]
    entry, _ = _predictor(ENTRY, cluster, ports)
    services = {ENTRY: entry.port} | {stage: plan.port for stage, plan in zip(STAGES, transformers, strict=True)}
    return [*(plan for plan, _ in predictors), *transformers, entry, _router(cluster, services)]


def _predictor(stage: str, cluster: Cluster, ports: Iterator[int]) -> tuple[ProcessPlan, int]:
    http_port, grpc_port = next(ports), next(ports)
    arguments = ["--http_port", str(http_port), "--grpc_port", str(grpc_port), "--model_name", stage]
    command = [*_python(f"recgraph_predictors.{stage}"), *arguments]
    name = stage if stage == ENTRY else f"{stage}-predictor"
    return ProcessPlan(name, command, cluster.environment(), http_port, _model_url(http_port, stage)), grpc_port


def _transformer(stage: str, cluster: Cluster, ports: Iterator[int], grpc_port: int) -> ProcessPlan:
    http_port = next(ports)
    arguments = ["--http_port", str(http_port), "--model_name", stage, "--predictor_host", f"{HOST}:{grpc_port}"]
    command = [*_python(f"recgraph_transformers.{stage}"), *arguments]
    return ProcessPlan(f"{stage}-transformer", command, cluster.environment(), http_port, _model_url(http_port, stage))


def _router(cluster: Cluster, services: Mapping[str, int]) -> ProcessPlan:
    command = [*_python("recgraph.local.router"), "--graph", str(cluster.graph), "--port", str(cluster.port)]
    for name, port in services.items():
        command += ["--service", f"{name}=http://{HOST}:{port}"]
    return ProcessPlan(ROUTER, command, _ENVIRONMENT, cluster.port, f"http://{HOST}:{cluster.port}/readyz")


def _python(module: str) -> list[str]:
    return [sys.executable, "-P", "-m", module]


def _model_url(port: int, name: str) -> str:
    # KServe answers 503 here until the model is ready.
    return f"http://{HOST}:{port}/v1/models/{name}"
