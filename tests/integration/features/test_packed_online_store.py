"""The Feast plugin: which write wins, what is deleted, and what is refused."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, ValueType
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.types import Bool, String
from pydantic import ValidationError

from recgraph.errors import DataError
from recgraph.features.export import view_schema
from recgraph.features.online_store import PackedRedisOnlineStore, PackedRedisOnlineStoreConfig
from recgraph.features.packed import PackedReader

pytestmark = pytest.mark.integration

START = datetime(2024, 5, 1, tzinfo=UTC)


def row(item: str, second: float, count: int) -> tuple[Any, ...]:
    key = EntityKey(join_keys=["item_id"], entity_values=[Value(string_val=item)])
    values = {"score": Value(float_val=count / 2), "count": Value(int64_val=count)}
    return key, values, START + timedelta(seconds=second), None


def write(store: FeatureStore, online: PackedRedisOnlineStore, rows: list[tuple[Any, ...]]) -> None:
    online.online_write_batch(store.config, store.get_feature_view("small_v1"), rows, None)


async def counts(store: FeatureStore, redis_url: str, ids: list[str], project: str = "shop") -> list[int | None]:
    reader = PackedReader(redis_url, project)
    view = view_schema(store.get_feature_view("small_v1"))
    block = (await reader.read("item", [view], ids, now_s=START.timestamp(), timeout_s=5))["small"]
    await reader.aclose()
    return [None if gone else int(count) for count, gone in zip(block.columns["count"], block.missing, strict=True)]  # type: ignore[arg-type]


async def test_an_older_or_equal_row_changes_nothing(
    shop: FeatureStore, online: PackedRedisOnlineStore, redis_url: str
) -> None:
    write(shop, online, [row("a", 10, 1)])
    write(shop, online, [row("a", 9.999999, 2), row("a", 10, 3)])
    assert await counts(shop, redis_url, ["a"]) == [1]
    write(shop, online, [row("a", 10.000001, 4), row("a", 10, 5)])
    assert await counts(shop, redis_url, ["a"]) == [4]


async def test_times_beyond_32_bits_of_microseconds_are_compared_whole(
    shop: FeatureStore, online: PackedRedisOnlineStore, redis_url: str
) -> None:
    for second, count in ((0.0, 1), (4294.967295, 2), (4294.967296, 3), (4294.967294, 9), (10**9, 4), (10**9 - 1, 9)):
        write(shop, online, [row("a", second, count)])
    assert await counts(shop, redis_url, ["a"]) == [4]


async def test_skip_dedup_lets_the_last_row_win(applied: FeatureStore, redis_url: str, tmp_path: Path) -> None:
    config = applied.config.model_copy()
    config._online_store = PackedRedisOnlineStoreConfig(connection_string=redis_url, skip_dedup=True)
    online = PackedRedisOnlineStore()
    online.online_write_batch(config, applied.get_feature_view("small_v1"), [row("a", 9, 1), row("a", 5, 2)], None)
    assert await counts(applied, redis_url, ["a"]) == [2]
    online._get_client(config.online_store).close()


async def test_of_many_writers_the_newest_row_wins(shop: FeatureStore, redis_url: str) -> None:
    ids = [f"i_{n}" for n in range(40)]
    rng = np.random.default_rng(1)
    orders = [rng.permutation(60) for _ in range(4)]

    def writer(order: np.ndarray[Any, Any]) -> None:
        online = PackedRedisOnlineStore()
        for second in order.tolist():
            write(shop, online, [row(item, second, second) for item in ids])
        online._get_client(shop.config.online_store).close()

    threads = [threading.Thread(target=writer, args=(order[part::1],)) for part, order in enumerate(orders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert await counts(shop, redis_url, ids) == [59] * len(ids)


async def test_key_ttl_expires_blobs(applied: FeatureStore, redis_url: str) -> None:
    config = applied.config.model_copy()
    config._online_store = PackedRedisOnlineStoreConfig(connection_string=redis_url, key_ttl_seconds=50)
    online = PackedRedisOnlineStore()
    online.online_write_batch(config, applied.get_feature_view("small_v1"), [row("a", 9, 1)], None)
    client = online._get_client(config.online_store)
    assert 45 <= client.ttl(b"rg:shop:small_v1:a") <= 50
    client.expire(b"rg:shop:small_v1:a", 10)
    online.online_write_batch(config, applied.get_feature_view("small_v1"), [row("a", 8, 1)], None)
    assert client.ttl(b"rg:shop:small_v1:a") <= 10
    client.close()


def other_project(store: FeatureStore, project: str) -> Any:
    config = store.config.model_copy()
    config.project = project
    return config


async def test_a_removed_view_takes_its_blobs_along(
    shop: FeatureStore, online: PackedRedisOnlineStore, redis_url: str
) -> None:
    view, mixed = shop.get_feature_view("small_v1"), shop.get_feature_view("mixed_v1")
    both = [row("a", 1, 1), row("b", 1, 2)]
    write(shop, online, both)
    nothing = {feature.name: Value() for feature in mixed.features}
    online.online_write_batch(shop.config, mixed, [(both[0][0], nothing, START, None)], None)
    online.online_write_batch(other_project(shop, "prod_shop"), view, both, None)

    online.update(shop.config, [view], [mixed], [], [], partial=False)

    assert await counts(shop, redis_url, ["a", "b"]) == [None, None]
    assert await counts(shop, redis_url, ["a", "b"], "prod_shop") == [1, 2]
    client = online._get_client(shop.config.online_store)
    assert client.exists(b"rg:shop:mixed_v1:a")
    hashes = [key for key in client.scan_iter() if not key.startswith(b"rg:")]
    assert sorted(key.endswith(b"prod_shop") for key in hashes) == [False, True, True]
    assert [len(client.hkeys(key)) for key in hashes if not key.endswith(b"prod_shop")] == [len(mixed.features) + 1]


@pytest.mark.parametrize("way", ["entities", "teardown"])
async def test_deleting_entities_spares_other_projects(
    shop: FeatureStore, online: PackedRedisOnlineStore, redis_url: str, way: str
) -> None:
    view = shop.get_feature_view("small_v1")
    write(shop, online, [row("a", 1, 1), row("*", 1, 2)])
    online.online_write_batch(other_project(shop, "prod_shop"), view, [row("a", 1, 3)], None)
    if way == "entities":
        online.delete_entity_values(shop.config, ["item_id"])
    else:
        with redis.Redis.from_url(redis_url) as client:
            client.set(b"rg:shop:gone_v1:a", b"left behind")
        online.teardown(shop.config, [view], [])
    assert await counts(shop, redis_url, ["a", "*"]) == [None, None]
    assert await counts(shop, redis_url, ["a"], "prod_shop") == [3]
    with redis.Redis.from_url(redis_url) as client:
        assert len(client.keys()) == 2


def test_what_cannot_be_packed_fails_at_apply(shop: FeatureStore, online: PackedRedisOnlineStore) -> None:
    view = FeatureView(
        name="flags_v1",
        entities=[Entity(name="item", join_keys=["item_id"], value_type=ValueType.STRING)],
        schema=[Field(name="item_id", dtype=String), Field(name="flag", dtype=Bool)],
        source=FileSource(path="/nowhere/flags.parquet", timestamp_field="event_timestamp"),
    )
    with pytest.raises(DataError, match="view flags_v1, field flag: Bool cannot be packed"):
        online.update(shop.config, [], [view], [], [], partial=False)


def test_a_row_that_lacks_a_field_is_named(shop: FeatureStore, online: PackedRedisOnlineStore) -> None:
    key, _, time, _ = row("a", 1, 1)
    with pytest.raises(DataError, match="view small_v1: a row lacks field score"):
        write(shop, online, [(key, {"count": Value(int64_val=1)}, time, None)])


def test_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECGRAPH_FEATURES_REDIS", raising=False)
    unset = PackedRedisOnlineStoreConfig(connection_string="${RECGRAPH_FEATURES_REDIS}")
    assert unset.connection_string == "127.0.0.1:6379,socket_timeout=10,socket_connect_timeout=2"
    own = PackedRedisOnlineStoreConfig(connection_string="redis://h:1/3?socket_timeout=4")
    assert own.connection_string == "h:1,socket_timeout=4,db=3,socket_connect_timeout=2"
    with pytest.raises(ValidationError, match="MGET"):
        PackedRedisOnlineStoreConfig(redis_type="redis_cluster")


def test_only_users_and_items(shop: FeatureStore) -> None:
    shops = Entity(name="shop", join_keys=["shop_id"], value_type=ValueType.STRING)
    view = shop.get_feature_view("small_v1")
    view.entity_columns[0].name = "shop_id"
    view.entities = [shops.name]
    with pytest.raises(DataError, match=r"small_v1 has the join keys \['shop_id'\]"):
        view_schema(view)
