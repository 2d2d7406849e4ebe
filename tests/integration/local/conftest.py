"""A tiny world through the whole demo, once per session; the graph it leaves running is what the tests use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from recgraph.ports import free_ports

RECGRAPH = Path(sys.executable).with_name("recgraph")
# Enough for every step to be real, and no more.
TRAINING = {
    "past_recalls": 2,
    "retrieval": {"epochs": 1},
    "ranking": {
        "requests": 200,
        "coarse_fit": {"epochs": 1},
        "fine_fit": {"epochs": 1},
        "rerank_fit": {"epochs": 1},
    },
    "evaluation": {"sample": 20},
}


@dataclass(frozen=True)
class Workspace:
    """A workspace and the port of its graph."""

    home: Path
    port: int
    demo: subprocess.CompletedProcess[str]

    def recgraph(self, *arguments: str, code: int | None = 0, timeout_s: float = 300) -> str:
        """Runs the command and gives what it printed, both streams; fails unless it ends with `code`."""
        done = run(*arguments, timeout_s=timeout_s)
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def up(self) -> str:
        """Starts the graph, or leaves a running one alone."""
        return self.recgraph("local", "up", "--home", str(self.home), "--port", str(self.port))

    def ask(self, user: str, *options: str) -> dict[str, Any]:
        """The answer for a user."""
        answer: dict[str, Any] = json.loads(
            self.recgraph("ask", user, "--port", str(self.port), "-o", "json", *options)
        )
        return answer

    def status(self, code: int | None = 0) -> dict[str, Any]:
        """`recgraph local status` as JSON."""
        text = self.recgraph("local", "status", "--home", str(self.home), "-o", "json", code=code)
        found: dict[str, Any] = json.loads(text)
        return found

    def processes(self) -> list[psutil.Process]:
        """Every live process that names this workspace or its state."""
        state = json.loads((self.home / "run" / "state.json").read_text())
        return [psutil.Process(one["pid"]) for one in state["processes"]]

    def demo_options(self) -> list[str]:
        """Those that the fixture's demo ran with."""
        world = ["--world-items", "1000", "--users", "150", "--events", "20000"]
        config = ["--config", str(self.home / "training.yaml")]
        where = ["--home", str(self.home), "--port", str(self.port), "--report", str(self.home / "report.json")]
        return ["demo", *where, *world, *config, "--rate", "5", "--bench-s", "2"]


def run(*arguments: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """`recgraph` as a user runs it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RECGRAPH_")}
    return subprocess.run(
        [RECGRAPH, *arguments], capture_output=True, text=True, timeout=timeout_s, env=environment, check=False
    )


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    home = tmp_path_factory.mktemp("demo")
    (home / "training.yaml").write_text(yaml.safe_dump(TRAINING))
    blank = Workspace(home, free_ports(1)[0], subprocess.CompletedProcess([], 0))
    done = run(*blank.demo_options(), "--keep-up", timeout_s=900)
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        yield Workspace(home, blank.port, done)
    finally:
        run("local", "down", "--home", str(home))
