"""`recgraph explain`: why an item was not shown."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recgraph.cli.local import HOME, HomeOption
from recgraph.cli.output import Output, OutputOption, errors, print_json, print_table
from recgraph.errors import DataError
from recgraph.local.state import load_state
from recgraph.local.verdict import judge, read_record


def explain(
    request_id: Annotated[str, typer.Argument(help="The request_id of an answer.")],
    item: Annotated[str, typer.Argument(help="Id of the item.")],
    home: HomeOption = HOME,
    redis: Annotated[str | None, typer.Option(help="URL of the cache Redis; by default the local graph's.")] = None,
    output: OutputOption = Output.table,
) -> None:
    """Say at which stage of a request an item was lost and why, or at which place it was shown.

    Exit code 0: the record tells. 1: there is no record of the request.
    """
    with errors():
        records = read_record(redis or _local_redis(home), request_id)
        verdict = judge(request_id, item, records)
    if output is Output.json:
        print_json(verdict)
        return
    typer.echo(verdict.text)
    head = ["STAGE", "STATUS", "PLACE", "SCORE", "REASON"]
    rows = [
        [one.stage, one.status, one.place or "-", "-" if one.score is None else f"{one.score:.4f}", one.reason or "-"]
        for one in verdict.path
    ]
    print_table(head, rows)


def _local_redis(home: Path) -> str:
    state = load_state(home / "run")
    if state is None:
        raise DataError(f"the graph of {home} is down, and the records with it: `recgraph local up`, or name --redis")
    return state.caches_redis
