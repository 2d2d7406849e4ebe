"""`recgraph demo`: everything, from data to recommendations, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recgraph.cli.ask import print_answer
from recgraph.cli.local import HOME, PORT, HomeOption, PortOption
from recgraph.cli.output import errors
from recgraph.cli.progress import progress_bars


def demo(
    home: HomeOption = HOME,
    port: PortOption = PORT,
    ratings: Annotated[Path | None, typer.Option(help="MovieLens-format ratings; with --items.")] = None,
    items: Annotated[Path | None, typer.Option(help="MovieLens-format items; with --ratings.")] = None,
    click_threshold: Annotated[float, typer.Option(help="Ratings from here on are clicks (MovieLens: 4).")] = 7.0,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first malformed line of the files.")] = False,
    world_items: Annotated[int, typer.Option(help="Items of the synthetic world.")] = 20_000,
    users: Annotated[int | None, typer.Option(help="Users of it; by default a quarter of the items.")] = None,
    events: Annotated[int | None, typer.Option(help="Impressions of it, about; by default 160 per user.")] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same data and bundle.")] = 0,
    config: Annotated[Path | None, typer.Option(help="YAML with training parameters.")] = None,
    rate: Annotated[float, typer.Option(min=0.1, help="Requests per second of the measurement.")] = 10.0,
    bench_s: Annotated[float, typer.Option(min=1.0, help="Seconds of the measurement.")] = 10.0,
    report: Annotated[Path | None, typer.Option(help="Write a report as JSON.")] = None,
    keep_up: Annotated[bool, typer.Option("--keep-up", help="Leave the graph running.")] = False,
) -> None:
    """Make or import data, run Feast, train a bundle, start the graph, ask it, and measure it.

    What an earlier run made of the same inputs is reused, and said so. Exit code 0: everything worked, 1: it did not.
    """
    if (ratings is None) != (items is None):
        raise typer.BadParameter("--ratings and --items belong together", param_hint="--ratings / --items")
    # Torch, Feast and FAISS take seconds to import; --help does without them.
    from recgraph.demo import Demo, DemoOptions

    options = DemoOptions(
        home=home,
        port=port,
        world_items=world_items,
        users=users,
        events=events,
        seed=seed,
        ratings=ratings,
        items=items,
        click_threshold=click_threshold,
        strict=strict,
        config=config,
        rate=rate,
        bench_s=bench_s,
        keep_up=keep_up,
        report=report,
    )
    with errors(), progress_bars() as progress:
        Demo(options, typer.echo, print_answer, progress).run()
    where = "" if home == HOME else f" --home {home}"
    if keep_up:
        typer.echo(f"the graph is up on port {port}; next: recgraph ask USER --explain --port {port}")
        typer.echo(f"                               recgraph bench{where}, recgraph local down{where}")
    else:
        typer.echo(f"next: recgraph local up{where}, recgraph ask USER --explain, recgraph bench{where}")
