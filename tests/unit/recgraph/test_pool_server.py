"""The pool server against a real Redis: what it answers, and what stays when Redis and the snapshot go."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from recgraph.bundle import FORMAT_VERSION, DataWindow, Lineage, Manifest
from recgraph.cache import RedisCache, publish_pools
from recgraph.pool_server import HotPools, make_app
from recgraph.redis_process import start_redis
from recgraph.scenes import Scenes, parse_scenes

SCENES = """
scenes:
  home_feed:
    page_size: 3
    filters: {blocklist: [blocked]}
    rules: {exclude: {items: [excluded]}}
  alias: {page_size: 2, pools: {scene: home_feed}}
  empty: {}
  fixed: {pools: {fixed: [f1, blocked]}}
"""
SNAPSHOT = {"home_feed": {"hot": [["s1", 2.0], ["s2", 1.0]], "fresh": [["never", 9.0]]}}


@pytest_asyncio.fixture
async def cache(redis_url: str) -> AsyncIterator[RedisCache]:
    cache = RedisCache(redis_url, last_ttl_s=60, record_ttl_s=60)
    yield cache
    await cache.aclose()


@pytest.fixture
def scenes() -> Scenes:
    return Scenes(parse_scenes(SCENES, "scenes.yaml"))


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    (tmp_path / "pools.json").write_text(json.dumps(SNAPSHOT))
    return tmp_path


async def ask(pools: HotPools, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    transport = httpx.ASGITransport(make_app(pools, refresh_s=60))
    async with httpx.AsyncClient(transport=transport, base_url="http://pools") as client:
        return await client.get(path, headers=headers)


def ids(pools: HotPools, scene: str) -> list[str]:
    return [item.item_id for item in pools.page(scene)]


async def test_pool_comes_from_redis_in_its_order_without_what_the_scene_blocks(
    redis_url: str, cache: RedisCache, scenes: Scenes, snapshot: Path
) -> None:
    rows = [("a", 1.0), ("b", 5.0), ("blocked", 9.0), ("excluded", 8.0), ("ü", 4.0), ("c", 0.5)]
    publish_pools(redis_url, {"home_feed": {"hot": rows}})
    pools = HotPools(scenes, snapshot, cache)
    await pools.refresh()
    assert ids(pools, "home_feed") == ["b", "ü", "a"]
    assert ids(pools, "alias") == ["blocked", "excluded"]  # the same pool, but a configuration of its own


async def test_answer_has_the_clients_form(cache: RedisCache, scenes: Scenes, snapshot: Path) -> None:
    pools = HotPools(scenes, snapshot, cache)
    await pools.refresh()
    response = await ask(pools, "/pools/home_feed", {"x-request-id": "r1", "x-recgraph-last-resort": "graph_timeout"})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    expected: dict[str, Any] = {
        "request_id": "r1",
        "items": [{"item_id": item, "score": 0.0, "source": "hot"} for item in ("s1", "s2")],
        "degraded": [{"stage": "gateway", "reason": "graph_timeout", "action": "hot_pool"}],
        "bundle": None,
        "arm": {},
    }
    assert response.json() == expected


async def test_request_id_is_utf8_and_made_where_there_is_none(
    cache: RedisCache, scenes: Scenes, snapshot: Path
) -> None:
    pools = HotPools(scenes, snapshot, cache)
    await pools.refresh()
    transport = httpx.ASGITransport(make_app(pools, refresh_s=60))
    async with httpx.AsyncClient(transport=transport, base_url="http://pools") as client:
        given = await client.get("/pools/home_feed", headers=[(b"x-request-id", "für-1".encode())])
        none = await client.get("/pools/home_feed")
    assert given.json()["request_id"] == "für-1"
    assert none.json()["request_id"].startswith("req_")


async def test_unknown_reason_is_not_repeated(cache: RedisCache, scenes: Scenes, snapshot: Path) -> None:
    pools = HotPools(scenes, snapshot, cache)
    await pools.refresh()
    response = await ask(pools, "/pools/home_feed", {"x-recgraph-last-resort": "<script>"})
    assert response.json()["degraded"][0]["reason"] == "graph_unavailable"


@pytest.mark.parametrize("scene", ["nobody_knows", "-", "empty", "a/b", "..%2Fx", "%C3%BC"])
async def test_unknown_or_empty_scene_gets_the_default_scenes_pool(
    scene: str, cache: RedisCache, scenes: Scenes, snapshot: Path
) -> None:
    pools = HotPools(scenes, snapshot, cache, default_scene="home_feed")
    await pools.refresh()
    response = await ask(pools, f"/pools/{scene}")
    assert [item["item_id"] for item in response.json()["items"]] == ["s1", "s2"]


async def test_scenes_fixed_list_where_there_is_no_pool(cache: RedisCache, scenes: Scenes, tmp_path: Path) -> None:
    pools = HotPools(scenes, tmp_path / "missing", cache)
    await pools.refresh()
    assert [(item.item_id, item.source) for item in pools.page("fixed")] == [("f1", "fixed"), ("blocked", "fixed")]


async def test_503_and_not_ready_until_there_is_a_pool(cache: RedisCache, scenes: Scenes, tmp_path: Path) -> None:
    path = tmp_path / "pools.json"
    pools = HotPools(scenes, tmp_path, cache, default_scene="home_feed")
    await pools.refresh()
    assert (await ask(pools, "/pools/home_feed")).status_code == 503
    assert (await ask(pools, "/readyz")).status_code == 503
    assert (await ask(pools, "/livez")).status_code == 200
    path.write_text("{damaged")
    await pools.refresh()
    assert (await ask(pools, "/readyz")).status_code == 503
    path.write_text(json.dumps(SNAPSHOT))
    await pools.refresh()
    assert (await ask(pools, "/readyz")).status_code == 200
    assert ids(pools, "home_feed") == ["s1", "s2"]


async def test_what_was_read_last_stays_while_redis_is_down(
    scenes: Scenes, snapshot: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start_redis(tmp_path / "redis", persist=False) as server:
        publish_pools(server.url, {"home_feed": {"hot": [("live", 1.0)]}})
        cache = RedisCache(server.url, last_ttl_s=60, record_ttl_s=60)
        pools = HotPools(scenes, snapshot, cache)
        await pools.refresh()
    await pools.refresh()
    await pools.refresh()
    await cache.aclose()
    assert ids(pools, "home_feed") == ["live"]
    assert caplog.text.count("the cache Redis does not answer") == 1


async def test_newest_bundle_of_a_folder_is_the_snapshot(cache: RedisCache, scenes: Scenes, tmp_path: Path) -> None:
    for version, created in (("b", "2026-01-01T00:00:00Z"), ("a", "2026-02-01T00:00:00Z")):
        window = DataWindow(start=0, split=1, end=2)
        lineage = Lineage("", "", {}, data_window=window, seed=0, parameters={})
        manifest = Manifest(FORMAT_VERSION, version, created, "", files={}, metrics={}, lineage=lineage)
        (tmp_path / version).mkdir()
        (tmp_path / version / "manifest.json").write_bytes(msgspec.json.encode(manifest))
        pools = {"home_feed": {"hot": [[f"of-{version}", 1.0]]}}
        (tmp_path / version / "pools.json").write_text(json.dumps(pools))
    hot = HotPools(scenes, tmp_path, cache)
    await hot.refresh()
    assert ids(hot, "home_feed") == ["of-a"]
