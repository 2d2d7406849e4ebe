"""The pipeline: one small run makes a bundle that opens, loads, says where it came from, and is made again equal."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from recgraph.bundle import STAGES, Bundle
from recgraph.data import sources, synthetic
from recgraph.data.log import HOUR_US, EventLog
from recgraph.data.world import ITEMS, USERS, Counts, Meta, World
from recgraph.errors import BundleError, DataError
from recgraph.features.schema import FeatureSet
from recgraph.models import coarse, fine, recall, rerank
from recgraph.scenes import Quotas, Scene
from recgraph.stages.warmup import recorded
from recgraph.training.evaluate import EvaluationConfig
from recgraph.training.fit import FitConfig
from recgraph.training.pipeline import (
    Definitions,
    TrainingConfig,
    TrainingJob,
    read_config,
    time_split,
    train_bundle,
)
from recgraph.training.rankers import RankingConfig
from recgraph.training.retrieval import RetrievalConfig

ONE = FitConfig(epochs=1)
CONFIG = TrainingConfig(
    past_recalls=2,
    warmup_requests=3,
    retrieval=RetrievalConfig(epochs=1, batch=128, uniform_negatives=128, index_queries=20),
    ranking=RankingConfig(requests=40, coarse_fit=ONE, fine_fit=ONE, rerank_fit=ONE),
    evaluation=EvaluationConfig(sample=10),
)
FEATURES = Path(__file__).parents[3] / "features.json"
DEFINITIONS = Definitions(msgspec.json.decode(FEATURES.read_bytes(), type=FeatureSet), "registry-1")
SCENES = {"home_feed": Scene(recall=Quotas(ann=60, i2i=40, hot=30, fresh=20), coarse_keep=50), "other": Scene()}


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> TrainingJob:
    folder = tmp_path_factory.mktemp("pipeline")
    world = synthetic.make_world(synthetic.parameters(1000, 100, 12_000, days=20, seed=7))
    sources.write_sources(world, folder / "offline", sources.span_of(world, 6 * HOUR_US))
    return TrainingJob(world, folder / "offline", folder / "bundles", DEFINITIONS, SCENES, seed=3, config=CONFIG)


@pytest.fixture(scope="module")
def bundle(job: TrainingJob) -> Bundle:
    return Bundle.open(asyncio.run(train_bundle(job)), verify="hash")


def test_every_stage_loads_and_says_which_bundle_it_is_of(bundle: Bundle):
    for stage in (recall, coarse, fine, rerank):
        assert stage.load(bundle, threads=1).bundle_version == bundle.version
    assert len(bundle.item_ids) == 1000
    assert len(bundle.user_ids) == 100


def test_the_lineage_says_what_was_used(bundle: Bundle, job: TrainingJob):
    lineage, log = bundle.manifest.lineage, job.world.log
    split = int(log.time_us[int(len(log) * 0.9)])
    assert lineage.seed == 3
    assert lineage.registry_version == "registry-1"
    assert lineage.data_window.split == split // 1_000_000
    assert lineage.data_window.start <= lineage.data_window.split <= lineage.data_window.end
    assert lineage.parameters["training"]["ranking"]["requests"] == 40


def test_metrics_of_every_stage_are_there(bundle: Bundle):
    metrics = bundle.manifest.metrics
    assert {"final", "popular_all", "popular_7d", "popular_3d_live"} <= metrics["ndcg20"].keys()
    assert {"merged", "ann", "i2i", "hot", "fresh"} <= metrics["recall"].keys()
    assert {"auc", "gauc"} <= metrics["coarse"].keys() & metrics["fine"].keys()


def test_pools_are_of_every_scene_and_warm_up_requests_of_every_stage(bundle: Bundle):
    assert set(bundle.pools) == {"home_feed", "other"}
    for stage in STAGES:
        envelopes = recorded(bundle.path, stage)
        assert len(envelopes) == 3
        assert all(not one.trace and not one.degraded for one in envelopes)
        assert all((one.items is None) == (stage == "recall") for one in envelopes)
    assert len(recorded(bundle.path, "coarse")[0].items or []) > len(recorded(bundle.path, "fine")[0].items or []) == 50


def test_the_same_job_makes_the_same_files(bundle: Bundle, job: TrainingJob, tmp_path: Path):
    again = Bundle.open(asyncio.run(train_bundle(replace(job, bundles=tmp_path))))
    differing = [name for name, entry in again.manifest.files.items() if bundle.manifest.files.get(name) != entry]
    assert differing == []
    assert again.version == bundle.version


def test_nothing_that_is_trained_knows_what_comes_after_the_split(bundle: Bundle, job: TrainingJob, tmp_path: Path):
    log = job.world.log
    later = log.time_us >= time_split(log, 0.9).split
    events = replace(
        log,
        user_row=np.where(later, (log.user_row * 3 + 1) % log.users, log.user_row).astype(np.int32),
        item_row=np.where(later, (log.item_row * 7 + 1) % log.items, log.item_row).astype(np.int32),
        clicked=np.where(later, ~log.clicked, log.clicked),
    )
    world = replace(job.world, log=events)
    sources.write_sources(world, tmp_path / "offline", sources.span_of(world, 6 * HOUR_US))
    other_job = replace(job, world=world, offline=tmp_path / "offline", bundles=tmp_path / "bundles")
    other = Bundle.open(asyncio.run(train_bundle(other_job))).manifest
    differing = {name for name, entry in other.files.items() if bundle.manifest.files.get(name) != entry}
    # What serving starts with is of the end of the events.
    assert differing == {"pools.json", *(f"warmup/{stage}.json" for stage in STAGES)}
    assert other.metrics["ndcg20"] != bundle.manifest.metrics["ndcg20"]


def test_a_scene_that_is_not_configured_is_refused(job: TrainingJob):
    with pytest.raises(DataError, match="scene 'home_feed' is not configured, known are: other"):
        asyncio.run(train_bundle(replace(job, scenes={"other": Scene()})))


def rated(users: int, items: int, ratings: list[int], every_us: int = HOUR_US) -> World:
    """A world of one rating an hour, 7 and more being clicks."""
    rng, count = np.random.default_rng(0), len(ratings)
    log = EventLog(
        rng.integers(users, size=count).astype(np.int32),
        rng.integers(items, size=count).astype(np.int32),
        np.arange(count) * every_us + 1_000_000_000_000_000,
        np.array(ratings) >= 7,
        np.array(ratings, np.float32),
        users,
        items,
    )
    published = [datetime(2000, 1, 1, tzinfo=UTC)] * items
    item_ids, user_ids = [f"i{row:03}" for row in range(items)], [f"u{row:03}" for row in range(users)]
    names, nobody = ["a"] * items, [""] * items
    columns = [item_ids, names, names, [["a"]] * items, nobody, published, [True] * items]
    meta = Meta("movielens", None, {}, Counts(users, items, count, 0), log.start_us / 1e6, log.end_us / 1e6)
    people = pa.table([user_ids, [datetime(2000, 1, 1, tzinfo=UTC)] * users], schema=USERS)
    return World(people, pa.table(columns, schema=ITEMS), log, meta)


def job_of(world: World, folder: Path) -> TrainingJob:
    """A training job over a world of few events."""
    sources.write_sources(world, folder / "offline", sources.span_of(world, 6 * HOUR_US))
    return TrainingJob(world, folder / "offline", folder / "bundles", DEFINITIONS, SCENES, config=CONFIG)


@pytest.mark.parametrize(
    ("users", "items", "ratings"),
    [
        (3, 60, [9, 8, 2] * 67),  # too few lists for rerank to learn from any, or from any but held out ones
        (2, 400, [9] * 200),
        (100, 500, [9, 2, 7] * 67),
        (30, 50, [9] * 2000),
    ],
)
def test_the_smallest_worlds_still_make_a_bundle(tmp_path: Path, users: int, items: int, ratings: list[int]):
    made = Bundle.open(asyncio.run(train_bundle(job_of(rated(users, items, ratings), tmp_path))), verify="hash")
    assert made.manifest.metrics["ndcg20"]["final"] >= 0.0
    assert rerank.load(made, threads=1).bundle_version == made.version


@pytest.mark.parametrize(
    ("users", "items", "ratings", "message"),
    [
        (30, 50, [3] * 2000, "nothing to evaluate on"),
        (1, 2, [9] * 400, "nothing to evaluate on"),
        (30, 500, [2] * 1900 + [9] * 100, "nothing was clicked before .*: there is nothing to learn recall from"),
        (1, 500, [9] * 300, "one user alone comes back within the history"),
    ],
)
def test_a_world_that_nothing_can_be_learned_from_is_refused(
    tmp_path: Path, users: int, items: int, ratings: list[int], message: str
):
    with pytest.raises(DataError, match=message):
        asyncio.run(train_bundle(job_of(rated(users, items, ratings), tmp_path)))
    assert not list((tmp_path / "bundles").glob("*"))


def test_what_would_fail_at_the_end_fails_before_anything_is_trained(job: TrainingJob, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("recgraph.training.pipeline.train_retrieval", lambda *_: pytest.fail("trained"))
    for name in ("latest", "../x", ""):
        with pytest.raises(BundleError, match="bundle version"):
            asyncio.run(train_bundle(replace(job, version=name)))
    with pytest.raises(DataError, match=r"\.parquet cannot be read"):
        asyncio.run(train_bundle(replace(job, offline=tmp_path)))


def log_at(times: list[int]) -> EventLog:
    size = len(times)
    rows = np.zeros(size, np.int32)
    return EventLog(rows, rows, np.array(times), np.ones(size, bool), np.full(size, np.nan, np.float32), 1, 1)


def test_the_split_is_by_time():
    window = time_split(log_at(list(range(200))), 0.9)
    assert (window.start, window.split, window.end, window.horizon) == (0, 180, 199, 20)
    assert window.past_cuts(1) == [72]
    assert window.past_cuts(4) == [72, 94, 116, 138]


def test_past_cuts_lie_before_the_last_horizon():
    window = time_split(log_at([*range(180), *range(180, 2000, 91)]), 0.9)
    assert window.horizon == 45
    assert window.past_cuts(3) == [72, 93, 114]


@pytest.mark.parametrize(
    ("times", "share", "message"),
    [(list(range(99)), 0.9, "99 events"), ([5] * 200, 0.9, "at one moment"), (list(range(200)), 1.0, "between")],
)
def test_what_cannot_be_split_is_refused(times: list[int], share: float, message: str):
    with pytest.raises(DataError, match=message):
        time_split(log_at(times), share)


def test_a_configuration_file_sets_what_it_names(tmp_path: Path):
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps({"retrieval": {"epochs": 2}, "ranking": {"fine_fit": {"epochs": 3}}}))
    config = read_config(path)
    assert config.retrieval.epochs == 2
    assert config.ranking.fine_fit.epochs == 3
    assert config.ranking.requests == RankingConfig().requests


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs: 2", r"unknown key 'epochs' at `\$`"),
        ("ranking: {fine_fit: {epoch: 2}}", r"unknown key 'epoch' at `\$\.ranking\.fine_fit`"),
        ("retrieval: {epoch: 2}", "'epoch'"),
        ("retrieval: {epochs: many}", r"\$\.retrieval\.epochs"),
        ("past_recalls: 0", r">= 1 - at `\$\.past_recalls`"),
        ("retrieval: {batch: 0}", r">= 1 - at `\$\.retrieval\.batch`"),
        ("ranking: {coarse_negatives: [-1, 2]}", r">= 0 - at `\$\.ranking\.coarse_negatives\[0\]`"),
        ("ranking: {rerank_share: 1.5}", r"<= 1\.0 - at `\$\.ranking\.rerank_share`"),
        ("ranking: {fine_fit: {learning_rate: .nan}}", r"> 0\.0 - at `\$\.ranking\.fine_fit\.learning_rate`"),
        # The seed of the command counts, not one of a single step.
        ("ranking: {seed: 5}", "unknown key 'seed'"),
        ("- 1", "object"),
        ("a: [", "c.yaml"),
    ],
)
def test_a_configuration_that_is_wrong_names_the_key(tmp_path: Path, text: str, message: str):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_config(path)
