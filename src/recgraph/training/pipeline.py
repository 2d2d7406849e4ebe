"""From a data set and its feature sources to a bundle: every step of `recgraph train`, in order."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import yaml

import recgraph
from recgraph.bundle import STAGES, BundleWriter, DataWindow, IdMap, Lineage, check_version
from recgraph.contract import Envelope
from recgraph.data.log import EventLog
from recgraph.data.progress import Progress, silent
from recgraph.data.world import World
from recgraph.errors import DataError
from recgraph.features.point_in_time import PointInTimeReader
from recgraph.features.schema import FeatureSet
from recgraph.models.base import StageModel
from recgraph.models.recall import RecallModel
from recgraph.scenes import Scene, Scenes
from recgraph.training.evaluate import EvaluationConfig, Models, evaluate, held_out_requests
from recgraph.training.fit import AtLeast1
from recgraph.training.pools import pool_snapshot
from recgraph.training.rankers import PastRecall, RankingConfig, RankingJob, train_rankers
from recgraph.training.replay import Replay
from recgraph.training.retrieval import Retrieval, RetrievalConfig, train_retrieval
from recgraph.training.samples import Request

_MIN_EVENTS = 100
_UNKNOWN_COMMIT = "unknown"


@dataclass(frozen=True)
class TrainingConfig:
    """All that can be set in the file of `recgraph train --config`; every key is optional."""

    history_share: float = 0.9
    """Share of the events, by time, that models are fitted on; the rest is for the metrics."""
    scene: str = "home_feed"
    """The scene whose quotas and rules training and evaluation run with."""
    past_recalls: AtLeast1 = 2
    """Recall models of the past, whose candidates the rankers learn from; without one there would be none."""
    warmup_requests: AtLeast1 = 12
    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)
    ranking: RankingConfig = field(default_factory=RankingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)


@dataclass(frozen=True)
class Definitions:
    """Feast's definitions as they are in the registry. `version` is a digest of them."""

    features: FeatureSet
    version: str


@dataclass(frozen=True)
class TrainingJob:
    """What one run is given. `offline` is the folder of the feature sources, `bundles` where the bundle goes."""

    world: World
    offline: Path
    bundles: Path
    definitions: Definitions
    scenes: dict[str, Scene]
    seed: int = 0
    version: str | None = None
    config: TrainingConfig = field(default_factory=TrainingConfig)
    progress: Progress = silent


@dataclass(frozen=True)
class Window:
    """Times of a run in microseconds: history is before `split`; `horizon` is as long as what was held out."""

    start: int
    split: int
    end: int

    @property
    def horizon(self) -> int:
        """How long after a training request its clicks count: as long as in the evaluation, if history is long enough
        to hold four of them."""
        return max(1, min(self.end + 1 - self.split, (self.split - self.start) // 4))

    def past_cuts(self, count: int) -> list[int]:
        """`count` moments, evenly from 40 % of the history on; the rankers' requests lie between the first of them and
        one horizon before the split.

        More training requests helped on MovieTweetings down to 40 %; recall models of less history are poor ones.
        """
        first = self.start + (self.split - self.start) * 2 // 5
        return [first + (self.split - self.horizon - first) * step // count for step in range(count)]


async def train_bundle(job: TrainingJob) -> Path:
    """Train everything and write the bundle; returns its folder. The same job gives the same files.

    Raises DataError for a data set that is too small, an unknown scene, or features that do not fit it.
    """
    config, world = job.config, job.world
    window = time_split(world.log, config.history_share)
    reader = PointInTimeReader(job.offline)
    _check(job, config, window, reader)
    replay = Replay(world, job.definitions.features, reader, Scenes(job.scenes), config.scene, job.progress)
    with BundleWriter(job.bundles) as writer:
        items = IdMap.build(writer.folder("ids/items"), _ids(world.items["item_id"]))
        IdMap.build(writer.folder("ids/users"), _ids(world.users["user_id"]))
        models = await _train(job, config, window, replay, writer, items)
        metrics = await evaluate(replay, models, window.split, job.seed, config.evaluation)
        for stage, envelopes in (await _warmup(job, config, replay, models)).items():
            writer.write_json(f"warmup/{stage}.json", envelopes)
        return writer.commit(
            features=job.definitions.features,
            pools=pool_snapshot(world, sorted(job.scenes)),
            metrics=_finite(metrics),
            lineage=_lineage(job, config, window),
            version=job.version,
        )


def _check(job: TrainingJob, config: TrainingConfig, window: Window, reader: PointInTimeReader) -> None:
    """Raises DataError or BundleError for what would otherwise end the run after minutes."""
    if config.scene not in job.scenes:
        raise DataError(f"scene {config.scene!r} is not configured, known are: {', '.join(sorted(job.scenes))}")
    if job.version is not None:
        check_version(job.version)
    held_out_requests(job.world.log, window.split)
    for view in job.definitions.features.views:
        reader.table(view)


async def _train(
    job: TrainingJob, config: TrainingConfig, window: Window, replay: Replay, writer: BundleWriter, items: IdMap
) -> Models:
    """Recall, then coarse, fine and rerank, each on what the stage before passes on."""
    retrieval = _recall_at(job, config, window.split)
    retrieval.save(writer.folder("recall"))
    cuts = window.past_cuts(config.past_recalls)
    past = [PastRecall(cut, _recall_at(job, config, cut).model(items, "past")) for cut in cuts]
    ranking = RankingJob(replay, past, items, window.split, window.horizon, writer.path, job.seed, config.ranking)
    rankers = await train_rankers(ranking, retrieval.vectors)
    recall = RecallModel.open(writer.folder("recall"), items, "training", config.retrieval.threads)
    return Models(recall, rankers.coarse, rankers.fine, rankers.rerank)


def _recall_at(job: TrainingJob, config: TrainingConfig, until_us: int) -> Retrieval:
    return train_retrieval(job.world, until_us, job.seed, config.retrieval, job.progress)


async def _warmup(
    job: TrainingJob, config: TrainingConfig, replay: Replay, models: Models
) -> dict[str, list[Envelope]]:
    """The last users' requests at the end of the events, as every stage receives them."""
    users = list(dict.fromkeys(job.world.log.user_row[::-1][:10_000].tolist()))[: config.warmup_requests]
    requests = [Request(user, job.world.end_us, np.zeros(0, np.int64)) for user in users]
    envelopes = [replay.ask(request) for request in requests]
    recorded = {}
    for stage in STAGES:
        model: StageModel = getattr(models, stage)
        recorded[stage] = [msgspec.structs.replace(one, trace=[], degraded=[], bundle=None) for one in envelopes]
        running = [replay.stage(stage, model)]
        envelopes = await replay.run(f"record warm-up requests of {stage}", running, requests, envelopes)
    return recorded


def time_split(log: EventLog, history_share: float) -> Window:
    """Where history ends: at the time of the event that comes after that share of them.

    Raises DataError where nothing would be left on either side.
    """
    if not 0.1 <= history_share <= 0.99:
        raise DataError(f"history_share {history_share} is not between 0.1 and 0.99")
    if len(log) < _MIN_EVENTS:
        raise DataError(f"the data set has {len(log)} events; training needs at least {_MIN_EVENTS}")
    split = int(log.time_us[int(len(log) * history_share)])
    if split == log.start_us:
        raise DataError(f"all of the first {history_share:.0%} of the events happened at one moment")
    return Window(log.start_us, split, log.end_us)


def read_config(path: Path) -> TrainingConfig:
    """The configuration of a YAML file. Raises DataError that names the file and the key or value that is wrong."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        _check_keys(raw, TrainingConfig, "$")
        return msgspec.convert(raw, TrainingConfig)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise DataError(f"{path}: {error}") from error


def _check_keys(raw: Any, kind: Any, where: str) -> None:
    """msgspec passes over keys that a dataclass does not have; a typo must not."""
    if not isinstance(raw, dict):
        return
    info: Any = msgspec.inspect.type_info(kind)
    known = {one.name: one.type for one in info.fields}
    for key, value in raw.items():
        if key not in known:
            raise msgspec.ValidationError(f"unknown key {key!r} at `{where}`, known are: {', '.join(known)}")
        inner = getattr(known[key], "cls", None)
        if inner is not None:
            _check_keys(value, inner, f"{where}.{key}")


def read_definitions(registry: str, project: str) -> Definitions:
    """The applied definitions of a Feast registry (an SQLAlchemy URL). Needs Feast.

    Raises DataError where nothing was applied.
    """
    from feast import FeatureStore, RepoConfig

    from recgraph.features.export import feature_set

    config = RepoConfig(
        project=project,
        provider="local",
        registry={"registry_type": "sql", "path": registry},
        offline_store={"type": "duckdb"},
        online_store={"type": "sqlite", "path": ":memory:"},
        entity_key_serialization_version=3,
    )
    store = FeatureStore(config=config)
    digest = hashlib.sha256()
    for definition in [*store.list_feature_views(), *store.list_feature_services()]:
        # The specification alone: the rest of the message is when it was applied and materialized.
        digest.update(definition.to_proto().spec.SerializeToString(deterministic=True))
    return Definitions(feature_set(store), digest.hexdigest()[:16])


def _lineage(job: TrainingJob, config: TrainingConfig, window: Window) -> Lineage:
    seconds = (int(moment // 1_000_000) for moment in (window.start, window.split, job.world.end_us))
    return Lineage(
        commit=_commit(),
        registry_version=job.definitions.version,
        feature_services=job.definitions.features.services,
        data_window=DataWindow(*seconds),
        seed=job.seed,
        parameters={
            "training": msgspec.to_builtins(config),
            "data": {"kind": job.world.meta.kind, "sha256": job.world.meta.sha256},
        },
    )


def _commit() -> str:
    """The commit of the source tree that runs, or `unknown` where it is an installed package."""
    git = shutil.which("git")
    if git is None:
        return _UNKNOWN_COMMIT
    folder = Path(recgraph.__file__).parent
    found = subprocess.run([git, "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S603
    return found.stdout.strip() if found.returncode == 0 else _UNKNOWN_COMMIT


def _ids(column: Any) -> Iterator[bytes]:
    """Ids in blocks, so that ten million of them are never objects at once."""
    block = 1 << 18
    for begin in range(0, len(column), block):
        yield from (text.encode() for text in column.slice(begin, block).to_pylist())


def _finite(value: Any) -> Any:
    """Metrics that are not defined (an AUC without positives) are null in JSON, not NaN."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value
