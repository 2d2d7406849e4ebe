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
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvloop

from recgraph.graph.server import propagation_patterns, serving
from recgraph.graph.spec import GraphSpec, parse_graph

ROUTER_PORT = 8080  # the real router listens there and nowhere else
TESTBED_ROUTER = Path("/var/lib/testbed/bin/kserve-router")


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Seen(NamedTuple):
    method: str
    path: str
    body: bytes
    headers: dict[str, str]


@dataclass
class Behaviour:
    """What the upstream does with a path. `body` None echoes the request; `fault` is close, truncate or stall."""

    status: int = 200
    body: bytes | None = None
    delay_s: float = 0.0
    fault: str = ""
    headers: dict[str, str] = field(default_factory=dict)


class Upstream:
    """A real HTTP server that plays the services of a graph, one path each."""

    def __init__(self) -> None:
        self.behaviours: dict[str, Behaviour] = {}
        self.seen: list[Seen] = []
        self.connections = 0
        upstream = self

        class Handler(_UpstreamHandler):
            owner = upstream

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def url(self, path: str, behaviour: Behaviour | None = None) -> str:
        self.behaviours["/" + path] = behaviour or Behaviour()
        return f"{self.address}/{path}"

    def paths(self) -> list[str]:
        return [seen.path.lstrip("/") for seen in self.seen]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class _UpstreamHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: Upstream

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def setup(self) -> None:
        super().setup()
        self.owner.connections += 1

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.owner.seen.append(Seen(self.command, self.path, body, dict(self.headers)))
        behaviour = self.owner.behaviours[self.path]
        time.sleep(behaviour.delay_s)
        if behaviour.fault == "close":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        content = body if behaviour.body is None else behaviour.body
        try:
            self._send(behaviour, content)
        except OSError:
            self.close_connection = True  # the router gave up on a slow answer

    def _send(self, behaviour: Behaviour, content: bytes) -> None:
        self.send_response(behaviour.status)
        for name, value in {"X-Upstream": "1", "Content-Type": "application/json", **behaviour.headers}.items():
            self.send_header(name, value)
        bodiless = behaviour.status in (204, 304)
        self.send_header("Content-Length", str(0 if bodiless else len(content) + 10 * bool(behaviour.fault)))
        self.end_headers()
        self.wfile.flush()
        if behaviour.fault == "stall":
            time.sleep(1.5)
        if not bodiless:
            self.wfile.write(content)
        if behaviour.fault:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_POST = do_PUT = answer


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
    server.close()
