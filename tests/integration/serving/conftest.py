"""A small real bundle (untrained networks, a real index), two embedded Redis, and serving processes over them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest
import redis
import torch
import yaml

from recgraph.bundle import Bundle, BundleWriter, DataWindow, IdMap, Lineage
from recgraph.cache import publish_pools
from recgraph.features.codec import codec_of
from recgraph.features.packed import blob_prefix
from recgraph.features.schema import FeatureSet
from recgraph.models import coarse, fine, rerank
from recgraph.models.index import ItemIndex
from recgraph.models.item_to_item import build_item_to_item
from recgraph.models.pairs import PairTable
from recgraph.models.towers import ItemContent, Towers, TowerSizes
from recgraph.ports import free_ports
from recgraph.redis_process import RedisProcess, start_redis

T = TypeVar("T", bound=msgspec.Struct)
ITEMS = [f"i{number}" for number in range(600)]
FEATURES = msgspec.json.decode((Path(__file__).parents[2] / "features.json").read_bytes(), type=FeatureSet)
CATEGORIES = ["news", "sport", "music", "films", "games"]
NOW_S = 1_700_000_000
SCENES = {
    "scenes": {
        "home_feed": {"recall": {"ann": 120, "i2i": 60, "hot": 60, "fresh": 60}, "coarse_keep": 100},
        "other": {"page_size": 5, "pools": {"scene": "home_feed"}, "coarse_keep": 30},
    }
}


def envelope(items: Sequence[str] | None = None, **more: Any) -> dict[str, Any]:
    """An envelope with plain business fields."""
    body: dict[str, Any] = {"request_id": "req_1", "user": {"user_id": "u1", "scene": "home_feed"}, "context": {}}
    return body | ({} if items is None else {"items": list(items)}) | more


def write_bundle(root: Path) -> Path:
    """A bundle of 600 items whose networks have not learned anything."""
    torch.manual_seed(7)
    with BundleWriter(root) as writer:
        ids = IdMap.build(writer.folder("ids/items"), (item.encode() for item in ITEMS))
        IdMap.build(writer.folder("ids/users"), (f"u{number}".encode() for number in range(20)))
        _write_recall(writer.folder("recall"))
        config = _config(coarse.CoarseConfig, items=len(ids), item_indicators=0, user_indicators=0)
        coarse.write(writer.folder("coarse"), coarse.CoarseNetwork(config), config)
        _write_fine(writer.folder("fine"), len(ids))
        rerank_config = _config(rerank.RerankConfig, indicators=0)
        rerank.write(writer.folder("rerank"), rerank.RerankNetwork(rerank_config), rerank_config)
        warm = {"recall": None, "coarse": ITEMS[:300], "fine": ITEMS[:100], "rerank": ITEMS[:100]}
        for stage, items in warm.items():
            writer.write_json(f"warmup/{stage}.json", [envelope(items)])
        hot = [(item, float(len(ITEMS) - place)) for place, item in enumerate(ITEMS[:200])]
        fresh = [(item, float(place)) for place, item in enumerate(reversed(ITEMS[-200:]))]
        fresh.sort(key=lambda row: -row[1])
        lineage = Lineage("0" * 40, "1", {}, DataWindow(0, 1, 2), 7, {})
        pools = {"home_feed": {"hot": hot, "fresh": fresh}}
        return writer.commit(features=FEATURES, pools=pools, metrics={}, lineage=lineage, version="v-test")


def _config(kind: type[T], **sizes: int) -> T:
    """A network's configuration from those of the sizes that it asks for."""
    asked = kind.__struct_fields__
    return kind(**{name: size for name, size in sizes.items() if name in asked})


def _write_recall(folder: Path) -> None:
    count = len(ITEMS)
    towers = Towers(TowerSizes(ids=count + 1, categories=6, creators=2))
    rows = np.arange(count, dtype=np.int64)
    content = ItemContent(
        rows + 1, np.ones(count, np.int64), rows % 5 + 1, np.arange(count + 1), np.ones(count, np.float32)
    )
    bases, vectors = (np.concatenate(parts) for parts in zip(*towers.eval().embed_items(content), strict=True))
    np.save(folder / "bases.npy", bases)
    np.save(folder / "vectors.npy", vectors)
    towers.save(folder)
    ItemIndex.build(vectors, vectors[:20], k=100).save(folder)
    clicks = np.arange(400, dtype=np.int64)
    build_item_to_item(clicks // 20, clicks % count, clicks * 1_000_000, count, shrinkage=0.0).save(folder)


def _write_fine(folder: Path, count: int) -> None:
    IdMap.build(folder / "categories", (name.encode() for name in CATEGORIES))
    IdMap.build(folder / "creators", [b"someone"])
    config = _config(fine.FineConfig, items=count, categories=len(CATEGORIES), creators=1, indicators=0)
    clicks = np.arange(400, dtype=np.int64)
    pairs = PairTable.build(clicks // 20, clicks % count, count, window=5, keep=10)
    fine.write(folder, fine.FineNetwork(config), config, pairs)


def write_features(url: str) -> None:
    """Features of all items and of user u1, who has clicked and seen i0..i9; i30..i39 are not available."""
    blobs: dict[bytes, bytes] = {}
    views = {view.role: view for view in FEATURES.views}

    def put(role: str, entity: str, values: dict[str, Any]) -> None:
        view = views[role]
        row = [values.get(each.name, _default(each.dtype)) for each in view.fields]
        key = blob_prefix(FEATURES.project, view.name) + entity.encode()
        blobs[key] = codec_of(view).encode(row, NOW_S * 1_000_000)

    for number, item in enumerate(ITEMS):
        category = CATEGORIES[number % 5]
        available = int(not 30 <= number < 40)
        published = NOW_S - number * 3600
        profile = {"title": item, "category": category, "categories": [category], "creator": "someone"}
        put("item_profile", item, profile | {"publish_time": published, "available": available})
        put("item_stats", item, {"clicks_1d": float(number), "impressions_1d": 1000.0})
    clicked = [f"i{number}" for number in range(10)]
    times = [NOW_S - 60 * number for number in range(10)]
    put("user_clicks", "u1", {"item_ids": clicked, "times": times, "categories": ["news"] * 10})
    put("user_profile", "u1", {"clicks_all": 10.0, "top_categories": ["news"], "category_clicks": [10.0]})
    put("user_seen", "u1", {"item_ids": [f"i{number}" for number in range(10)]})
    with redis.Redis.from_url(url) as client:
        client.mset(blobs)  # type: ignore[arg-type]


def _default(dtype: str) -> Any:
    return [] if dtype.endswith("_list") else "" if dtype == "text" else 0 if dtype == "int64" else 0.0


@dataclass
class Reply:
    """An HTTP answer."""

    status: int
    body: bytes
    headers: dict[str, str]

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass
class Process:
    """A serving process and how to talk to it."""

    child: subprocess.Popen[bytes]
    name: str
    port: int
    grpc_port: int
    log: Path

    def post(self, body: Any, *, timeout_s: float = 5.0, **headers: str) -> Reply:
        """POST to :predict; `body` is bytes as they are, or JSON. Never raises for a status."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json"} | {key.replace("_", "-"): value for key, value in headers.items()}
        return self._send(urllib.request.Request(f"{self.url}:predict", data, given, method="POST"), timeout_s)

    def get(self, path: str = "") -> Reply:
        """GET of the model's readiness, or of `path`."""
        url = f"http://127.0.0.1:{self.port}{path}" if path else self.url
        return self._send(urllib.request.Request(url), 5.0)

    @property
    def url(self) -> str:
        """Of the model."""
        return f"http://127.0.0.1:{self.port}/v1/models/{self.name}"

    def wait_ready(self, timeout_s: float = 100.0) -> None:
        """Until the readiness probe says so."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            if self.child.poll() is not None:
                raise AssertionError(f"{self.name} ended with {self.child.returncode}:\n{self.log.read_text()}")
            try:
                if self.get().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"{self.name} is not ready after {timeout_s} s:\n{self.log.read_text()}")

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 20.0) -> int:
        """Ends the process and returns its status."""
        if self.child.poll() is None:
            self.child.send_signal(number)
        try:
            return self.child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            raise

    @staticmethod
    def _send(request: urllib.request.Request, timeout_s: float) -> Reply:
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return Reply(
                    answer.status, answer.read(), {key.lower(): value for key, value in answer.headers.items()}
                )
        except urllib.error.HTTPError as error:
            with error:
                headers = {key.lower(): value for key, value in error.headers.items()}
                return Reply(error.code, error.read(), headers)


@dataclass
class World:
    """The bundle, the scene file and the Redis that processes are started over."""

    bundle: Bundle
    scenes: Path
    features: RedisProcess
    caches: RedisProcess
    logs: Path
    started: list[Process] = field(default_factory=list)

    def start(self, module: str, name: str, *flags: str, **settings: str) -> Process:
        """Starts `python -m module`; the settings are environment variables without their prefix."""
        port, grpc_port = free_ports(2)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "RECGRAPH_BUNDLE": str(self.bundle.path),
            "RECGRAPH_SCENES": str(self.scenes),
            "RECGRAPH_FEATURES_REDIS": self.features.url,
            "RECGRAPH_CACHES_REDIS": self.caches.url,
            "RECGRAPH_CLOCK_OFFSET_S": str(NOW_S - time.time()),
            **{f"RECGRAPH_{key.upper()}": value for key, value in settings.items()},
        }
        command = [sys.executable, "-P", "-m", module, "--http_port", str(port), "--grpc_port", str(grpc_port)]
        log = self.logs / f"{module}-{port}.log"
        with log.open("wb") as stream:
            child = subprocess.Popen(
                [*command, "--model_name", name, *flags], env=environment, stdout=stream, stderr=subprocess.STDOUT
            )
        process = Process(child, name, port, grpc_port, log)
        self.started.append(process)
        return process

    def transformer(self, stage: str, predictor: str, **settings: str) -> Process:
        """A transformer in front of a predictor's `host:port`."""
        return self.start(f"recgraph_transformers.{stage}", stage, "--predictor_host", predictor, **settings)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Bundle and Redis of the session; processes that are still running at the end are stopped."""
    root = tmp_path_factory.mktemp("serving")
    scenes = root / "scenes.yaml"
    scenes.write_text(yaml.safe_dump(SCENES))
    bundle = Bundle.open(write_bundle(root / "bundles"))
    with (
        start_redis(root / "features", persist=False) as features,
        start_redis(root / "caches", persist=False) as caches,
    ):
        write_features(features.url)
        publish_pools(caches.url, bundle.pools)
        made = World(bundle, scenes, features, caches, root)
        try:
            yield made
        finally:
            for process in made.started:
                if process.child.poll() is None:
                    process.child.kill()
                    process.child.wait()


@pytest.fixture(scope="session")
def stages(world: World) -> dict[str, Process]:
    """Every process of the cascade, ready: entry, and predictor (`recall-predictor`) and transformer per stage."""
    names = ("recall", "coarse", "fine", "rerank")
    # Deadlines are tested in their own place; here a busy machine must not turn answers into fallbacks.
    relaxed = {f"budgets__{stage}": "2000" for stage in names} | {"budgets__whole": "8100"}
    made = {"entry": world.start("recgraph_predictors.entry", "entry", **relaxed)}
    for name in names:
        predictor = made[f"{name}-predictor"] = world.start(f"recgraph_predictors.{name}", name)
        made[name] = world.transformer(name, f"127.0.0.1:{predictor.grpc_port}", **relaxed)
    for process in made.values():
        process.wait_ready()
    return made


@pytest.fixture
def temporary(world: World) -> Iterator[Callable[..., Process]]:
    """Starts processes that end with the test."""
    mine: list[Process] = []

    def start(module: str, name: str, *flags: str, **settings: str) -> Process:
        mine.append(world.start(module, name, *flags, **settings))
        return mine[-1]

    yield start
    for process in mine:
        if process.child.poll() is None:
            process.child.kill()
            process.child.wait()
