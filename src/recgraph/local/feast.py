"""Feast's ordinary commands, run in feast_repo/ for a workspace."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq

from recgraph.errors import DataError

APPLY_TIMEOUT_S = 300.0
MATERIALIZE_TIMEOUT_S = 6 * 3600.0
_TAIL_LINES = 20


def environment(offline: Path, registry: Path, redis_address: str) -> dict[str, str]:
    """What feast_repo/feature_store.yaml and definitions.py read. `redis_address` is host:port."""
    return {
        "RECGRAPH_OFFLINE": str(offline.resolve()),
        "RECGRAPH_REGISTRY": f"sqlite:///{registry.resolve()}",
        "RECGRAPH_FEATURES_REDIS": redis_address,
        "FEAST_USAGE": "False",  # Feast would report its use over the network
    }


def apply(repo: Path, env: Mapping[str, str], log: Path) -> None:
    """`feast apply`. Raises DataError with the end of its output."""
    run(repo, ["apply"], env, log, APPLY_TIMEOUT_S)


def materialize(repo: Path, env: Mapping[str, str], start: datetime, end: datetime, log: Path) -> None:
    """`feast materialize START END`. Raises DataError with the end of its output."""
    moments = [f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S}" for moment in (start, end)]
    run(repo, ["materialize", *moments], env, log, MATERIALIZE_TIMEOUT_S)


def run(repo: Path, arguments: list[str], env: Mapping[str, str], log: Path, timeout_s: float) -> None:
    """One Feast command, with its output in `log`."""
    script = Path(sys.executable).with_name("feast")
    if not script.exists():
        raise DataError(f'{script}: Feast is not installed: pip install "recgraph[jobs]"')
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        try:
            done = subprocess.run(  # noqa: S603
                [sys.executable, "-P", str(script), *arguments],
                cwd=repo,
                env=os.environ | env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise DataError(f"feast {arguments[0]} did not end within {timeout_s:.0f} s: {log}") from error
    if done.returncode != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        raise DataError("\n".join([f"feast {arguments[0]} ended with code {done.returncode}: {log}", *lines]))


def span(sources: Iterable[Path]) -> tuple[datetime, datetime]:
    """A window that holds every event_timestamp of Parquet sources, in whole seconds; Feast's ends are inclusive."""
    lows, highs = [], []
    for path in sources:
        file = pq.ParquetFile(path)
        column = file.schema_arrow.names.index("event_timestamp")
        for group in range(file.metadata.num_row_groups):
            statistics = file.metadata.row_group(group).column(column).statistics
            if statistics is None or not statistics.has_min_max:
                raise DataError(f"{path}: no statistics of event_timestamp")
            lows.append(statistics.min)
            highs.append(statistics.max)
    if not lows:
        raise DataError("the sources of the features are empty")
    start = min(lows).replace(microsecond=0)
    end = max(highs).replace(microsecond=0) + timedelta(seconds=1)
    return start, end
