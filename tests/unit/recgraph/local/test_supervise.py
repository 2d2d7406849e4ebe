"""The supervisor, on small programs that really run."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from recgraph.errors import DataError
from recgraph.local.state import ProcessRecord, State, forget_state, load_state, save_state
from recgraph.local.supervise import LocalError, ProcessPlan, check_alive, memory_bytes, start, stop, wait_ready
from recgraph.ports import free_ports

SERVER = """
import http.server, os, signal, sys, time
print("serving", os.environ["GREETING"], flush=True)
if "stubborn" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
born = time.monotonic()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ready = time.monotonic() - born > float(sys.argv[2])
        self.send_response(200 if ready else 503); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
Start = Callable[..., ProcessRecord]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Start]:
    records: list[ProcessRecord] = []

    def launched(name: str = "server", *arguments: str, code: str = SERVER, ready_after: float = 0) -> ProcessRecord:
        port = free_ports(1)[0]
        command = [sys.executable, "-P", "-c", code, str(port), str(ready_after), *arguments]
        plan = ProcessPlan(name, command, {"GREETING": "hello"}, port, f"http://127.0.0.1:{port}/")
        records.append(start(plan, tmp_path / "logs"))
        return records[-1]

    yield launched
    for record in records:
        if process := record.process():
            process.kill()
            process.wait(timeout=5)


def ignore(_: str) -> None:
    """No report."""


def test_a_process_is_started_waited_for_and_stopped(launch: Start) -> None:
    records = [launch("one"), launch("two", ready_after=0.4)]
    seen: list[str] = []
    wait_ready(records, 20, seen.append)
    assert seen == ["one", "two"]
    assert all(memory_bytes(record) > 2**20 for record in records)
    assert Path(records[0].log).read_text().startswith("serving hello\n")
    assert os.getsid(records[0].pid) == records[0].pid  # Ctrl-C at the terminal does not reach it
    assert stop(records, grace_s=5) == []
    assert [record.process() for record in records] == [None, None]
    assert stop(records, grace_s=5) == []


def test_a_process_that_ignores_sigterm_is_killed(launch: Start) -> None:
    records = [launch("stubborn", "stubborn"), launch("polite")]
    wait_ready(records, 20, ignore)
    assert stop(records, grace_s=0.3) == ["stubborn"]
    assert records[0].process() is None


def test_a_child_that_dies_while_starting_ends_the_wait_with_its_log(launch: Start) -> None:
    records = [launch("slow", ready_after=60), launch("broken", code="import time; time.sleep(0.3); sys.exit(3)")]
    begun = time.monotonic()
    with pytest.raises(LocalError) as caught:
        wait_ready(records, 60, ignore)
    assert time.monotonic() - begun < 30
    assert f"broken (pid {records[1].pid}) ended" in str(caught.value)
    assert records[1].log in str(caught.value)
    assert "NameError: name 'sys' is not defined" in str(caught.value)


def test_a_process_that_never_gets_ready_ends_the_wait(launch: Start) -> None:
    record = launch("slow", ready_after=60)
    with pytest.raises(LocalError, match="not ready after 1 s: slow"):
        wait_ready([record], 1, ignore)


def test_a_death_after_the_start_is_noticed(launch: Start) -> None:
    record = launch("victim")
    wait_ready([record], 20, ignore)
    check_alive([record])
    os.kill(record.pid, signal.SIGKILL)
    psutil.Process(record.pid).wait(timeout=5)
    with pytest.raises(LocalError, match="victim"):
        check_alive([record])


def test_a_pid_that_belongs_to_another_process_is_never_signalled(launch: Start) -> None:
    record = launch("other")
    wait_ready([record], 20, ignore)
    recycled = [
        msgspec.structs.replace(record, started=record.started - 100),
        msgspec.structs.replace(record, command=["redis-server"]),
    ]
    assert stop(recycled, grace_s=1) == []
    assert memory_bytes(recycled[0]) == 0
    check_alive([record])


def test_the_state_is_kept_between_runs(launch: Start, tmp_path: Path) -> None:
    record = launch()
    state = State(8080, "/bundles/a", "a", -12.5, "redis://127.0.0.1:1/0", "redis://127.0.0.1:2/0", [record])
    assert load_state(tmp_path) is None
    save_state(tmp_path, state)
    loaded = load_state(tmp_path)
    assert loaded == state
    assert [one.name for one in state.alive()] == ["server"]
    forget_state(tmp_path)
    assert load_state(tmp_path) is None


def test_a_state_that_cannot_be_read_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"port": "x"}')
    with pytest.raises(DataError, match=r"state\.json: .*port"):
        load_state(tmp_path)
