"""feast_repo/ through Feast's own command: apply, materialize, and nothing from the future anywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from feast import FeatureStore

from recgraph.features.export import feature_set
from recgraph.features.feast_hash import FeastHashReader
from recgraph.features.packed import PackedReader
from recgraph.features.point_in_time import PointInTimeReader
from recgraph.features.reader import ListColumn
from recgraph.features.schema import FeatureSet, ViewSchema
from recgraph.redis_process import RedisProcess, start_redis

# ibis, DuckDB and pandas warn of each other.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

REPO = Path(__file__).parents[3] / "feast_repo"
START = datetime(2024, 1, 1, tzinfo=UTC)
END = START + timedelta(days=22)
FUTURE, LATE = 777.0, 999.0
ITEMS, USERS = ["i_1", "i_2", "предмет", "i_4"], ["u_1", "u_2"]
TYPES = {
    "float32": pa.float32(),
    "int64": pa.int64(),
    "text": pa.string(),
    "float32_list": pa.list_(pa.float32()),
    "int64_list": pa.list_(pa.int64()),
    "text_list": pa.list_(pa.string()),
}


@dataclass(frozen=True)
class Repo:
    """A copy of feast_repo/ with its own workspace, applied and materialized up to END."""

    store: FeatureStore
    features: FeatureSet
    offline: Path
    redis_url: str


# item -> (event day, created day, value of the first number); day 30 is after END, day 15's row came late.
HISTORY = {
    "i_1": [(10, 10, 1.0), (20, 20, 2.0), (15, 25, LATE), (30, 30, FUTURE)],
    "i_2": [(5, 5, 3.0), (12, 28, LATE)],
    "предмет": [(8, 9, 4.0), (8, 8, 5.0)],
    "i_4": [(30, 30, FUTURE)],
    "u_1": [(3, 3, 6.0), (21, 21, 7.0), (23, 23, FUTURE)],
    "u_2": [(2, 2, 8.0)],
}


def value(dtype: str, number: float) -> Any:
    """A value of a dtype that tells which row it is from; some are null or empty."""
    made: dict[str, Any] = {
        "float32": number,
        "int64": int(number),
        "text": None if number == 4.0 else f"t{number:g} é",
        "float32_list": [number, -0.0],
        "int64_list": [] if number == 2.0 else [int(number), 2**41],
        "text_list": [] if number in (3.0, 7.0) else [f"w{number:g}", "ü"],
    }
    return made[dtype]


def write_source(folder: Path, role: str, entity: str, fields: list[tuple[str, str]]) -> None:
    ids = ITEMS if entity == "item" else USERS
    rows = [(key, *row) for key in ids for row in HISTORY[key]]
    day = lambda number: START + timedelta(days=number)  # noqa: E731
    columns = {
        f"{entity}_id": pa.array([row[0] for row in rows]),
        "event_timestamp": pa.array([day(row[1]) for row in rows], pa.timestamp("us", "UTC")),
        "created": pa.array([day(row[2]) for row in rows], pa.timestamp("us", "UTC")),
    }
    for name, dtype in fields:
        columns[name] = pa.array([value(dtype, row[3]) for row in rows], TYPES[dtype])
    pq.write_table(pa.table(columns), folder / f"{role}.parquet")


def feast(repo: Path, *arguments: str) -> None:
    """Runs the ordinary command in the repository's folder."""
    command = [str(Path(sys.executable).parent / "feast"), *arguments]
    done = subprocess.run(command, cwd=repo, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def online_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    """A Redis of this module's own: its data are made once and read by several tests."""
    with start_redis(tmp_path_factory.mktemp("online"), persist=False) as process:
        yield process


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory, online_redis: RedisProcess) -> Iterator[Repo]:
    """The materialized copy. RECGRAPH_OFFLINE and RECGRAPH_REGISTRY are not set: the defaults beside the copy count."""
    home = tmp_path_factory.mktemp("checkout")
    copy, offline = home / "feast_repo", home / ".recgraph" / "offline"
    shutil.copytree(REPO, copy, ignore=shutil.ignore_patterns("__pycache__"))
    offline.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RECGRAPH_OFFLINE", raising=False)
        patch.delenv("RECGRAPH_REGISTRY", raising=False)
        patch.setenv("RECGRAPH_FEATURES_REDIS", online_redis.url)
        feast(copy, "apply")
        patch.chdir(copy)
        store = FeatureStore(copy)
        features = feature_set(store)
        for view in features.views:
            write_source(offline, view.role, view.entity, [(field.name, field.dtype) for field in view.fields])
        feast(copy, "materialize", START.strftime("%Y-%m-%dT%H:%M:%S"), END.strftime("%Y-%m-%dT%H:%M:%S"))
        yield Repo(store, features, offline, online_redis.url)


def test_the_tests_without_feast_use_the_same_views(repo: Repo) -> None:
    path = Path(__file__).parents[2] / "features.json"
    expected = msgspec.json.format(msgspec.json.encode(repo.features, order="sorted"), indent=1).decode() + "\n"
    assert path.read_text(encoding="utf-8") == expected, f"{path} is a copy of what feast_repo/ defines"


def test_the_registry_is_where_the_default_says(repo: Repo) -> None:
    assert (repo.offline.parent / "registry.db").is_file()


def test_the_exported_set_is_the_design_s(repo: Repo) -> None:
    views = {view.name: view for view in repo.features.views}
    assert {name: (view.entity, view.ttl_s // 86400, len(view.fields)) for name, view in views.items()} == {
        "item_profile_v1": ("item", 0, 6),
        "item_stats_v1": ("item", 91, 25),
        "user_clicks_v1": ("user", 91, 3),
        "user_profile_v1": ("user", 91, 14),
        "user_seen_v1": ("user", 0, 1),
    }
    assert list(repo.features.services) == ["coarse", "fine", "recall", "rerank"]
    assert [view.role for view in repo.features.of_stage("fine", "item")] == ["item_profile", "item_stats"]
    assert [view.role for view in repo.features.of_stage("recall", "user")] == [
        "user_clicks",
        "user_profile",
        "user_seen",
    ]
    again = msgspec.json.decode(msgspec.json.encode(repo.features), type=FeatureSet)
    assert again == repo.features


def cell(column: Any, row: int) -> Any:
    return list(column.row(row)) if isinstance(column, ListColumn) else column[row]


@pytest.mark.parametrize("entity", ["user", "item"])
async def test_an_online_read_is_what_feast_reads_and_has_no_future(repo: Repo, entity: str) -> None:
    ids = [*(ITEMS if entity == "item" else USERS), "nobody"]
    views = [view for view in repo.features.views if view.entity == entity]
    for reader in (PackedReader(repo.redis_url, "recgraph"), FeastHashReader(repo.redis_url, "recgraph")):
        blocks = await reader.read(entity, views, ids, now_s=END.timestamp(), timeout_s=5)  # type: ignore[arg-type]
        await reader.aclose()
        for view in views:
            names = [f"{view.name}:{field.name}" for field in view.fields]
            feast_says = repo.store.get_online_features(names, [{f"{entity}_id": key} for key in ids]).to_dict()
            block = blocks[view.role]
            for field in view.fields:
                for row, expected in enumerate(feast_says[field.name]):
                    assert block.nulls[field.name][row] == (expected is None)
                    if expected is not None:
                        assert cell(block.columns[field.name], row) == expected
                        assert str(int(FUTURE)) not in str(expected)
    assert blocks["item_stats" if entity == "item" else "user_profile"].missing[-1]


async def test_the_values_are_those_of_before_the_end(repo: Repo) -> None:
    reader = PackedReader(repo.redis_url, "recgraph")
    views = repo.features.of_stage("fine", "item")
    block = (await reader.read("item", views, ITEMS, now_s=END.timestamp(), timeout_s=5))["item_stats"]
    await reader.aclose()
    assert block.columns["clicks_7d"].tolist()[:1] == [2.0]  # type: ignore[union-attr]
    assert block.missing.tolist() == [False, False, False, True]


def history(repo: Repo, view: ViewSchema, keys: list[str], days: list[float]) -> pd.DataFrame:
    """Feast's own point-in-time join, in the order of the questions."""
    moments = pd.to_datetime([START + timedelta(days=day) for day in days], utc=True)
    key = f"{view.entity}_id"
    asked = pd.DataFrame({key: keys, "event_timestamp": moments, "row": range(len(keys))})
    names = [f"{view.name}:{field.name}" for field in view.fields]
    job = repo.store.get_historical_features(asked, names, filter_by_created_timestamp=True)
    return job.to_df().sort_values("row").reset_index(drop=True)


@pytest.mark.parametrize("name", ["item_stats_v1", "user_clicks_v1"])
def test_a_training_row_is_feast_s_and_has_no_future(repo: Repo, name: str) -> None:
    view = next(view for view in repo.features.views if view.name == name)
    own = ITEMS if view.entity == "item" else USERS
    days = [1, 5, 8, 8.5, 9, 10, 14, 15, 20, 22, 24, 25, 29, 30, 96, 100.9, 101, 101.1, 111, 111.1, 125]
    keys, times = [key for key in own for _ in days], [day for _ in own for day in days]
    times_us = np.array([round((START + timedelta(days=day)).timestamp() * 1e6) for day in times])

    block = PointInTimeReader(repo.offline).read_at([view], keys, times_us)[view.role]
    frame = history(repo, view, keys, times)

    first = view.fields[0].name
    for row, (key, day) in enumerate(zip(keys, times, strict=True)):
        for field in view.fields:
            expected, got = frame[field.name][row], cell(block.columns[field.name], row)
            if block.nulls[field.name][row]:
                assert expected is None or expected is pd.NaT or np.isnan(expected)
            else:
                assert list(expected) == got if isinstance(got, list) else expected == got
        known = {value for event, created, value in HISTORY[key] if event <= day and created <= day}
        if not block.nulls[first][row] and view.entity == "item":
            assert cell(block.columns[first], row) in known


def test_environment_variables_take_the_place_of_defaults(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECGRAPH_REGISTRY", f"sqlite:///{tmp_path}/deep/other.db")
    FeatureStore(Path(os.getcwd())).list_feature_views()
    assert (tmp_path / "deep" / "other.db").is_file()
