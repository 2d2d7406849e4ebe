"""The whole product in one go: data, features, training, the running graph, recommendations, measurements.

Every step that takes long is kept under a fingerprint of its inputs (data, parameters and the code that it runs), so
that a second run goes straight to the graph.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

import recgraph
from recgraph.bench.load import Load, measure, summarize
from recgraph.bundle import Bundle
from recgraph.contract import Answer
from recgraph.data import movielens, sources, synthetic
from recgraph.data import world as worlds
from recgraph.data.log import DAY_US
from recgraph.data.progress import Progress, silent
from recgraph.local import client, feast, runner
from recgraph.local.state import State, load_state
from recgraph.local.steps import Steps, digest_of
from recgraph.repository import feast_repo, graph_file, scenes_file
from recgraph.scenes import parse_scenes
from recgraph.training import pipeline
from recgraph.training.evaluate import EvaluationConfig
from recgraph.training.rankers import RankingConfig

BASELINES: Final = ("final", "popular_all", "popular_7d", "popular_3d_live")
_WARM_REQUESTS: Final = 10
_SOURCE: Final = Path(recgraph.__file__).parent


@dataclass(frozen=True)
class DemoOptions:
    """What is asked of the demo. `ratings` and `items` are MovieLens-format files; without them a world is made."""

    home: Path
    port: int = 8080
    world_items: int = 20_000
    users: int | None = None
    events: int | None = None
    seed: int = 0
    ratings: Path | None = None
    items: Path | None = None
    click_threshold: float = 7.0
    strict: bool = False
    config: Path | None = None
    rate: float = 10.0
    bench_s: float = 10.0
    keep_up: bool = False
    report: Path | None = None


@dataclass
class Demo:
    """One run. `say` prints a line, `show` an answer with the titles of its items."""

    options: DemoOptions
    say: Callable[[str], None]
    show: Callable[[Answer, dict[str, str]], None]
    progress: Progress = silent
    steps: Steps = field(init=False)

    def __post_init__(self) -> None:
        self.steps = Steps(self.options.home / "steps", self.say)

    @property
    def world(self) -> Path:
        """The data set."""
        return self.options.home / "world"

    @property
    def offline(self) -> Path:
        """The sources of the features."""
        return self.options.home / "offline"

    @property
    def registry(self) -> Path:
        """Feast's registry."""
        return self.options.home / "registry.db"

    @property
    def logs(self) -> Path:
        """Where Feast's output goes."""
        return self.options.home / "run" / "logs"

    def run(self) -> dict[str, Any]:
        """Everything; returns the report. Raises DataError, BundleError or LocalError for what cannot be done."""
        runner.down(self.options.home, self.say)
        counts, data = self._data()
        rows, features = self._sources(data)
        applied = self._apply()
        self._materialize(features, applied)
        bundle = Bundle.open(self._train(features, applied))
        with self._graph(bundle) as state:
            self._recommend(state)
            measured = self._measure(state)
        report = {
            "data": counts,
            "features": {"rows": rows},
            "bundle": bundle.version,
            "quality": quality(bundle.manifest.metrics),
            "metrics": bundle.manifest.metrics,
            **measured,
            "steps": msgspec.to_builtins(self.steps.lines),
            "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
        }
        if self.options.report:
            self.options.report.parent.mkdir(parents=True, exist_ok=True)
            self.options.report.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
            self.say(f"report written to {self.options.report}")
        return report

    def _data(self) -> tuple[dict[str, Any], str]:
        """The data set, made or imported: counts and fingerprint."""
        options = self.options
        outputs = [self.world / name for name in (worlds.META, *worlds.TABLES)]
        code = digest_of([_SOURCE / "data"])
        if options.ratings and options.items:
            inputs = [code, digest_of([options.ratings, options.items]), options.click_threshold, options.strict]
            return self.steps.once("import", inputs, outputs, self._import)
        size = synthetic.parameters(options.world_items, options.users, options.events, seed=options.seed)
        return self.steps.once("world", [code, asdict(size)], outputs, lambda: self._make(size))

    def _make(self, size: synthetic.WorldParameters) -> tuple[dict[str, Any], str]:
        worlds.check_target(self.world)
        return self._saved(synthetic.make_world(size, self.progress))

    def _import(self) -> tuple[dict[str, Any], str]:
        options = self.options
        assert options.ratings is not None
        assert options.items is not None
        worlds.check_target(self.world)
        found = movielens.import_movielens(
            options.ratings,
            options.items,
            click_threshold=options.click_threshold,
            strict=options.strict,
            progress=self.progress,
        )
        for problem in found.problems[:5]:
            self.say(f"  skipped {problem}")
        return self._saved(found.world)

    def _saved(self, world: worlds.World) -> tuple[dict[str, Any], str]:
        meta = worlds.save(world, self.world)
        counts: dict[str, Any] = msgspec.to_builtins(meta.counts)
        words = f"{meta.counts.users:,} users, {meta.counts.items:,} items, {meta.counts.events:,} events"
        return counts, f"{words}, {meta.counts.clicks:,} of them clicks, {meta.counts.skipped_lines:,} lines skipped"

    def _sources(self, data: str) -> tuple[dict[str, int], str]:
        """The Parquet sources of the features: rows by view and fingerprint."""
        # Small real files get a row for every change, worlds one a day: see docs/adr/0003.
        cadence_us = 0 if self.options.ratings else DAY_US

        def write() -> tuple[dict[str, int], str]:
            world = worlds.load(self.world)
            rows = sources.write_sources(world, self.offline, sources.span_of(world, cadence_us), self.progress)
            return rows, f"{sum(rows.values()):,} rows in {len(rows)} feature sources"

        outputs = [self.offline / f"{view}.parquet" for view in sources.VIEWS]
        return self.steps.once("sources", [data, cadence_us], outputs, write)

    def _environment(self, redis_address: str) -> dict[str, str]:
        return feast.environment(self.offline, self.registry, redis_address)

    def _apply(self) -> str:
        """`feast apply`; returns the fingerprint."""
        repo = feast_repo()

        def work() -> tuple[None, str]:
            self.registry.unlink(missing_ok=True)
            # The address is not used yet: apply only writes the registry.
            feast.apply(repo, self._environment("127.0.0.1:6379"), self.logs / "feast-apply.log")
            return None, "feast apply"

        inputs = [digest_of([repo, _SOURCE / "features"]), str(self.offline.resolve())]
        return self.steps.once("apply", inputs, [self.registry], work)[1]

    def _materialize(self, features: str, applied: str) -> None:
        """`feast materialize START END` into the workspace's own Redis, which starts empty."""
        folder = self.options.home / "run" / runner.FEATURES

        def work() -> tuple[None, str]:
            shutil.rmtree(folder, ignore_errors=True)
            start, end = feast.span(self.offline / f"{view}.parquet" for view in sources.VIEWS)
            with runner.features_redis(self.options.home) as redis:
                environment = self._environment(f"127.0.0.1:{redis.port}")
                feast.materialize(feast_repo(), environment, start, end, self.logs / "feast-materialize.log")
            return None, f"feast materialize {start:%Y-%m-%dT%H:%M:%S} {end:%Y-%m-%dT%H:%M:%S}"

        self.steps.once("materialize", [features, applied], [folder / "dump.rdb"], work)

    def _train(self, features: str, applied: str) -> Path:
        """A bundle, trained and evaluated; returns its folder."""
        options = self.options
        scenes = scenes_file()
        code = [_SOURCE / name for name in ("training", "models", "stages", "features", "bundle", "scenes.py")]
        config = self._training()
        inputs = [features, applied, digest_of([*code, scenes]), msgspec.to_builtins(config), options.seed]
        bundles = options.home / "bundles"

        def work() -> tuple[str, str]:
            job = pipeline.TrainingJob(
                world=worlds.load(self.world),
                offline=self.offline,
                bundles=bundles,
                definitions=pipeline.read_definitions(f"sqlite:///{self.registry.resolve()}", "recgraph"),
                scenes=parse_scenes(scenes.read_text(encoding="utf-8"), str(scenes)),
                seed=options.seed,
                config=config,
                progress=self.progress,
            )
            bundle = Bundle.open(asyncio.run(pipeline.train_bundle(job)), verify="hash")
            found = quality(bundle.manifest.metrics)["ndcg20"]
            words = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
            return bundle.version, f"bundle {bundle.version}; NDCG@20 {words}"

        version: str = self.steps.once("train", inputs, [bundles], work)[0]
        if not (bundles / version).is_dir():  # it was removed since
            self.steps.forget("train")
            version = self.steps.once("train", inputs, [bundles], work)[0]
        return bundles / version

    def _training(self) -> pipeline.TrainingConfig:
        """The parameters of training. A first look at a world gets by with fewer requests than real files deserve."""
        if self.options.config:
            return pipeline.read_config(self.options.config)
        if self.options.ratings:
            return pipeline.TrainingConfig()
        return pipeline.TrainingConfig(
            ranking=RankingConfig(requests=2500), evaluation=EvaluationConfig(requests=1500, sample=300)
        )

    @contextmanager
    def _graph(self, bundle: Bundle) -> Iterator[State]:
        """The running graph; it is stopped at the end unless it is to be kept."""
        options = self.options

        def start() -> tuple[State, str]:
            asked = runner.Options(options.home, graph_file(), scenes_file(), options.port, bundle.path)
            state = runner.up(asked, lambda _: None)
            memory = sum(row.memory_mib for row in runner.status(state))
            return state, f"{len(state.processes)} processes, {memory:.0f} MiB, answering on {state.url}"

        state = self.steps.always("up", start)
        try:
            yield state
        finally:
            if not options.keep_up or load_state(options.home / "run") is None:
                self.steps.always("down", lambda: (runner.down(options.home, self.say), "stopped"))

    def _recommend(self, state: State) -> None:
        """Answers for a user of the data and for one that nobody knows."""
        world = worlds.load(self.world)
        known = str(world.user_ids[world.log.user_row[world.log.clicked][-1]])
        titles = dict(zip(world.item_ids.tolist(), world.items["title"].to_pylist(), strict=True))
        for _ in range(_WARM_REQUESTS):  # connections between the processes are made by the first requests
            client.ask(state.port, "somebody-else", "home_feed", explain=False)
        for title, user in (("a user with a history", known), ("a user that nobody knows", "somebody-new")):
            self.say(f"\nrecgraph ask {user} --explain        # {title}")
            answer = client.ask(state.port, user, "home_feed", explain=True)
            self.show(answer, titles)
            if not answer.degraded:
                self.say("nothing was degraded")
        self.say("")

    def _measure(self, state: State) -> dict[str, Any]:
        """Open-loop load on the running graph."""
        options = self.options
        users = worlds.load(self.world).user_ids.tolist()
        load = Load(f"{state.url}/", users, rate=options.rate, duration_s=options.bench_s, seed=options.seed)

        def work() -> tuple[dict[str, Any], str]:
            result = summarize(load, measure(load))
            whole, requests = result["latency_ms"]["whole"], result["requests"]
            result["memory_mib"] = round(sum(row.memory_mib for row in runner.status(state)), 1)
            words = f"{requests['sent']} requests at {load.rate:g}/s: p50 {whole['p50']} ms, p99 {whole['p99']} ms"
            return result, f"{words}, {requests['degraded']} degraded, {requests['failed']} failed"

        measured: dict[str, Any] = self.steps.always("bench", work)
        return measured


def quality(metrics: dict[str, Any]) -> dict[str, dict[str, float]]:
    """`ndcg20.<final|popular_all|popular_7d|popular_3d_live>` of a bundle's metrics."""
    found = metrics.get("ndcg20", {})
    return {"ndcg20": {name: found[name] for name in BASELINES if found.get(name) is not None}}
