"""The two routers under one contract: ours and, where the program is on the machine, KServe's own."""

from __future__ import annotations

import asyncio
import fcntl
import http.client
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvloop

from recgraph.graph.server import propagation_patterns, serving
from recgraph.graph.spec import GraphSpec, parse_graph

from .upstream import Upstream

ROUTER_PORT = 8080  # the real router listens there and nowhere else
TESTBED_ROUTER = Path("/var/lib/testbed/bin/kserve-router")


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Sends to a running router; never retries."""

    def __init__(self, port: int) -> None:
        self.port = port

    def send(
        self, body: bytes | dict[str, object] = b"{}", method: str = "POST", path: str = "/", **headers: str
    ) -> Answer:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, content, {k.replace("_", "-"): v for k, v in headers.items()})
            response = connection.getresponse()
            return Answer(response.status, response.read(), dict(response.getheaders()))
        finally:
            connection.close()


Run = Callable[..., AbstractContextManager[Client]]


def spec_of(nodes: dict[str, Any], **spec: Any) -> GraphSpec:
    """A checked spec, as the API server would let it through."""
    manifest = {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "InferenceGraph",
        "metadata": {"name": "contract"},
        "spec": {"nodes": nodes, **spec},
    }
    return parse_graph(manifest).spec


@contextmanager
def run_local(spec: GraphSpec, propagate: str = "") -> Iterator[Client]:
    loop = uvloop.new_event_loop()  # as the router's process runs
    stop = asyncio.Event()
    bound: Future[int] = Future()

    async def serve() -> None:
        async with serving(spec, "127.0.0.1", 0, propagation_patterns(propagate)) as port:
            bound.set_result(port)
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    try:
        yield Client(bound.result(timeout=10))
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=10)
        loop.close()


@contextmanager
def run_kserve(spec: GraphSpec, propagate: str = "") -> Iterator[Client]:
    program = _kserve_router()
    environment = {"PROPAGATE_HEADERS": propagate} if propagate else {}
    process = subprocess.Popen(
        [program, "--graph-json", spec.router_json()], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(process)
        yield Client(ROUTER_PORT)
    finally:
        process.kill()  # SIGTERM would drain for 30 s
        process.wait()


def _kserve_router() -> str:
    found = os.environ.get("KSERVE_ROUTER") or shutil.which("kserve-router")
    if not found and TESTBED_ROUTER.exists():
        found = str(TESTBED_ROUTER)
    if not found:
        pytest.skip("no kserve-router on this machine (KSERVE_ROUTER, PATH or the test bed)")
    return found


def _wait_for(process: subprocess.Popen[bytes]) -> None:
    for _ in range(500):
        assert process.poll() is None, "kserve-router ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", ROUTER_PORT)) == 0:
                return
        time.sleep(0.01)
    pytest.fail("kserve-router does not listen")


@pytest.fixture(scope="session")
def router_port_lock() -> Iterator[None]:
    """One user of port 8080 at a time; skips where something else listens there."""
    with open("/tmp/recgraph-contract-8080.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", ROUTER_PORT))
            except OSError:
                pytest.skip(f"port {ROUTER_PORT}, the only one of kserve-router, is in use")
        yield


@pytest.fixture(params=["local", "kserve"])
def run(request: pytest.FixtureRequest) -> Run:
    """Starts the router under test with a graph: `with run(spec) as client`."""
    if request.param == "local":
        return run_local
    _kserve_router()
    request.getfixturevalue("router_port_lock")
    return run_kserve


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    server = Upstream()
    yield server
    server.stop()
