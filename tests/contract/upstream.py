"""A real HTTP server in the place of what stands behind the router or the gateway."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

ALWAYS = 1 << 30


class Seen(NamedTuple):
    """A request as it came; names of headers are in lower case."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str]


@dataclass
class Behaviour:
    """What becomes of a request: so many `hang_ups`, then answers. `body` None echoes; `fault` is truncate or stall."""

    status: int = 200
    body: bytes | None = None
    delay_s: float = 0.0
    hang_ups: int = 0
    fault: str = ""
    headers: dict[str, str] = field(default_factory=dict)


class Upstream:
    """Behaves as `now` says, or as a path's own behaviour does; its port stays its own while it is stopped."""

    def __init__(self, usual: Behaviour | None = None) -> None:
        self.port = 0
        self._usual = usual or Behaviour()
        self._server: _Server | None = None
        self.reset()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def reset(self) -> None:
        """As at first, and started."""
        self.now = replace(self._usual)
        self.behaviours: dict[str, Behaviour] = {}
        self.seen: list[Seen] = []
        self.connections = 0
        if self._server is None:
            self._start()

    def _start(self) -> None:
        upstream = self

        class Handler(_Handler):
            owner = upstream

        self._server = _Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        """Refuses connections from now on, and ends those that are open."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            self.now.hang_ups = ALWAYS

    def url(self, path: str, behaviour: Behaviour | None = None) -> str:
        self.behaviours["/" + path] = behaviour or Behaviour()
        return f"{self.address}/{path}"

    def paths(self) -> list[str]:
        return [seen.path.lstrip("/") for seen in self.seen]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Quiet: Envoy resets the connections of requests that it gave up."""


class _Handler(BaseHTTPRequestHandler):
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
        headers = {name.lower(): value.encode("latin-1").decode() for name, value in self.headers.items()}
        self.owner.seen.append(Seen(self.command, self.path, body, headers))
        behaviour = self.owner.behaviours.get(self.path, self.owner.now)
        time.sleep(behaviour.delay_s)
        if behaviour.hang_ups:
            behaviour.hang_ups -= 1
            self._hang_up()
            return
        try:
            self._send(behaviour, body if behaviour.body is None else behaviour.body)
        except OSError:
            self.close_connection = True  # whoever asked gave up on a slow answer

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

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
            self._hang_up()

    do_GET = do_POST = do_PUT = answer
