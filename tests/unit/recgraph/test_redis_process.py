"""The embedded Redis: it starts, keeps its data, stops, and says what is wrong."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import redis

from recgraph.redis_process import RedisProcessError, redis_executable, start_redis, stop_pid


def test_data_outlive_a_stop(tmp_path: Path) -> None:
    with start_redis(tmp_path) as process, redis.Redis(port=process.port) as client:
        client.set("k", "v")
    with start_redis(tmp_path) as process, redis.Redis(port=process.port) as client:
        assert client.get("k") == b"v"


def test_policy_and_limit(tmp_path: Path) -> None:
    with (
        start_redis(tmp_path, policy="allkeys-lru", maxmemory_mb=64, persist=False) as process,
        redis.Redis(port=process.port) as client,
    ):
        assert client.config_get("maxmemory*")["maxmemory-policy"] == "allkeys-lru"
        assert client.config_get("maxmemory")["maxmemory"] == str(64 * 1024 * 1024)


def test_stop_by_pid(tmp_path: Path) -> None:
    process = start_redis(tmp_path, persist=False)
    stop_pid(process.pid, timeout_s=0.5)
    process.stop()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", process.port)):
        pass
    stop_pid(process.pid)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RedisProcessError, match=f"cannot listen on 127.0.0.1:{port}"):
            start_redis(tmp_path, port=port)


def test_a_server_that_ends_gives_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "dump.rdb").write_bytes(b"REDIS0009 nonsense")
    with pytest.raises(RedisProcessError, match="redis-server ended with code"):
        start_redis(tmp_path)


def test_no_binary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RedisProcessError, match="no redis-server"):
        redis_executable()
