"""`recgraph ask`: one request to the running graph, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer
from msgspec import UNSET

from recgraph.cli.local import PORT, PortOption
from recgraph.cli.output import Output, OutputOption, errors, print_json, print_table
from recgraph.contract import Answer, TraceEntry
from recgraph.local import client

SceneOption = Annotated[str, typer.Option(help="The place of the product that asks.")]
SCENE = "home_feed"


def ask(
    user: Annotated[str, typer.Argument(help="Id of the user; an unknown one is a cold start, not an error.")],
    scene: SceneOption = SCENE,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what every stage received, kept and removed.")
    ] = False,
    port: PortOption = PORT,
    output: OutputOption = Output.table,
) -> None:
    """Ask the running graph for a user's list. Exit code 0: there is one. 1: the graph did not answer with one."""
    with errors():
        answer = client.ask(port, user, scene, explain=explain)
    if output is Output.json:
        print_json(answer)
        return
    print_answer(answer)


def print_answer(answer: Answer, titles: Mapping[str, str] | None = None) -> None:
    """The list, then what every stage did where the answer has it, then what was degraded."""
    version = answer.bundle.version if answer.bundle else "none"
    typer.echo(f"request {answer.request_id}  bundle {version}")
    named = titles or {}
    rows: list[list[object]] = [
        [place, one.item_id, f"{one.score:.4f}", one.source, named.get(one.item_id, "")]
        for place, one in enumerate(answer.items, 1)
    ]
    columns = 5 if named else 4
    print_table(["#", "ITEM", "SCORE", "SOURCE", "TITLE"][:columns], [row[:columns] for row in rows])
    if answer.trace is not UNSET and answer.trace:
        typer.echo("")
        print_table(["STAGE", "MS", "RECEIVED", "KEPT", "REMOVED"], [_trace_row(entry) for entry in answer.trace])
    for one in answer.degraded:
        typer.echo(f"degraded: {one.stage}: {one.reason}, answered with {one.action}")


def _trace_row(entry: TraceEntry) -> list[object]:
    removed = ", ".join(f"{count} {reason}" for reason, count in sorted(entry.removed.items(), key=lambda one: -one[1]))
    short = f"; {entry.short} places short" if entry.short else ""
    return [entry.stage, entry.ms, entry.received, entry.kept, (removed or "-") + short]
