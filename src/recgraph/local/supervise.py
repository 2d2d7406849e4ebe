"""Starting, watching and stopping the processes of the local graph.

Every wait has a bound, a child that dies is an error with the end of its log, and whatever goes wrong while starting,
what was started is stopped again.
"""

from __future__ import annotations

import http.client
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psutil
import redis

from recgraph.errors import DataError
from recgraph.local.state import ProcessRecord, record

_POLL_S: Final = 0.1
_PROBE_TIMEOUT_S: Final = 1.0
_TAIL_LINES: Final = 15


class LocalError(DataError):
    """The local graph cannot be started, or is not what was asked for."""


@dataclass(frozen=True)
class ProcessPlan:
    """A process to start. `env` is added to this process's environment."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    port: int
    ready: str


def start(plan: ProcessPlan, logs: Path) -> ProcessRecord:
    """Starts a process in a session of its own, with its output in `logs`/<name>.log (a new file)."""
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{plan.name}.log"
    # Not subprocess.Popen: these processes are meant to outlive this one.
    pid = os.posix_spawn(
        plan.command[0],
        list(plan.command),
        os.environ | plan.env,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    return record(plan.name, pid, port=plan.port, ready=plan.ready, log=log, command=plan.command)


def wait_ready(records: Sequence[ProcessRecord], timeout_s: float, report: Callable[[str], None]) -> None:
    """Waits until all are ready; `report` gets the name of each that has become so.

    Raises LocalError as soon as one of them dies, or after `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    waiting = list(records)
    while waiting:
        for one in list(waiting):
            check_alive(records)
            if is_ready(one.ready):
                waiting.remove(one)
                report(one.name)
        if waiting and time.monotonic() > deadline:
            names = ", ".join(one.name for one in waiting)
            raise LocalError(f"not ready after {timeout_s:.0f} s: {names}\n{tail(waiting[0])}")
        time.sleep(_POLL_S if waiting else 0)


def check_alive(records: Sequence[ProcessRecord]) -> None:
    """Raises LocalError with the end of its log for the first process that is gone."""
    for one in records:
        if one.process() is None:
            raise LocalError(f"{one.name} (pid {one.pid}) ended\n{tail(one)}")


def is_ready(where: str) -> bool:
    """Whether a process says that it is ready; False while nothing answers within a second."""
    if where.startswith("redis://"):
        try:
            with redis.Redis.from_url(where, socket_timeout=_PROBE_TIMEOUT_S) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False
    url = urlsplit(where)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=_PROBE_TIMEOUT_S)
    try:
        connection.request("GET", url.path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def tail(one: ProcessRecord) -> str:
    """The end of a process's log, with the file's name."""
    with suppress(OSError):
        lines = Path(one.log).read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join([f"{one.log}:", *(f"  {line}" for line in lines)])
    return f"{one.log}: cannot be read"


def stop(records: Sequence[ProcessRecord], grace_s: float) -> list[str]:
    """Ends processes: SIGTERM to all, SIGKILL to those left after `grace_s` seconds. Returns the names killed.

    A process that is gone, or a pid that was given to another one, is left alone.
    """
    running = [(one, process) for one in records if (process := one.process()) is not None]
    for _, process in running:
        _signal(process, signal.SIGTERM)
    _, left = psutil.wait_procs([process for _, process in running], timeout=grace_s)
    for process in left:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(left, timeout=grace_s)
    killed = {process.pid for process in left}
    return [one.name for one, process in running if process.pid in killed]


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)  # checks once more that the pid is still this process


def memory_bytes(one: ProcessRecord) -> int:
    """Memory of a process and its children: proportional set size, so that shared pages count once. 0 if it is gone."""
    process = one.process()
    if process is None:
        return 0
    total = 0
    with suppress(psutil.NoSuchProcess):
        for part in [process, *process.children(recursive=True)]:
            info = part.memory_full_info()
            total += int(getattr(info, "pss", 0)) or info.uss  # pss is Linux's
    return total
