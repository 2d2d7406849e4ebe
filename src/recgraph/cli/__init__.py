"""The `recgraph` command. Every group of commands is a module of this package."""

from __future__ import annotations

import typer

from recgraph.cli import ask, bench, canary, data, demo, explain, local, train
from recgraph.release import command as arms

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
app.add_typer(arms.app, name="arms")
app.add_typer(bench.app, name="bench")
app.add_typer(canary.app, name="canary")
app.add_typer(data.app, name="data")
app.add_typer(local.app, name="local")
app.command()(ask.ask)
app.command()(explain.explain)
app.command()(demo.demo)
app.command()(train.train)


def main() -> None:
    """Entry point of the console script."""
    app()
