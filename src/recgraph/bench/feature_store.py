"""A filled online store to measure against: feast_repo/ applied over an embedded Redis, random values everywhere."""

from __future__ import annotations

import runpy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from feast import Entity, FeatureService, FeatureStore, FeatureView, RepoConfig
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import FloatList, Int64List, StringList, Value

from recgraph.errors import DataError
from recgraph.features.export import feature_set
from recgraph.features.online_store import PackedRedisOnlineStore
from recgraph.features.schema import FeatureSet, Field, ViewSchema
from recgraph.redis_process import start_redis

_CLICKS = 50
_SEEN = 200
_CATEGORIES = 20


@dataclass(frozen=True)
class FilledStore:
    """What a measurement needs: Feast's store, our schema of it, and where its Redis is."""

    store: FeatureStore
    features: FeatureSet
    redis_url: str
    now_s: float


@contextmanager
def filled_store(repo: Path, items: Sequence[str], users: Sequence[str], seed: int = 0) -> Iterator[FilledStore]:
    """The definitions of `repo` in a registry and a Redis of their own, gone afterwards; with all views."""
    definitions = _definitions(repo)
    now = datetime.now(UTC)
    with TemporaryDirectory(prefix="recgraph-bench-") as folder, start_redis(Path(folder), persist=False) as redis:
        store = FeatureStore(config=feast_config(Path(folder), redis.url, "recgraph"))
        store.apply(definitions)
        features = feature_set(store)
        rng, online = np.random.default_rng(seed), PackedRedisOnlineStore()
        for view in features.views:
            rows = [_row(rng, view, key, now, items) for key in (items if view.entity == "item" else users)]
            online.online_write_batch(store.config, store.get_feature_view(view.name), rows, None)
        yield FilledStore(store, features, redis.url, now.timestamp())


def _definitions(repo: Path) -> list[Any]:
    path = repo / "definitions.py"
    if not path.is_file():
        raise DataError(f"{path} is not there: run this beside feast_repo/, or say where it is with --repo")
    found = runpy.run_path(str(path)).values()
    return [value for value in found if isinstance(value, Entity | FeatureView | FeatureService)]


def feast_config(folder: Path, redis_url: str, project: str, **online: Any) -> RepoConfig:
    """The configuration of feast_repo/, with the registry in `folder`; `online` are settings of the online store."""
    return RepoConfig(
        project=project,
        provider="local",
        registry={"registry_type": "sql", "path": f"sqlite:///{folder}/{project}.db", "cache_ttl_seconds": 3600},
        offline_store={"type": "duckdb"},
        online_store={
            "type": "recgraph.features.online_store.PackedRedisOnlineStore",
            "connection_string": redis_url,
            **online,
        },
        entity_key_serialization_version=3,
        repo_path=folder,
    )


def _row(rng: np.random.Generator, view: ViewSchema, key: str, now: datetime, items: Sequence[str]) -> tuple[Any, ...]:
    """A row as Feast's online stores take it."""
    entity = EntityKey(join_keys=[f"{view.entity}_id"], entity_values=[Value(string_val=key)])
    size = {"user_clicks": _CLICKS, "user_seen": _SEEN}.get(view.role, 3)
    values = {field.name: _value(rng, field, size, items, now.timestamp()) for field in view.fields}
    return entity, values, now, None


def _value(rng: np.random.Generator, field: Field, size: int, items: Sequence[str], now_s: float) -> Value:
    number = float(np.float32(rng.gamma(1.0, 20.0)))
    categories = [f"category {n}" for n in rng.integers(0, _CATEGORIES, size)]
    if field.dtype == "float32":
        return Value(float_val=number)
    if field.dtype == "float64":
        return Value(double_val=number)
    if field.dtype == "int64":
        return Value(int64_val=int(now_s - 1000 * number))
    if field.dtype == "text":
        return Value(string_val=categories[0] if field.name == "category" else f"{field.name} number {number:.0f}")
    if field.dtype == "float32_list":
        return Value(float_list_val=FloatList(val=rng.random(size)))
    if field.dtype == "int64_list":
        return Value(int64_list_val=Int64List(val=(int(now_s) - np.arange(size) * 3600).tolist()))
    words = [items[n] for n in rng.integers(0, len(items), size)] if field.name == "item_ids" else categories
    return Value(string_list_val=StringList(val=words))
