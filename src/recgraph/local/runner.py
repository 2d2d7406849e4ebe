"""`up`, `down` and `status` of the local graph in a workspace."""

from __future__ import annotations

import fcntl
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from recgraph.bundle.store import Bundle, latest
from recgraph.cache import publish_pools
from recgraph.local import client
from recgraph.local.plan import HOST, ROUTER, Cluster, plans
from recgraph.local.state import ProcessRecord, State, forget_state, load_state, record, save_state
from recgraph.local.supervise import LocalError, check_alive, is_ready, memory_bytes, start, stop, wait_ready
from recgraph.redis_process import RedisProcess, start_redis
from recgraph.repository import graph_file, scenes_file
from recgraph.scenes import parse_scenes

Report = Callable[[str], None]
GRACE_S: Final = 10.0
CACHES_MB: Final = 256
_WARM_REQUESTS: Final = 20
_ENOUGH: Final = 3
_WARM_USER: Final = "recgraph_warm_up"
"""Nobody: what is remembered for this user is shown to no one."""
_LOADING_S: Final = 120.0
"""For Redis to read the features of ten million items again."""
FEATURES, CACHES = "redis-features", "redis-caches"


@dataclass(frozen=True)
class Options:
    """What `up` is asked for. None is whatever runs already, else the newest bundle and the checkout's files."""

    home: Path
    graph: Path | None = None
    scenes: Path | None = None
    port: int = 8080
    bundle: Path | None = None
    wall_clock: bool = False
    timeout_s: float = 180.0

    @property
    def run(self) -> Path:
        """The folder of state, logs and Redis data."""
        return self.home / "run"


@dataclass(frozen=True)
class Row:
    """One line of `status`. `state` is up, starting (alive, not ready) or dead."""

    name: str
    pid: int
    port: int
    state: str
    memory_mib: float
    uptime_s: float
    log: str


def up(options: Options, report: Report) -> State:
    """Starts what is not running yet and returns when everything is ready.

    Raises LocalError, BundleError or DataError; then nothing that was started here is left running.
    """
    with _locked(options.run):
        running = _running(options, report)
        if running is not None:
            return running
        _check_port(options.port)
        bundle = Bundle.open(options.bundle or latest(options.home / "bundles"))
        started: list[ProcessRecord] = []
        try:
            return _start_all(options, bundle, started, report)
        except BaseException:  # an interrupt must not leave processes behind either
            _stop_in_order(started, report)
            forget_state(options.run)
            raise


def down(home: Path, report: Report) -> list[str]:
    """Stops what `up` started and returns the names of what was running; a second call finds nothing to do."""
    run = home / "run"
    if load_state(run) is None:
        return []
    with _locked(run):
        state = load_state(run)
        if state is None:
            return []
        running = [one.name for one in state.alive()]
        _stop_in_order(state.processes, report)
        forget_state(run)
        return running


def status(state: State) -> list[Row]:
    """The state of every process, in the order of starting."""
    return [_row(one) for one in state.processes]


def watch(state: State, stopping: Callable[[], bool]) -> None:
    """Returns when `stopping` says so. Raises LocalError when one of the processes ends before."""
    while not stopping():
        check_alive(state.processes)
        time.sleep(0.2)


@contextmanager
def features_redis(home: Path) -> Iterator[RedisProcess]:
    """The online store of a workspace alone, for materialization while the graph is down."""
    with _locked(home / "run"), _redis(home / "run", FEATURES) as server:
        wait_ready([_redis_record(FEATURES, server)], _LOADING_S, _silent)
        yield server


def _row(one: ProcessRecord) -> Row:
    process = one.process()
    if process is None:
        return Row(one.name, one.pid, one.port, "dead", 0.0, 0.0, one.log)
    ready = "up" if is_ready(one.ready) else "starting"
    return Row(
        one.name, one.pid, one.port, ready, memory_bytes(one) / 2**20, time.time() - process.create_time(), one.log
    )


def _running(options: Options, report: Report) -> State | None:
    """The state, where everything already runs as asked. What is left of a broken start is stopped.

    Raises LocalError where it runs otherwise than asked, or does not get ready.
    """
    state = load_state(options.run)
    if state is None:
        return None
    alive = state.alive()
    # The router is started last: without it somebody ended the command that started the others.
    if len(alive) < len(state.processes) or all(one.name != ROUTER for one in alive):
        report(f"stopping what is left of an earlier start ({len(alive)} of {len(state.processes)} processes)")
        _stop_in_order(alive, report)
        forget_state(options.run)
        return None
    asked = ((options.bundle, state.bundle), (options.scenes, state.scenes), (options.graph, state.graph))
    other = [str(path) for path, runs in asked if path is not None and runs and str(path.resolve()) != runs]
    if state.port != options.port or other or (options.wall_clock and state.clock_offset_s):
        raise LocalError(
            f"the graph of {options.home} is up on port {state.port} with bundle {state.bundle_version}"
            f"{''.join(f', not with {path}' for path in other)}: run `recgraph local down` first"
        )
    wait_ready(state.processes, options.timeout_s, _silent)
    return state


def _start_all(options: Options, bundle: Bundle, started: list[ProcessRecord], report: Report) -> State:
    features = _start_redis(options.run, FEATURES, started)
    caches = _start_redis(options.run, CACHES, started)
    publish_pools(caches.url, bundle.pools)
    offset = 0.0 if options.wall_clock else bundle.manifest.lineage.data_window.end - time.time()
    cluster = Cluster(
        bundle=bundle.path.resolve(),
        scenes=(options.scenes or scenes_file()).resolve(),
        features_redis=features.url,
        caches_redis=caches.url,
        clock_offset_s=offset,
        graph=(options.graph or graph_file()).resolve(),
        port=options.port,
    )
    state = State(
        port=options.port,
        bundle=str(cluster.bundle),
        bundle_version=bundle.version,
        clock_offset_s=offset,
        features_redis=features.url,
        caches_redis=caches.url,
        processes=started,
        scenes=str(cluster.scenes),
        graph=str(cluster.graph),
    )
    for plan in plans(cluster):
        started.append(start(plan, options.run / "logs"))
        save_state(options.run, state)  # so that `down` finds everything even if this process is killed
    wait_ready(started, options.timeout_s, lambda name: report(f"{name} is ready"))
    _warm(cluster.scenes, options.port, report)
    return state


def _warm(scenes: Path, port: int, report: Report) -> None:
    """Asks the whole graph until it answers in full: every stage has warmed up alone, the way between them has not.

    What it says instead is reported and no error: a graph that degrades is up.
    """
    scene = next(iter(parse_scenes(scenes.read_text(encoding="utf-8"), str(scenes))))
    full, last = 0, ""
    for _ in range(_WARM_REQUESTS):
        try:
            answer = client.ask(port, _WARM_USER, scene, explain=False)
        except client.GraphError as error:
            report(f"the graph's first answer: {error}")
            return
        full = 0 if answer.degraded else full + 1
        if full == _ENOUGH:
            return
        last = ", ".join(f"{entry.stage} {entry.reason}" for entry in answer.degraded) or last
    report(f"the graph's first answers are degraded: {last}")


def _start_redis(run: Path, name: str, started: list[ProcessRecord]) -> RedisProcess:
    server = _redis(run, name)
    started.append(_redis_record(name, server))
    # It answers before it has read its file; a stage must not find it half empty.
    wait_ready(started[-1:], _LOADING_S, _silent)
    return server


def _redis(run: Path, name: str) -> RedisProcess:
    """The features are kept and never evicted; the caches are neither."""
    if name == FEATURES:
        return start_redis(run / name, policy="noeviction", persist=True)
    return start_redis(run / name, policy="allkeys-lru", maxmemory_mb=CACHES_MB, persist=False)


def _redis_record(name: str, server: RedisProcess) -> ProcessRecord:
    return record(name, server.pid, port=server.port, ready=server.url, log=server.log)


def _silent(_: str) -> None:
    """No report."""


def _stop_in_order(records: Sequence[ProcessRecord], report: Report) -> None:
    """Router and stages first, Redis last, so that the last answers can still be recorded and the features saved."""
    databases = [one for one in records if one.name in (FEATURES, CACHES)]
    for group in ([one for one in records if one not in databases], databases):
        for name in stop(group, GRACE_S):
            report(f"{name} did not stop within {GRACE_S:.0f} s and was killed")


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise LocalError(f"cannot listen on {HOST}:{port}{_owner(port)}: {error.strerror}") from error


def _owner(port: int) -> str:
    """Who listens on a port, as far as this user may see it."""
    try:
        listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        pids = {one.pid for one in listening if one.laddr and one.laddr.port == port}
        return "".join(f" (pid {pid}, {psutil.Process(pid).name()})" for pid in pids if pid)
    except psutil.Error:
        return ""


@contextmanager
def _locked(run: Path) -> Iterator[None]:
    """One `recgraph local` at a time in a workspace."""
    run.mkdir(parents=True, exist_ok=True)
    with (run / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LocalError(f"another `recgraph local` or `recgraph demo` is at work in {run.parent}") from error
        yield
