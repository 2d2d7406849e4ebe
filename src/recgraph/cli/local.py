"""`recgraph local`: the whole graph on this machine, every part a process of its own."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from recgraph.cli.output import Output, OutputOption, errors, print_json, print_table, progress
from recgraph.local import runner
from recgraph.local.state import State, load_state

app = typer.Typer(no_args_is_help=True, help="Run the graph on this machine.")

HomeOption = Annotated[Path, typer.Option("--home", envvar="RECGRAPH_HOME", help="The workspace.")]
PortOption = Annotated[int, typer.Option("--port", help="Where the graph answers, on 127.0.0.1.")]
HOME = Path(".recgraph")
PORT = 8080


@app.command()
def up(
    home: HomeOption = HOME,
    port: PortOption = PORT,
    bundle: Annotated[Path | None, typer.Option(help="Folder of the bundle; the workspace's newest if none.")] = None,
    scenes: Annotated[
        Path | None, typer.Option(help="Scene configuration; inferencegraph/scenes.yaml if none.")
    ] = None,
    graph: Annotated[Path | None, typer.Option(help="The InferenceGraph to run.")] = None,
    wall_clock: Annotated[
        bool, typer.Option("--wall-clock", help="Serve at today's date, not as if the data's last event were now.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds until everything has to be ready.")] = 180.0,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, and stop everything at Ctrl-C.")] = False,
) -> None:
    """Start two Redis, every stage and the router; return when the graph answers.

    Exit code 0: it is up (also when it was before). 1: it could not be started, and nothing is left running.
    """
    with errors():
        options = runner.Options(home, graph, scenes, port, bundle, wall_clock, timeout)
        state = runner.up(options, progress)
        typer.echo(f"the graph answers on {state.url} with bundle {state.bundle_version}")
        if foreground:
            _stay(home, state)


def _stay(home: Path, state: State) -> None:
    """Until Ctrl-C or SIGTERM, or until a process ends: that is an error."""
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: asked.append(received))
    try:
        runner.watch(state, lambda: bool(asked))
    finally:
        runner.down(home, progress)


@app.command()
def status(home: HomeOption = HOME, output: OutputOption = Output.table) -> None:
    """Show every process. Exit code 0: all of them are up. 1: not."""
    with errors():
        state = load_state(home / "run")
    if state is None:
        typer.echo(f"the graph of {home} is down", err=True)
        raise typer.Exit(1)
    rows = runner.status(state)
    memory = sum(row.memory_mib for row in rows)
    if output is Output.json:
        print_json({"url": state.url, "bundle": state.bundle_version, "memory_mib": memory, "processes": rows})
    else:
        head = ["NAME", "PID", "PORT", "STATE", "MEMORY MiB", "UPTIME s"]
        print_table(head, [[r.name, r.pid, r.port, r.state, r.memory_mib, r.uptime_s] for r in rows])
        typer.echo(
            f"\n{state.url}  bundle {state.bundle_version}  memory {memory:.0f} MiB  logs in {home / 'run/logs'}"
        )
    if any(row.state != "up" for row in rows):
        raise typer.Exit(1)


@app.command()
def down(home: HomeOption = HOME) -> None:
    """Stop everything that `up` started. The features in Redis are kept for the next start."""
    with errors():
        stopped = runner.down(home, progress)
    typer.echo(f"stopped {len(stopped)} processes" if stopped else f"the graph of {home} was down")
