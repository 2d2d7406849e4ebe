"""`recgraph arms`, and in an image without the other commands `python -P -m recgraph.release`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated
from urllib.error import URLError
from urllib.request import urlopen

import typer

from recgraph.errors import DataError
from recgraph.release import arms as arms_of
from recgraph.release import store
from recgraph.release.arms import Arms

app = typer.Typer(no_args_is_help=True, help="Which bundle serves which users: publish it, show it.")
RedisOption = Annotated[
    str, typer.Option("--caches-redis", envvar="RECGRAPH_CACHES_REDIS", help="redis:// URL of the cache Redis.")
]
_PROBE_S = 2.0
_PAUSE_S = 0.5


@app.command()
def publish(
    caches_redis: RedisOption,
    file: Annotated[Path | None, typer.Option("--file", help="arms.json, as the chart renders it.")] = None,
    text: Annotated[str, typer.Option("--arms", help="The same as text, instead of a file.")] = "",
    ready: Annotated[
        list[str] | None, typer.Option("--ready", help="A URL that has to answer 200 first; may be repeated.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds until Redis and every --ready have to answer.")] = 300.0,
    replace: Annotated[
        bool, typer.Option("--replace", help="Begin anew, whatever version is in force: for an installation.")
    ] = False,
) -> None:
    """Put arms in force, within a second, without a restart.

    Exit code 0: they are. 1: a newer version is in force. 2: Redis, or what --ready names, did not answer in time.
    """
    with _errors():
        arms = _arms(file, text)
        until = time.monotonic() + timeout
        for url in ready or [] if _has_users(arms) else []:
            _wait(lambda url=url: _probe(url), until)  # type: ignore[misc]
        _wait(lambda: _publish(caches_redis, arms, replace), until)
    typer.echo(arms_of.encode(arms).decode())


@app.command()
def weight(
    caches_redis: RedisOption,
    percent: Annotated[float, typer.Argument(min=0.0, max=100.0, help="Percent of the users for the canary.")],
) -> None:
    """Change the canary's weight at once, until the release publishes again. The values stay behind: see canary."""
    with _errors():
        held = store.read(caches_redis)
        if held is None:
            raise DataError("no arms were published yet")
        arms = arms_of.with_weight(held, percent)
        store.publish(caches_redis, arms)
    typer.echo(arms_of.encode(arms).decode())


@app.command()
def show(caches_redis: RedisOption) -> None:
    """Print the arms in force as JSON. Exit code 1: there are none."""
    with _errors():
        held = store.read(caches_redis)
        if held is None:
            raise DataError("no arms were published yet: entries serve the stable bundle that they started with")
    typer.echo(arms_of.encode(held).decode())


def _arms(file: Path | None, text: str) -> Arms:
    if (file is None) == (not text):
        raise typer.BadParameter("give either --file or --arms")
    return arms_of.parse(text, "--arms") if file is None else store.read_file(file)


def _has_users(arms: Arms) -> bool:
    return any(layer.weight for layer in arms.layers.values())


def _wait(attempt: Callable[[], str], until: float) -> None:
    """Tries until nothing is wrong. Ends the command with exit code 2 when the time is over."""
    while why := attempt():
        if time.monotonic() >= until:
            typer.echo(f"error: not in time: {why}", err=True)
            raise typer.Exit(2)
        time.sleep(_PAUSE_S)


def _publish(url: str, arms: Arms, replace: bool) -> str:
    """Empty where it is done, else why Redis could not be reached: at an installation it starts beside this."""
    try:
        store.publish(url, arms, replace=replace)
    except store.CacheGone as error:
        return str(error)
    return ""


def _probe(url: str) -> str:
    """Empty where the URL answers 200, else what it did."""
    if not url.startswith(("http://", "https://")):
        raise DataError(f"--ready {url}: not an http URL")
    try:
        with urlopen(url, timeout=_PROBE_S):  # noqa: S310  the scheme was checked
            return ""
    except (URLError, OSError) as error:
        return f"{url}: {error}"


@contextmanager
def _errors() -> Iterator[None]:
    """As recgraph.cli.output.errors, which would import every other command."""
    try:
        yield
    except DataError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
