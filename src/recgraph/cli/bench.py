"""recgraph bench: what things cost on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from recgraph.bundle.manifest import MANIFEST
from recgraph.bundle.store import latest
from recgraph.cli.load import load
from recgraph.cli.output import errors, print_json, print_table, progress
from recgraph.data.progress import Progress, silent

app = typer.Typer(help="Measure what things cost on this machine; without a command, the running graph.")
# `recgraph bench` alone is the load test.
app.callback(invoke_without_command=True)(load)
app.command("load")(load)

_BUNDLE = "a bundle, or a folder of bundles, whose newest is taken."


def _bundle(path: Path) -> Path:
    """The bundle at a path. Raises BundleError where there is none."""
    return path if (path / MANIFEST).exists() else latest(path)


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


@app.command()
def features(
    items: Annotated[list[int], typer.Option(min=1, help="Items per read; may be repeated.")] = [300, 2000],  # noqa: B006
    bundle: Annotated[Path | None, typer.Option(help=f"Also print the ledger of a fine rank: {_BUNDLE}")] = None,
    repo: Annotated[Path, typer.Option(help="The folder of the feature definitions.")] = Path("feast_repo"),
    json: JsonOption = False,
) -> None:
    """Read features by our readers, by get_online_features, and one item at a time, side by side."""
    # Feast takes seconds to import: not for the other commands.
    from recgraph.bench import features as bench

    with errors():
        progress("filling an online store ...")
        result = bench.run(repo, items, bundle and _bundle(bundle))
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
    bundle: Annotated[Path, typer.Option(help=f"Whose fine model is measured: {_BUNDLE}")],
    candidates: Annotated[int, typer.Option(min=1, max=5000, help="Candidates of one request.")] = 300,
    json: JsonOption = False,
) -> None:
    """Rank candidates by the fine model: one forward pass on one core, and item by item."""
    # torch takes seconds to import: not for the other commands.
    from recgraph.bench import fine as bench

    with errors():
        progress("measuring ...")
        result = bench.run(_bundle(bundle), candidates)
    if json:
        print_json(result)
        return
    rows: list[list[object]] = [
        ["network, one forward pass", f"{result.forward_p50_ms:.2f}", f"{result.forward_p99_ms:.2f}", result.target_ms],
        ["whole prediction", f"{result.predict_p50_ms:.2f}", f"{result.predict_p99_ms:.2f}", ""],
        [f"item by item (x {result.item_by_item_ratio})", f"{result.item_by_item_p50_ms:.1f}", "", ""],
    ]
    print_table([f"{result.candidates} candidates", "p50 ms", "p99 ms", "target ms"], rows)


@app.command()
def faiss(
    items: Annotated[int, typer.Option(min=100, max=10_000_000, help="Items in the index.")] = 1_000_000,
    dim: Annotated[int, typer.Option(min=8, max=512, help="Dimensions; a multiple of 4.")] = 64,
    k: Annotated[int, typer.Option("-k", min=1, max=5000, help="Nearest items per query.")] = 1000,
    kind: Annotated[
        Literal["flat", "hnsw", "ivf", "ivfpq"] | None, typer.Option(help="By default as training chooses.")
    ] = None,
    data: Annotated[
        Literal["both", "clustered", "gaussian"],
        typer.Option(help="clustered: as towers make vectors; gaussian: the worst case."),
    ] = "both",
    json: JsonOption = False,
) -> None:
    """Search the nearest items of a user on one thread, at recall@k >= 0.95, and by exact search."""
    from recgraph.bench import faiss as bench

    chosen = tuple(bench.VECTORS) if data == "both" else (data,)
    with errors():
        result = bench.bench_faiss(items, dim, k, kind=kind, data=chosen, progress=_note())
    if json:
        print_json(result)
        return
    rows = [[name, *(str(result[column][name]) for column in chosen)] for name in result[chosen[0]]]
    print_table([f"{items:,} x {dim}, k={k}, one thread", *chosen], rows)
    typer.echo(f"peak memory of this process: {result['peak_memory_mb']} MiB")


def _note() -> Progress:
    """A line per step on stderr, on a terminal only."""

    def report(task: str, done: float, /) -> None:
        progress(f"{task} ...")

    return report if sys.stderr.isatty() else silent
