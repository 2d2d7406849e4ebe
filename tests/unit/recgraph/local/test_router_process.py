"""The router as a process: it runs a manifest file, and ends with a clear message where it cannot."""

from __future__ import annotations

import http.client
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from recgraph.errors import DataError
from recgraph.local.router import parse_services
from recgraph.local.supervise import ProcessPlan, start, stop, wait_ready
from recgraph.ports import free_ports

GRAPH = {
    "apiVersion": "serving.kserve.io/v1alpha1",
    "kind": "InferenceGraph",
    "metadata": {"name": "g"},
    "spec": {"nodes": {"root": {"routerType": "Sequence", "steps": [{"serviceName": "echo"}]}}},
}


class Echo(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        content = json.dumps({"path": self.path, "body": json.loads(body)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def echo() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "graph.yaml"
    path.write_text(yaml.safe_dump(GRAPH))
    return path


def command(graph: Path, port: int, *services: str) -> list[str]:
    options = [word for service in services for word in ("--service", service)]
    return [sys.executable, "-P", "-m", "recgraph.local.router", "--graph", str(graph), "--port", str(port), *options]


def test_it_serves_a_manifest_and_stops_on_sigterm(graph: Path, echo: str, tmp_path: Path) -> None:
    port = free_ports(1)[0]
    plan = ProcessPlan("router", command(graph, port, f"echo={echo}"), {}, port, f"http://127.0.0.1:{port}/readyz")
    record = start(plan, tmp_path)
    try:
        wait_ready([record], 20, lambda _: None)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("POST", "/", '{"x": 1}')
        answer = json.loads(connection.getresponse().read())
        connection.close()
    finally:
        killed = stop([record], grace_s=5)
    assert answer == {"path": "/v1/models/echo:predict", "body": {"x": 1}}
    assert killed == []
    assert "stopped" in Path(record.log).read_text()


def test_a_graph_that_names_an_unknown_service_is_refused(graph: Path) -> None:
    done = subprocess.run(command(graph, free_ports(1)[0]), capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "the graph names services that are not deployed: echo" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_a_clear_error(graph: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            command(graph, port, "echo=http://127.0.0.1:1"), capture_output=True, text=True, timeout=30
        )
    assert done.returncode == 1
    assert str(port) in done.stderr
    assert "address already in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_services_are_name_and_url() -> None:
    assert parse_services(["a=http://127.0.0.1:1/", "b=http://h:2"]) == {"a": "http://127.0.0.1:1", "b": "http://h:2"}
    with pytest.raises(DataError, match="'a:1'"):
        parse_services(["a:1"])


def test_interrupting_it_is_a_clean_stop_too(graph: Path, echo: str, tmp_path: Path) -> None:
    port = free_ports(1)[0]
    plan = ProcessPlan("router", command(graph, port, f"echo={echo}"), {}, port, f"http://127.0.0.1:{port}/readyz")
    record = start(plan, tmp_path)
    try:
        wait_ready([record], 20, lambda _: None)
        os.kill(record.pid, signal.SIGINT)
        assert os.waitstatus_to_exitcode(os.waitpid(record.pid, 0)[1]) == 0
    finally:
        stop([record], grace_s=5)
