"""run/state.json: which processes make up the local graph, and whether they are still the ones that were started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import psutil

from recgraph.errors import DataError

STATE: Final = "state.json"
_SAME_START_S: Final = 2.0
"""psutil derives start times from the boot time, which moves a little when the clock is set."""


class ProcessRecord(msgspec.Struct, frozen=True):
    """One process. `started` (Unix s) and `command` tell it from another that was given its pid later."""

    name: str
    pid: int
    started: float
    command: list[str]
    port: int
    ready: str
    """Where it says that it is ready: an http:// URL that answers 200, or a redis:// URL that answers PING."""
    log: str

    def process(self) -> psutil.Process | None:
        """The live process, or None where it is gone or its pid belongs to another one now."""
        try:
            found = psutil.Process(self.pid)
            # The command line is empty for a moment while the program is being loaded.
            same = abs(found.create_time() - self.started) < _SAME_START_S and found.cmdline() in ([], self.command)
            return found if same and found.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None


class State(msgspec.Struct, frozen=True):
    """What `recgraph local up` started."""

    port: int
    bundle: str
    bundle_version: str
    clock_offset_s: float
    features_redis: str
    caches_redis: str
    processes: list[ProcessRecord]
    scenes: str = ""
    graph: str = ""

    @property
    def url(self) -> str:
        """Where the graph answers."""
        return f"http://127.0.0.1:{self.port}"

    def alive(self) -> list[ProcessRecord]:
        """The records whose process still runs."""
        return [record for record in self.processes if record.process() is not None]


def record(
    name: str, pid: int, *, port: int, ready: str, log: Path, command: Sequence[str] | None = None
) -> ProcessRecord:
    """A record of a process that has just been started. Raises DataError when it has ended already.

    Without `command` the process is asked for it: Redis writes its own title there once it runs.
    """
    try:
        process = psutil.Process(pid)
        words = process.cmdline() if command is None else list(command)
        return ProcessRecord(name, pid, process.create_time(), words, port, ready, str(log))
    except psutil.NoSuchProcess as error:
        raise DataError(f"{name} ended at once; its log is {log}") from error


def load_state(run: Path) -> State | None:
    """The state in a run folder, None where there is none. Raises DataError for a file that cannot be read."""
    path = run / STATE
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(f"{path}: {error}") from error


def save_state(run: Path, state: State) -> None:
    """Writes the state as a whole or not at all."""
    partial = run / f"{STATE}.partial"
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=1))
    partial.replace(run / STATE)


def forget_state(run: Path) -> None:
    """Removes the state."""
    (run / STATE).unlink(missing_ok=True)
