"""What the commands print: tables or JSON on stdout, progress and errors on stderr."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer

from recgraph.errors import RecgraphError


class Output(StrEnum):
    """How data is printed."""

    table = "table"
    json = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How the result is printed.")]


@contextmanager
def errors(code: int = 1) -> Iterator[None]:
    """Ends the command with `code` and the message of an error that we raise, or of the file system."""
    try:
        yield
    except (RecgraphError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(code) from error


def progress(message: str) -> None:
    """A line about what goes on."""
    typer.echo(message, err=True)


def print_json(value: Any) -> None:
    """`value` as indented JSON on stdout."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested values under dotted names."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns on stdout, as wide as they need to be; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(column) for column in columns) for columns in zip(head, *cells, strict=True)]
    right = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(head))]
    for line in [list(head), *cells]:
        aligned = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)]
        typer.echo("  ".join(aligned).rstrip())


def _cell(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)
