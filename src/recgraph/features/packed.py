"""The fast reader: our packed blobs, one MGET for all views of an entity kind."""

from __future__ import annotations

from collections.abc import Sequence

from recgraph.features.codec import codec_of
from recgraph.features.reader import ViewBlock
from recgraph.features.redis_client import OnlineStoreClient
from recgraph.features.schema import Entity, ViewSchema


def blob_prefix(project: str, view: str) -> bytes:
    """What the keys of all blobs of a view begin with; the entity's id (UTF-8) follows."""
    return f"rg:{project}:{view}:".encode()


class PackedReader:
    """Reads what `online_store.PackedRedisOnlineStore` writes. See `reader.FeatureReader` for the contract."""

    def __init__(self, url: str, project: str) -> None:
        self._store = OnlineStoreClient(url)
        self._project = project

    async def read(
        self, entity: Entity, views: Sequence[ViewSchema], ids: Sequence[str], *, now_s: float, timeout_s: float
    ) -> dict[str, ViewBlock]:
        """Blocks by role; also raises StageFailure("features_schema") for a blob of another schema."""
        if not ids or not views:
            return {view.role: codec_of(view).decode([None] * len(ids), now_s=now_s) for view in views}
        prefixes = [blob_prefix(self._project, view.name).decode() for view in views]
        keys = [prefix + entity_id for prefix in prefixes for entity_id in ids]
        (blobs,) = await self._store.ask([("MGET", *keys)], timeout_s)
        rows = len(ids)
        return {
            view.role: codec_of(view).decode(blobs[at : at + rows], now_s=now_s)
            for view, at in zip(views, range(0, len(keys), rows), strict=True)
        }

    async def warm_up(self, timeout_s: float = 5.0) -> None:
        """Connects, so that the first request does not."""
        await self._store.warm_up(timeout_s)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._store.aclose()
