"""The last resort before the operator's fixed pool: the hot pool of a scene over HTTP, for the gateway.

`GET /pools/{scene}` answers in the client's form, from memory alone. The pools come from the cache Redis and are read
again every few seconds; what was read last stays while Redis is down, and where nothing was read yet the bundle's
snapshot (pools.json) serves. There is no model, no feature and no stage in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from recgraph import logs
from recgraph.bundle.store import POOLS, Pools, latest
from recgraph.cache import Cache, RedisCache
from recgraph.contract import Answer, AnswerItem, Degraded, new_request_id
from recgraph.errors import BundleError, StageFailure
from recgraph.scenes import Scene, SceneFileWatch, Scenes
from recgraph.settings import Settings

REASONS: Final = frozenset({"graph_unavailable", "graph_timeout", "graph_error"})
"""Why the gateway came here, as its header X-Recgraph-Last-Resort says."""

_READ_TIMEOUT_S: Final = 0.5
_SPARE: Final = 500
"""Items kept beyond a page, for those that the scene's configuration takes out."""

_log = logging.getLogger(__name__)


class HotPools:
    """The hot pools in memory, by scene."""

    def __init__(self, scenes: Scenes, snapshot: Path, cache: Cache, default_scene: str = "") -> None:
        """`snapshot` is a bundle or a folder of bundles (then the newest counts), and may come later.

        An unknown scene gets `default_scene`'s pool; without one, that of the first scene by name.
        """
        self._scenes = scenes
        self._snapshot = snapshot
        self._cache = cache
        self._default_scene = default_scene
        self._kept: Pools = {}
        self._live: dict[str, list[str]] = {}
        self._cache_failed = False

    def page(self, scene: str) -> list[AnswerItem]:
        """A page for the scene, without what its configuration blocks; empty when there is no pool at all.

        Rules on categories and creators are not applied: nothing here knows an item's category.
        """
        scenes = self._scenes.current()
        default = self._default_scene if self._default_scene in scenes else min(scenes)
        own = self._page_of(scenes[scene], scene) if scene in scenes else []
        return own or self._page_of(scenes[default], default)

    async def refresh(self) -> None:
        """Read the pools again. What cannot be read stays as it is."""
        if not self._kept:
            self._kept = _read_snapshot(self._snapshot)
        try:
            for name, scene in self._scenes.current().items():
                await self._refresh_scene(scene.pools.scene or name, scene.page_size)
        except StageFailure as error:
            if not self._cache_failed:
                _log.warning("the cache Redis does not answer, the pools stay as they are: %s", error)
            self._cache_failed = True
        else:
            self._cache_failed = False

    async def refresh_forever(self, every_s: float) -> None:
        """Refresh now and then every `every_s` seconds."""
        while True:
            await self.refresh()
            await asyncio.sleep(every_s)

    async def _refresh_scene(self, name: str, page_size: int) -> None:
        items = await self._cache.pool(name, "hot", page_size + _SPARE, _READ_TIMEOUT_S)
        if items:
            self._live[name] = items

    def _page_of(self, scene: Scene, name: str) -> list[AnswerItem]:
        pool_of = scene.pools.scene or name
        hot = self._live.get(pool_of) or [item for item, _ in self._kept.get(pool_of, {}).get("hot", [])]
        return _allowed(hot, "hot", scene) or _allowed(scene.pools.fixed, "fixed", scene)


def _allowed(items: Sequence[str], source: str, scene: Scene) -> list[AnswerItem]:
    """A page of what the scene does not block. No model has seen it, so every score is 0."""
    blocked = scene.filters.blocklist | scene.rules.exclude.items
    page = [AnswerItem(item_id=item, score=0.0, source=source) for item in items if item not in blocked]
    return page[: scene.page_size]


def _read_snapshot(folder: Path) -> Pools:
    try:
        bundle = folder if (folder / POOLS).is_file() else latest(folder)
        return msgspec.json.decode((bundle / POOLS).read_bytes(), type=Pools)
    except BundleError:
        return {}  # not there yet, or never: the bundles may lie in an object store
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("%s: no snapshot of the pools: %s", folder, error)
        return {}


def make_app(pools: HotPools, refresh_s: float) -> Starlette:
    """The HTTP application: /pools/{scene}, /livez and /readyz (ready once there is something to answer with)."""

    async def answer(request: Request) -> Response:
        items = pools.page(request.path_params["scene"])
        if not items:
            return Response(b'{"error":"there is no pool yet"}', 503, media_type="application/json")
        reason = request.headers.get("x-recgraph-last-resort", "")
        degraded = Degraded(
            stage="gateway", reason=reason if reason in REASONS else "graph_unavailable", action="hot_pool"
        )
        body = Answer(request_id=_request_id(request), items=items, degraded=[degraded], bundle=None, arm={})
        return Response(msgspec.json.encode(body), media_type="application/json")

    async def live(_: Request) -> Response:
        return Response()

    async def ready(_: Request) -> Response:
        return Response(status_code=200 if pools.page("") else 503)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        refreshing = asyncio.create_task(pools.refresh_forever(refresh_s))
        yield
        refreshing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await refreshing

    routes = [Route("/pools/{scene:path}", answer), Route("/livez", live), Route("/readyz", ready)]
    return Starlette(routes=routes, lifespan=lifespan)


def _request_id(request: Request) -> str:
    """X-Request-Id as the gateway sends it: UTF-8, which headers are not by themselves."""
    header = request.headers.get("x-request-id", "")
    return header.encode("latin-1").decode("utf-8", "replace") or new_request_id()


def main(
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8080,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",  # noqa: S104 a pod learns its own late
    default_scene: Annotated[str, typer.Option(help="Scene for unknown ones; empty: the first by name.")] = "",
) -> None:
    """Serve the hot pools to the gateway. Redis, scenes and bundle come from the environment (RECGRAPH_*)."""
    settings = Settings()  # type: ignore[call-arg]  # the environment gives them
    logs.configure(settings.log_level)
    _log.info("settings: %s", settings.public())
    cache = RedisCache(settings.caches_redis, last_ttl_s=settings.last_result_ttl_s, record_ttl_s=settings.record_ttl_s)
    pools = HotPools(SceneFileWatch(settings.scenes), settings.bundle, cache, default_scene)
    app = make_app(pools, settings.pools_refresh_s)
    uvicorn.run(app, host=host, port=port, log_config=None, access_log=False, timeout_keep_alive=120)


if __name__ == "__main__":
    typer.run(main)
