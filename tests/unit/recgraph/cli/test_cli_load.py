"""`recgraph bench --url`: a graph elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from recgraph.cli import app

RUNNER = CliRunner()


class _Gateway(BaseHTTPRequestHandler):
    asked: ClassVar[list[str]] = []
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body["user"]["user_id"])
        known = self.path == "/v1/recommend"
        answer = {"request_id": "r", "items": [], "degraded": [], "bundle": None, "arm": {}, "trace": []}
        content = json.dumps(answer).encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Gateway) as server:
        _Gateway.asked.clear()
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def _users(folder: Path) -> str:
    path = folder / "users.txt"
    path.write_text("u_1\nu_2\n", encoding="utf-8")
    return str(path)


def test_bench_asks_the_url_with_the_users_of_the_file(gateway: str, tmp_path: Path) -> None:
    options = ["--users", _users(tmp_path), "--rate", "20", "--duration", "0.5", "--warmup", "0", "--unknown", "0"]

    done = RUNNER.invoke(app, ["bench", "--url", f"{gateway}/v1/recommend", *options, "--json"])

    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["requests"] == {"sent": 10, "ok": 10, "degraded": 0, "failed": 0}
    assert result["memory_mib"] is None
    assert set(_Gateway.asked) == {"u_1", "u_2"}
    assert len(_Gateway.asked) == 11  # one ahead


@pytest.mark.parametrize(
    ("path", "more", "told"),
    [
        ("/elsewhere", [], "/elsewhere does not answer with a list: status_404"),
        ("/v1/recommend", ["--port", "80"], "leave out --port"),
    ],
)
def test_bench_says_what_is_wrong_with_a_url(
    gateway: str, tmp_path: Path, path: str, more: list[str], told: str
) -> None:
    done = RUNNER.invoke(app, ["bench", "--url", gateway + path, "--users", _users(tmp_path), *more])

    assert done.exit_code == 1
    assert told in done.output
    assert len(_Gateway.asked) <= 1


def test_bench_says_what_is_no_url(tmp_path: Path) -> None:
    done = RUNNER.invoke(app, ["bench", "--url", "127.0.0.1:80", "--users", _users(tmp_path)])

    assert done.exit_code == 1
    assert "--url 127.0.0.1:80: unsupported protocol scheme" in done.output
