"""recgraph bench: what things cost on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recgraph.cli.output import errors, print_json, print_table, progress

app = typer.Typer(no_args_is_help=True, help="Measure what things cost on this machine.")

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


@app.command()
def features(
    items: Annotated[list[int], typer.Option(min=1, help="Items per read; may be repeated.")] = [300, 2000],  # noqa: B006
    bundle: Annotated[Path | None, typer.Option(help="A bundle: also print the ledger of a fine rank.")] = None,
    repo: Annotated[Path, typer.Option(help="The folder of the feature definitions.")] = Path("feast_repo"),
    json: JsonOption = False,
) -> None:
    """Read features by our readers, by get_online_features, and one item at a time, side by side."""
    # Feast takes seconds to import: not for the other commands.
    from recgraph.bench import features as bench

    with errors():
        progress("filling an online store ...")
        result = bench.run(repo, items, bundle)
    if json:
        print_json(result)
        return
    head = ["items", "values", "way", "p50 ms", "p90 ms", "p99 ms", "x packed"]
    rows: list[list[object]] = []
    for reading in result.readings:
        for way, took in reading.latency_ms.items():
            slower = reading.times_slower_than_packed[way]
            measured = [f"{value:.2f}" for value in (took.p50, took.p90, took.p99)]
            rows.append([reading.items, reading.values_per_item, way, *measured, slower])
    print_table(head, rows)
    if result.ledger:
        typer.echo("")
        lines = [
            [line.part, *(f"{value:.2f}" for value in (line.latency_ms.p50, line.latency_ms.p99)), line.target_ms]
            for line in result.ledger
        ]
        print_table(["fine rank", "p50 ms", "p99 ms", "target ms"], lines)


@app.command()
def fine(
    bundle: Annotated[Path, typer.Option(help="The bundle whose fine model is measured.")],
    candidates: Annotated[int, typer.Option(min=1, max=5000, help="Candidates of one request.")] = 300,
    json: JsonOption = False,
) -> None:
    """Rank candidates by the fine model: one forward pass on one core, and item by item."""
    # torch takes seconds to import: not for the other commands.
    from recgraph.bench import fine as bench

    with errors():
        progress("measuring ...")
        result = bench.run(bundle, candidates)
    if json:
        print_json(result)
        return
    rows: list[list[object]] = [
        ["network, one forward pass", f"{result.forward_p50_ms:.2f}", f"{result.forward_p99_ms:.2f}", result.target_ms],
        ["whole prediction", f"{result.predict_p50_ms:.2f}", f"{result.predict_p99_ms:.2f}", ""],
        [f"item by item (x {result.item_by_item_ratio})", f"{result.item_by_item_p50_ms:.1f}", "", ""],
    ]
    print_table([f"{result.candidates} candidates", "p50 ms", "p99 ms", "target ms"], rows)
