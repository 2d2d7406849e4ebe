"""Feast's Redis online store, which also writes one packed blob per entity and view (needs Feast: for jobs only).

Named in feature_store.yaml as `online_store.type`. The hash layout is written by Feast's own code, so that
`get_online_features` and `feast_hash.FeastHashReader` read what they always did. Beside it, under
`rg:{project}:{view}:{entity id}`, lies the blob of `codec`, for `packed.PackedReader`.

- Which write wins is Feast's rule: a row newer than the stored one, rows of a batch in their order (with
  `skip_dedup: true`, the last). Feast checks and then writes; for a blob a script does both at once on the server, so
  that of many writers the newest wins.
- `key_ttl_seconds` expires a blob after its last accepted write. (The hash of an entity holds all its views, so there
  a write of any view renews all of them.)
- What Feast deletes is deleted here. Feast finds its keys by a pattern that also fits projects whose name ends like
  this one's; here keys are compared whole.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Literal

from feast import Entity, FeatureView, RepoConfig
from feast.infra.online_stores.helpers import _mmh3, _redis_key_prefix
from feast.infra.online_stores.redis import RedisOnlineStore, RedisOnlineStoreConfig, RedisType, _versioned_fv_name
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from pydantic import field_validator
from redis import Redis

from recgraph.errors import DataError
from recgraph.features import registry
from recgraph.features.codec import codec_of
from recgraph.features.export import view_schema
from recgraph.features.packed import blob_prefix
from recgraph.features.redis_client import feast_connection

registry.register()

Rows = list[tuple[EntityKey, dict[str, Value], datetime, datetime | None]]
Progress = Callable[[int], Any] | None

_VARIABLE = "RECGRAPH_FEATURES_REDIS"
_DEFAULT_ADDRESS = "127.0.0.1:6379"
# Long enough for a batch of 10,000, short enough that a job ends when Redis is gone.
_TIMEOUTS = {"socket_timeout": 10, "socket_connect_timeout": 2}
# Blobs per call of the script: it holds up all other clients for about a millisecond.
_BLOBS_PER_CALL = 200
_KEYS_PER_CALL = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# The event time is an int64 at byte 8. Lua has only doubles, exact to 2^53, hence the two halves. A stored time of the
# epoch or before never holds up a write: so it is in Feast.
_WRITE_NEWER = """
local function time_of(blob, at)
  local low, high = struct.unpack('<I4i4', blob, at)
  return high, low
end
local ttl, always, written = tonumber(ARGV[1]), ARGV[2] == '1', 0
for i, key in ipairs(KEYS) do
  local blob = ARGV[i + 2]
  local stored = redis.call('GETRANGE', key, 8, 15)
  local wins = always or #stored < 8
  if not wins then
    local high, low = time_of(blob, 9)
    local old_high, old_low = time_of(stored, 1)
    local positive = old_high > 0 or (old_high == 0 and old_low > 0)
    wins = not positive or high > old_high or (high == old_high and low > old_low)
  end
  if wins then
    if ttl > 0 then redis.call('SET', key, blob, 'EX', ttl) else redis.call('SET', key, blob) end
    written = written + 1
  end
end
return written
"""

_VALUES: dict[str, tuple[str, Callable[[Value], Any]]] = {
    "float32": ("float_val", lambda value: value.float_val),
    "float64": ("double_val", lambda value: value.double_val),
    "int64": ("int64_val", lambda value: value.int64_val),
    "text": ("string_val", lambda value: value.string_val),
    "float32_list": ("float_list_val", lambda value: value.float_list_val.val),
    "int64_list": ("int64_list_val", lambda value: value.int64_list_val.val),
    "text_list": ("string_list_val", lambda value: value.string_list_val.val),
}


class PackedRedisOnlineStoreConfig(RedisOnlineStoreConfig):  # type: ignore[misc]
    """As Feast's, but `connection_string` may be a redis:// URL, and timeouts are always set."""

    type: Literal["recgraph.features.online_store.PackedRedisOnlineStore"] = (
        "recgraph.features.online_store.PackedRedisOnlineStore"
    )
    connection_string: str = _DEFAULT_ADDRESS

    @field_validator("connection_string", mode="after")
    @classmethod
    def _complete(cls, address: str) -> str:
        # Feast leaves a variable that is not set as it was written.
        unset = address in (f"${{{_VARIABLE}}}", f"${_VARIABLE}", "")
        connection = feast_connection(os.environ.get(_VARIABLE) or _DEFAULT_ADDRESS if unset else address)
        lacking = [f"{name}={value}" for name, value in _TIMEOUTS.items() if f",{name}=" not in connection]
        return ",".join([connection, *lacking])

    @field_validator("redis_type", mode="after")
    @classmethod
    def _one_node(cls, redis_type: RedisType) -> RedisType:
        if redis_type is RedisType.redis_cluster:
            raise ValueError("packed blobs are read by one MGET, which a Redis cluster refuses across its slots")
        return redis_type


class PackedRedisOnlineStore(RedisOnlineStore):  # type: ignore[misc]
    """See the module."""

    def online_write_batch(self, config: RepoConfig, table: FeatureView, data: Rows, progress: Progress) -> None:
        """Writes hashes, then blobs. A failure between the two is mended by writing the same rows again."""
        blobs = _blobs(config.project, table, data)
        super().online_write_batch(config, table, data, progress)
        script = self._get_client(config.online_store).register_script(_WRITE_NEWER)
        for keys, arguments in _calls(config, blobs):
            script(keys=keys, args=arguments)

    async def online_write_batch_async(
        self, config: RepoConfig, table: FeatureView, data: Rows, progress: Progress
    ) -> None:
        """As `online_write_batch`."""
        blobs = _blobs(config.project, table, data)
        await super().online_write_batch_async(config, table, data, progress)
        client = await self._get_client_async(config.online_store)
        script = client.register_script(_WRITE_NEWER)
        for keys, arguments in _calls(config, blobs):
            await script(keys=keys, args=arguments)

    def update(
        self,
        config: RepoConfig,
        tables_to_delete: Sequence[FeatureView],
        tables_to_keep: Sequence[FeatureView],
        entities_to_delete: Sequence[Entity],
        entities_to_keep: Sequence[Entity],
        partial: bool,
    ) -> None:
        """Deletes the data of removed views; a view that cannot be packed fails here, at `feast apply`."""
        for table in tables_to_keep:
            if isinstance(table, FeatureView):
                view_schema(table)
        super().update(config, tables_to_delete, tables_to_keep, entities_to_delete, entities_to_keep, partial)

    def teardown(self, config: RepoConfig, tables: Sequence[FeatureView], entities: Sequence[Entity]) -> None:
        """Deletes all data of the project, blobs without a hash too."""
        super().teardown(config, tables, entities)
        _unlink(self._get_client(config.online_store), _escaped(b"rg:%s:" % config.project.encode()) + b"*")

    def delete_table(self, config: RepoConfig, table: FeatureView) -> None:
        """Deletes a view's fields, hashes that hold nothing else, and its blobs."""
        client = self._get_client(config.online_store)
        name = _versioned_fv_name(table, config)
        own = f"_ts:{name}".encode()
        fields = [own, *(_mmh3(f"{name}:{feature.name}") for feature in table.features)]
        for hashes in _chunks(_entity_hashes(client, config.project, table.join_keys), _KEYS_PER_CALL):
            stamps = _stamps(client, hashes)
            with client.pipeline(transaction=False) as pipe:
                for key, present in zip(hashes, stamps, strict=True):
                    if present == [own]:
                        pipe.delete(key)
                    elif own in present:
                        pipe.hdel(key, *fields)
                pipe.execute()
        _unlink(client, _escaped(blob_prefix(config.project, table.name)) + b"*")

    def delete_entity_values(self, config: RepoConfig, join_keys: list[str]) -> None:
        """Deletes the hashes of an entity kind, and the blobs of the views that each of them held."""
        client = self._get_client(config.online_store)
        for hashes in _chunks(_entity_hashes(client, config.project, join_keys), _KEYS_PER_CALL):
            stamps = _stamps(client, hashes)
            with client.pipeline(transaction=False) as pipe:
                for (key, entity_id), present in zip(hashes.items(), stamps, strict=True):
                    views = [stamp.removeprefix(b"_ts:").decode() for stamp in present]
                    pipe.unlink(key, *(blob_prefix(config.project, view) + entity_id for view in views))
                pipe.execute()


def _blobs(project: str, table: FeatureView, data: Rows) -> list[tuple[bytes, bytes]]:
    """(key, blob) of every row, in order."""
    view = view_schema(table)
    codec, prefix = codec_of(view), blob_prefix(project, view.name)
    blobs = []
    for entity_key, values, event_time, _ in data:
        if entity_key.entity_values[0].WhichOneof("val") != "string_val":
            raise DataError(f"view {view.name}: the key {entity_key.join_keys[0]} is not text: {entity_key}")
        row = [_native(view.name, field.name, field.dtype, values) for field in view.fields]
        blobs.append((prefix + entity_key.entity_values[0].string_val.encode(), codec.encode(row, _us(event_time))))
    return blobs


def _native(view: str, name: str, dtype: str, values: dict[str, Value]) -> Any:
    """A value as Python has it, None for null."""
    if name not in values:
        raise DataError(f"view {view}: a row lacks field {name}; a blob is written whole")
    value = values[name]
    kind, get = _VALUES[dtype]
    found = value.WhichOneof("val")
    if found in (None, "null_val"):
        return None
    if found != kind:
        raise DataError(f"view {view}, field {name}: got a {found}, the view says {dtype}")
    return get(value)


def _us(moment: datetime) -> int:
    """Microseconds since the epoch, naive times being UTC as in Feast."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def _calls(config: RepoConfig, blobs: list[tuple[bytes, bytes]]) -> Iterator[tuple[list[bytes], list[Any]]]:
    """Keys and arguments for each call of the script."""
    store = config.online_store
    for start in range(0, len(blobs), _BLOBS_PER_CALL):
        chunk = blobs[start : start + _BLOBS_PER_CALL]
        options = [store.key_ttl_seconds or 0, int(store.skip_dedup)]
        yield [key for key, _ in chunk], [*options, *(blob for _, blob in chunk)]


def _entity_hashes(client: Redis, project: str, join_keys: list[str]) -> Iterator[tuple[bytes, bytes]]:
    """(key, entity id) of every hash of an entity kind of exactly this project; the id is of the first join key."""
    prefix, suffix = _redis_key_prefix(join_keys), project.encode()
    for key in client.scan_iter(_escaped(prefix) + b"*" + _escaped(suffix), count=_KEYS_PER_CALL):
        values, at = [], len(prefix)
        for _ in join_keys:
            size = int.from_bytes(key[at + 4 : at + 8], "little")
            values.append(key[at + 8 : at + 8 + size])
            at += 8 + size
        if key[at:] == suffix:
            yield key, values[0]


def _stamps(client: Redis, hashes: dict[bytes, bytes]) -> list[list[bytes]]:
    """The `_ts:{view}` fields of each hash: which views it holds."""
    with client.pipeline(transaction=False) as pipe:
        for key in hashes:
            pipe.hkeys(key)  # type: ignore[arg-type]
        return [[field for field in fields if field.startswith(b"_ts:")] for fields in pipe.execute()]


def _unlink(client: Redis, pattern: bytes) -> None:
    keys = client.scan_iter(pattern, count=_KEYS_PER_CALL)
    while chunk := list(islice(keys, _KEYS_PER_CALL)):
        client.unlink(*chunk)


def _chunks(pairs: Iterator[tuple[bytes, bytes]], size: int) -> Iterator[dict[bytes, bytes]]:
    while chunk := dict(islice(pairs, size)):
        yield chunk


def _escaped(text: bytes) -> bytes:
    """`text` for a pattern of SCAN, meaning only itself."""
    return b"".join(b"\\" + bytes([byte]) if byte in b"*?[]\\^-" else bytes([byte]) for byte in text)
