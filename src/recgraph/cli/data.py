"""`recgraph data`: make or import a data set, and write the feature sources of one."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from recgraph.cli.output import Output, OutputOption, errors, flat, print_json
from recgraph.cli.progress import progress_bars
from recgraph.errors import DataError

app = typer.Typer(no_args_is_help=True, help="Make or import a data set; write the sources of the features.")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SHOWN_PROBLEMS = 20
OutOption = Annotated[Path, typer.Option("--out", help="Folder to write; a data set in it is replaced.")]


@app.command()
def make(
    out: OutOption,
    items: Annotated[int, typer.Option(help="Items, 1,000 to 10,000,000.")] = 20_000,
    users: Annotated[int | None, typer.Option(help="Users; by default a quarter of the items.")] = None,
    events: Annotated[int | None, typer.Option(help="Impressions, about; by default 160 per user.")] = None,
    days: Annotated[int, typer.Option(help="Days that the events span.")] = 60,
    seed: Annotated[int, typer.Option(help="Same seed and sizes, same files.")] = 0,
    end: Annotated[str, typer.Option(help="End of the events, ISO 8601 in UTC.")] = "2026-01-01T00:00:00Z",
    output: OutputOption = Output.table,
) -> None:
    """Make a seeded synthetic world."""
    from recgraph.data import synthetic, world

    try:
        size = synthetic.parameters(items, users, events, days=days, seed=seed, end=_moment("--end", end) // 1_000_000)
    except DataError as error:
        raise typer.BadParameter(str(error)) from error
    with errors(), progress_bars() as progress:
        begun = time.perf_counter()
        world.check_target(out)
        meta = world.save(synthetic.make_world(size, progress), out)
    _summary({"out": str(out), **msgspec.to_builtins(meta), "seconds": _since(begun)}, output)


@app.command(name="import")
def import_(
    ratings: Annotated[Path, typer.Option(help="File of user::item::rating::unix_time.")],
    items: Annotated[Path, typer.Option(help="File of item::title (year)::genre|genre.")],
    out: OutOption,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first malformed line.")] = False,
    click_threshold: Annotated[float, typer.Option(help="Ratings from here on are clicks (MovieLens: 4).")] = 7.0,
    output: OutputOption = Output.table,
) -> None:
    """Import MovieLens-format files."""
    from recgraph.data import movielens, world

    with errors(), progress_bars() as progress:
        begun = time.perf_counter()
        world.check_target(out)
        found = movielens.import_movielens(
            ratings, items, click_threshold=click_threshold, strict=strict, progress=progress
        )
        meta = world.save(found.world, out)
    skipped = meta.counts.skipped_lines
    for problem in found.problems[:_SHOWN_PROBLEMS]:
        typer.echo(f"skipped {problem}", err=True)
    if skipped > _SHOWN_PROBLEMS:
        typer.echo(f"... and {skipped - _SHOWN_PROBLEMS} more", err=True)
    _summary({"out": str(out), **msgspec.to_builtins(meta), "seconds": _since(begun)}, output)


@app.command()
def sources(
    world: Annotated[Path, typer.Option(help="Folder of the data set.")],
    out: Annotated[Path, typer.Option(help="Folder to write; sources in it are replaced.")],
    cadence: Annotated[str, typer.Option(help="At most one row per entity and period (1d, 1h, 30m); 0: all.")] = "1d",
    start: Annotated[str | None, typer.Option(help="Rows from here on, and the last one before (ISO 8601).")] = None,
    end: Annotated[str | None, typer.Option(help="Rows up to here, by default the end of the events.")] = None,
    output: OutputOption = Output.table,
) -> None:
    """Write the Parquet sources of the features from a data set."""
    from recgraph.data import sources as writer
    from recgraph.data import world as container

    first = None if start is None else _moment("--start", start)
    last = None if end is None else _moment("--end", end)
    if first is not None and last is not None and first > last:
        raise typer.BadParameter(f"{start} is after --end {end}", param_hint="--start")
    cadence_us = _duration(cadence)
    with errors(), progress_bars() as progress:
        begun = time.perf_counter()
        loaded = container.load(world)
        span = writer.span_of(loaded, cadence_us, first, last)
        rows = writer.write_sources(loaded, out, span, progress)
    until = datetime.fromtimestamp(span.end_us / 1_000_000, UTC).isoformat()
    _summary({"out": str(out), "cadence": cadence, "end": until, "rows": rows, "seconds": _since(begun)}, output)


def _since(begun: float) -> float:
    return round(time.perf_counter() - begun, 2)


def _moment(option: str, text: str) -> int:
    """Microseconds since the epoch of an ISO 8601 time, UTC where it names no zone."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not an ISO 8601 time", param_hint=option) from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def _duration(text: str) -> int:
    """Microseconds of 30m, 1h, 1d or 0."""
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    if text == "0":
        return 0
    if not match:
        raise typer.BadParameter(f"{text!r} is not a number with s, m, h or d, nor 0", param_hint="--cadence")
    return int(match.group(1)) * _UNITS[match.group(2)] * 1_000_000


def _summary(values: dict[str, Any], output: Output) -> None:
    if output is Output.json:
        print_json(values)
        return
    rows = list(flat(values))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        typer.echo(f"{name:<{width}}  {value}")
