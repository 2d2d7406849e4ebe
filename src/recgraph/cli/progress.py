"""How far long work is, as bars on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress as Bars
from rich.progress import TaskID, TimeElapsedColumn

from recgraph.data.progress import Progress, silent


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """A bar per task on stderr, on a terminal only."""
    if not sys.stderr.isatty():
        yield silent
        return
    with Bars(*Bars.get_default_columns()[:3], TimeElapsedColumn(), console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def report(task: str, done: float, /) -> None:
            if task not in tasks:
                tasks[task] = bars.add_task(task, total=1.0)
            bars.update(tasks[task], completed=done)

        yield report
