"""Where a request's time goes between the stages, on a node of the cluster: prints a table in Markdown.

    python -P tests/e2e/hops.py --namespace NS --bundle FOLDER [--release rg] [--rounds 150] [--rate 5]

Five ways are asked in turn at one constant rate, with nothing else running: through the gateway; past it, at the
router; past that, stage by stage as the router does; a predictor over gRPC alone; and its model in this process. What
one way takes longer than the next, and a stage's answer longer than its own trace says, is the hop between them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).parent))  # -P leaves it out

from e2e_release import kubectl_json

from recgraph.bundle import Bundle
from recgraph.cache import NoCache
from recgraph.clock import DataClock
from recgraph.http1 import Pool, json_post, parse_target
from recgraph.models import coarse, fine, recall, rerank
from recgraph.models.base import StageModel, Tensors
from recgraph.pools import CachedPools
from recgraph.scenes import SceneFileWatch
from recgraph.stages.base import StageDeps
from recgraph.stages.warmup import MissingReader, warm_up
from recgraph_transformers.client import PredictorClient

LOAD: dict[str, Callable[..., StageModel]] = {
    "recall": recall.load,
    "coarse": coarse.load,
    "fine": fine.load,
    "rerank": rerank.load,
}
SCENES = Path(__file__).parents[2] / "inferencegraph" / "scenes.yaml"
Took = defaultdict[str, list[float]]
"""Milliseconds by what was measured."""


class Ways:
    """The ways to an answer, each measured once per call."""

    def __init__(self, services: dict[str, str], bundle: Path, took: Took) -> None:
        self._services = services
        self._pool = Pool(60.0)
        self._took = took
        self._bundle = Bundle.open(bundle)
        self._inputs: dict[str, Tensors] = {}
        self._models: dict[str, StageModel] = {}
        self._clients: dict[str, PredictorClient] = {}

    async def prepare(self) -> None:
        """Loads the models and catches what each stage sends to its predictor, candidates without features."""
        for stage, load in LOAD.items():
            model = self._models[stage] = load(self._bundle, threads=1)

            async def predict(
                inputs: Tensors, timeout_s: float, stage: str = stage, model: StageModel = model
            ) -> Tensors:
                self._inputs[stage] = inputs
                return model.predict(inputs)

            cache = NoCache()
            deps = StageDeps(
                reader=MissingReader(),
                predict=predict,
                cache=cache,
                pools=CachedPools(cache, self._bundle.pools, refresh_s=60.0),
                scenes=SceneFileWatch(SCENES),
                bundle=self._bundle,
                clock=DataClock(0.0),
            )
            await warm_up(stage, deps, self._bundle.path)
            self._clients[stage] = PredictorClient(self._services[f"{stage}-grpc"], stage, self._bundle.version)

    async def gateway(self, user: str) -> None:
        """Client, gateway, graph."""
        await self._asked("gateway", f"{self._services['gateway']}/v1/recommend", user)

    async def router(self, user: str) -> None:
        """The graph without the gateway."""
        await self._asked("router", f"{self._services['router']}/", user)

    async def steps(self, user: str) -> None:
        """Stage by stage, without the router."""
        body: dict[str, Any] = _request(user)
        whole = 0.0
        for stage in ("entry", *LOAD):
            ms, body = await self._post(f"{self._services[stage]}/v1/models/{stage}:predict", body)
            self._took[f"http {stage}"].append(ms - body["trace"][-1]["ms"])
            self._took[f"stage {stage}"].append(body["trace"][-1]["ms"])
            whole += ms
        self._took["steps"].append(whole)

    async def predictors(self, user: str) -> None:
        """Every predictor over gRPC."""
        for stage, client in self._clients.items():
            begun = time.perf_counter()
            await client.predict(self._inputs[stage], 1.0)
            self._took[f"grpc {stage}"].append((time.perf_counter() - begun) * 1000.0)

    async def models(self, user: str) -> None:
        """Every model in this process, as cold as in its own."""
        for stage, model in self._models.items():
            begun = time.perf_counter()
            model.predict(self._inputs[stage])
            self._took[f"model {stage}"].append((time.perf_counter() - begun) * 1000.0)

    async def _asked(self, way: str, url: str, user: str) -> None:
        ms, answer = await self._post(url, _request(user))
        if answer["degraded"]:
            self._took[f"{way}, degraded"].append(ms)
        self._took[way].append(ms)

    async def _post(self, url: str, body: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        target = parse_target(url)
        content = json.dumps(body, separators=(",", ":")).encode()
        request = json_post(target, content)
        begun = time.perf_counter()
        response = await (await self._pool.connection(target)).exchange(request)
        if response.status != 200:
            raise SystemExit(f"{url} answers {response.status} {response.body[:300]!r}")
        return (response.arrived_s - begun) * 1000.0, json.loads(response.body)


def _request(user: str) -> dict[str, Any]:
    return {"user": {"user_id": user, "scene": "home_feed"}, "explain": True}


async def measure(ways: Ways, rounds: int, rate: float, users: list[str]) -> None:
    """Asks the ways in turn, one every 1/rate s."""
    await ways.prepare()
    asked: list[Callable[[str], Awaitable[None]]] = [
        ways.gateway,
        ways.router,
        ways.steps,
        ways.predictors,
        ways.models,
    ]
    begun = time.perf_counter()
    for number in range(rounds * len(asked)):
        await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
        await asked[number % len(asked)](users[number // len(asked) % len(users)])


def table(took: Took) -> str:
    """Medians, and what lies between them."""
    mid = {name: statistics.median(values) for name, values in took.items()}
    rows = [
        ("client to answer, through the gateway", mid["gateway"]),
        ("gateway (Envoy, the node's port)", mid["gateway"] - mid["router"]),
        ("router, above the steps themselves", mid["router"] - mid["steps"]),
        *((f"HTTP to {stage}", mid[f"http {stage}"]) for stage in ("entry", *LOAD)),
        *(
            (f"{stage}'s own time; of it gRPC to the predictor, above the model", mid[f"stage {stage}"])
            for stage in LOAD
        ),
    ]
    lines = ["| part | ms, p50 | gRPC ms | model ms |", "|---|---|---|---|"]
    for name, ms in rows:
        stage = name.split("'")[0]
        grpc = f"{mid[f'grpc {stage}'] - mid[f'model {stage}']:.1f}" if stage in LOAD else ""
        lines.append(
            f"| {name} | {ms:.1f} | {grpc} | {mid[f'model {stage}']:.1f} |" if grpc else f"| {name} | {ms:.1f} | | |"
        )
    degraded = {name: len(values) for name, values in took.items() if "degraded" in name}
    return "\n".join([*lines, "", f"rounds {len(took['gateway'])}, degraded {degraded or 0}"])


def services(namespace: str, release: str) -> dict[str, str]:
    """Addresses inside the cluster, by what is asked."""
    found = {one["metadata"]["name"]: one["spec"] for one in kubectl_json("-n", namespace, "get", "services")["items"]}
    full = f"{release}-recgraph"
    node_port = found[f"{full}-gateway"]["ports"][0].get("nodePort")
    addresses = {
        "gateway": f"http://127.0.0.1:{node_port}" if node_port else f"http://{found[f'{full}-gateway']['clusterIP']}",
        "router": f"http://{found[full]['clusterIP']}",
    }
    for stage in ("entry", *LOAD):
        addresses[stage] = f"http://{found[f'{full}-{stage}-stable']['clusterIP']}"
    pods = kubectl_json("-n", namespace, "get", "pods", "-l", "recgraph.io/role=predictor")["items"]
    for pod in (one for one in pods if "deletionTimestamp" not in one["metadata"]):
        addresses[f"{pod['metadata']['labels']['recgraph.io/stage']}-grpc"] = f"{pod['status']['podIP']}:8081"
    return addresses


def main() -> None:
    """Reads the arguments, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--release", default="rg")
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--rate", type=float, default=5.0)
    parser.add_argument("--users", type=Path)
    options = parser.parse_args()
    users = options.users.read_text(encoding="utf-8").split() if options.users else [f"u_{n:03}" for n in range(400)]
    took: Took = defaultdict(list)
    ways = Ways(services(options.namespace, options.release), options.bundle, took)
    uvloop.run(measure(ways, options.rounds, options.rate, users))
    sys.stdout.write(table(took) + "\n")


if __name__ == "__main__":
    main()
