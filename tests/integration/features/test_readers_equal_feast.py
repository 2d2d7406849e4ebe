"""Both readers give what get_online_features gives, bit for bit, whatever was written in whatever order."""

from __future__ import annotations

import math
import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from feast import FeatureStore
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import FloatList, Int64List, StringList, Value

from recgraph.errors import StageFailure
from recgraph.features.export import view_schema
from recgraph.features.feast_hash import FeastHashReader
from recgraph.features.online_store import PackedRedisOnlineStore
from recgraph.features.packed import PackedReader
from recgraph.features.reader import FeatureReader, ListColumn, ViewBlock
from recgraph.features.schema import ViewSchema

pytestmark = pytest.mark.integration

START = datetime(2024, 5, 1, tzinfo=UTC)
NOW_S = START.timestamp() + 3600.0
VIEWS = ("mixed_v1", "small_v1")
IDS = [f"i_{n}" for n in range(30)] + ["ключ", "日本", "a b:c*?[]", "é" * 100, "0", "\x00\n"]
SINGLES = [math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-45, 1.1754942e-38, 3.4028235e38, 0.1, -7.25]
DOUBLES = [*SINGLES, 5e-324, 1.7976931348623157e308, 0.1 + 0.2]
INTEGERS = [0, 1, -1, 2**63 - 1, -(2**63), 127, 128, 300]
TEXTS = ["", "plain", "ünï😀", "nul\x00and\x01A\x01B", " " * 200]


def pick(rng: np.random.Generator, pool: list[Any]) -> Any:
    return pool[int(rng.integers(len(pool)))]


def random_value(rng: np.random.Generator, dtype: str) -> Value:
    def several(pool: list[Any]) -> list[Any]:
        return [pick(rng, pool) for _ in range(int(rng.integers(0, 5)))]

    if rng.random() < 0.15:
        return Value()
    made = {
        "float32": lambda: Value(float_val=pick(rng, SINGLES)),
        "float64": lambda: Value(double_val=pick(rng, DOUBLES)),
        "int64": lambda: Value(int64_val=pick(rng, INTEGERS)),
        "text": lambda: Value(string_val=pick(rng, TEXTS)),
        "float32_list": lambda: Value(float_list_val=FloatList(val=several(SINGLES))),
        "int64_list": lambda: Value(int64_list_val=Int64List(val=several(INTEGERS))),
        "text_list": lambda: Value(string_list_val=StringList(val=several(TEXTS))),
    }
    return made[dtype]()


def entity_key(item: str) -> EntityKey:
    return EntityKey(join_keys=["item_id"], entity_values=[Value(string_val=item)])


def random_rows(rng: np.random.Generator, view: ViewSchema, size: int) -> list[tuple[Any, ...]]:
    """Rows with few distinct times, so that ties, repeats and rows out of order are common."""
    return [
        (
            entity_key(pick(rng, IDS[:-3])),
            {field.name: random_value(rng, field.dtype) for field in view.fields},
            START + timedelta(seconds=int(rng.integers(0, 9)), microseconds=int(rng.integers(0, 2))),
            None,
        )
        for _ in range(size)
    ]


def bits(value: Any, dtype: str) -> Any:
    if dtype.startswith("float"):
        code = "f" if dtype.startswith("float32") else "d"
        flat = list(value) if dtype.endswith("list") else [value]
        return [b"nan" if math.isnan(number) else struct.pack(code, number) for number in flat]
    return list(value) if dtype.endswith("list") else value


def proto_value(value: Value) -> Any:
    kind = value.WhichOneof("val")
    if kind is None:
        return None
    found = getattr(value, kind)
    return found.val if kind.endswith("list_val") else found


def assert_equal(store: FeatureStore, view: ViewSchema, block: ViewBlock, ids: list[str]) -> None:
    """Every value, null and event time of `block` is that of get_online_features."""
    features = [f"{view.name}:{field.name}" for field in view.fields]
    response = store.get_online_features(features, entity_rows=[{"item_id": item} for item in ids]).proto
    found = dict(zip(response.metadata.feature_names.val, response.results, strict=True))
    for field in view.fields:
        column = block.columns[field.name]
        for row, (value, stamp) in enumerate(
            zip(found[field.name].values, found[field.name].event_timestamps, strict=True)
        ):
            expected = proto_value(value)
            assert block.nulls[field.name][row] == (expected is None), (field, ids[row])
            assert block.event_time_us[row] == stamp.ToMicroseconds()
            if expected is not None:
                got = column.row(row) if isinstance(column, ListColumn) else column[row]
                assert bits(got, field.dtype) == bits(expected, field.dtype), (field, ids[row])


def schemas(store: FeatureStore) -> list[ViewSchema]:
    return [view_schema(store.get_feature_view(name)) for name in VIEWS]


def readers(redis_url: str) -> list[PackedReader | FeastHashReader]:
    return [PackedReader(redis_url, "shop"), FeastHashReader(redis_url, "shop")]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("seed", range(4))
async def test_equal_after_any_writes(
    shop: FeatureStore, online: PackedRedisOnlineStore, redis_url: str, seed: int, asynchronous: bool
) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(4):
        for view in schemas(shop):
            table, rows = shop.get_feature_view(view.name), random_rows(rng, view, 60)
            if asynchronous:
                await online.online_write_batch_async(shop.config, table, rows, None)
            else:
                online.online_write_batch(shop.config, table, rows, None)
    if asynchronous:
        await (await online._get_client_async(shop.config.online_store)).aclose()

    ids = [*IDS, IDS[3], "i_3"]
    for reader in readers(redis_url):
        blocks = await reader.read("item", schemas(shop), ids, now_s=NOW_S, timeout_s=5)
        await reader.aclose()
        for view in schemas(shop):
            assert_equal(shop, view, blocks[view.role], ids)
            assert blocks[view.role].missing[len(IDS) - 3 : len(IDS)].all()
            assert not blocks[view.role].stale.any()


async def test_both_readers_withhold_what_is_older_than_the_ttl(
    shop: FeatureStore, online: PackedRedisOnlineStore, redis_url: str
) -> None:
    view = schemas(shop)[1]
    row = (entity_key("a"), {"score": Value(float_val=1.5), "count": Value(int64_val=3)}, START, None)
    online.online_write_batch(shop.config, shop.get_feature_view(view.name), [row], None)
    at_ttl = START.timestamp() + view.ttl_s
    for reader in readers(redis_url):
        for now_s, stale in ((at_ttl, False), (at_ttl + 0.001, True)):
            block = (await reader.read("item", [view], ["a", "b"], now_s=now_s, timeout_s=5))["small"]
            assert block.stale.tolist() == [stale, False]
            assert block.missing.tolist() == [False, True]
            assert block.columns["count"].tolist() == [0 if stale else 3, 0]  # type: ignore[union-attr]
            assert block.nulls["score"].tolist() == [stale, True]
        await reader.aclose()


async def test_no_ids_need_no_redis() -> None:
    view = ViewSchema("small_v1", "item", 0, ())
    for reader in (PackedReader("redis://127.0.0.1:1", "shop"), FeastHashReader("redis://127.0.0.1:1", "shop")):
        kind: FeatureReader = reader
        blocks = await kind.read("item", [view], [], now_s=NOW_S, timeout_s=1)
        assert blocks["small"].rows == 0


async def test_a_value_of_another_type_names_view_and_field(
    shop: FeatureStore, online: PackedRedisOnlineStore, redis_url: str
) -> None:
    view = schemas(shop)[1]
    row = (entity_key("a"), {"score": Value(float_val=1.5), "count": Value(int64_val=3)}, START, None)
    online.online_write_batch(shop.config, shop.get_feature_view(view.name), [row], None)
    fields = tuple(type(field)(field.name, "text") for field in view.fields)
    other = ViewSchema(view.name, "item", 0, fields)
    for reader in readers(redis_url):
        with pytest.raises(StageFailure, match=r"features_schema: view small_v1"):
            await reader.read("item", [other], ["a"], now_s=NOW_S, timeout_s=5)
        await reader.aclose()
