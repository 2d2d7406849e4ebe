"""A small Feast project with every dtype, over the embedded Redis."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from datetime import timedelta

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from feast import Entity, FeatureStore, FeatureView, Field, FileSource, ValueType
    from feast.types import Array, Float32, Float64, Int64, String

    from recgraph.bench.feature_store import feast_config
    from recgraph.features.online_store import PackedRedisOnlineStore

MIXED = {
    "words": Array(String),
    "score": Float32,
    "numbers": Array(Int64),
    "title": String,
    "exact": Float64,
    "count": Int64,
    "weights": Array(Float32),
    "creator": String,
}
SMALL = {"score": Float32, "count": Int64}
ITEM = Entity(name="item", join_keys=["item_id"], value_type=ValueType.STRING)


def feature_view(name: str, fields: dict[str, object]) -> FeatureView:
    """A view of items; its source is never read."""
    schema = [Field(name="item_id", dtype=String), *(Field(name=key, dtype=dtype) for key, dtype in fields.items())]
    source = FileSource(name=f"{name}_source", path=f"/nowhere/{name}.parquet", timestamp_field="event_timestamp")
    return FeatureView(name=name, entities=[ITEM], ttl=timedelta(days=10), schema=schema, source=source)


@pytest.fixture(scope="session")
def applied(tmp_path_factory: pytest.TempPathFactory, redis_process: object) -> FeatureStore:
    """The applied project `shop` with the views mixed_v1 and small_v1."""
    folder = tmp_path_factory.mktemp("feast")
    store = FeatureStore(config=feast_config(folder, redis_process.url, "shop"))  # type: ignore[attr-defined]
    store.apply([ITEM, feature_view("mixed_v1", MIXED), feature_view("small_v1", SMALL)])
    return store


@pytest.fixture
def shop(applied: FeatureStore, redis_url: str) -> FeatureStore:
    """The applied project over an empty Redis."""
    return applied


@pytest.fixture
def online(shop: FeatureStore) -> Iterator[PackedRedisOnlineStore]:
    """A store of our plugin, as a writing process has it."""
    store = PackedRedisOnlineStore()
    yield store
    store._get_client(shop.config.online_store).close()
