"""What `up` makes of a graph that runs already, on small programs in the place of its processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recgraph.local import runner
from recgraph.local.state import ProcessRecord, State, load_state, save_state
from recgraph.local.supervise import LocalError, ProcessPlan, start
from recgraph.ports import free_ports

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(int(sys.argv[2])); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
Up = Callable[..., State]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Up]:
    """Starts processes of these names, ready or not, and keeps them as the graph of `tmp_path`."""
    records: list[ProcessRecord] = []

    def made(*names: str, status: int = 200) -> State:
        run = tmp_path / "run"
        for name in names:
            port = free_ports(1)[0]
            command = [sys.executable, "-P", "-c", SERVER, str(port), str(status)]
            records.append(start(ProcessPlan(name, command, {}, port, f"http://127.0.0.1:{port}/"), run / "logs"))
        here = {name: str(tmp_path / name) for name in ("bundle", "scenes", "graph")}
        nowhere = "redis://127.0.0.1:1/0"
        state = State(
            port=9,
            bundle_version="b",
            clock_offset_s=-1.0,
            features_redis=nowhere,
            caches_redis=nowhere,
            processes=records,
            **here,
        )
        save_state(run, state)
        return state

    yield made
    for record in records:
        if process := record.process():
            process.kill()
            process.wait(timeout=5)


def silent(_: str) -> None:
    """No report."""


def test_a_graph_that_runs_as_asked_is_left_alone(running: Up, tmp_path: Path) -> None:
    state = running("entry", "router")
    assert runner.up(runner.Options(tmp_path, port=9), silent) == state
    same = runner.Options(tmp_path, port=9, scenes=tmp_path / "scenes", graph=tmp_path / "graph")
    assert runner.up(same, silent) == state


def test_one_that_runs_otherwise_is_refused_with_what_differs(running: Up, tmp_path: Path) -> None:
    running("entry", "router")
    for other in ("scenes", "graph", "bundle"):
        with pytest.raises(LocalError, match=f"not with .*/my_{other}: run `recgraph local down` first"):
            runner.up(runner.Options(tmp_path, port=9, **{other: tmp_path / f"my_{other}"}), silent)  # type: ignore[arg-type]
    with pytest.raises(LocalError, match="is up on port 9"):
        runner.up(runner.Options(tmp_path, port=9, wall_clock=True), silent)


def test_one_that_does_not_get_ready_is_not_up(running: Up, tmp_path: Path) -> None:
    running("entry", "router", status=404)
    with pytest.raises(LocalError, match="not ready after 1 s: entry, router"):
        runner.up(runner.Options(tmp_path, port=9, timeout_s=1.0), silent)


def test_a_start_that_was_cut_off_is_stopped_not_taken_for_a_graph(running: Up, tmp_path: Path) -> None:
    state = running("redis-features", "entry")
    said: list[str] = []
    with pytest.raises(Exception, match="bundle"):  # then it starts anew, and finds no bundle here
        runner.up(runner.Options(tmp_path, port=free_ports(1)[0]), said.append)
    assert said == ["stopping what is left of an earlier start (2 of 2 processes)"]
    assert state.alive() == []
    assert load_state(tmp_path / "run") is None
