"""`recgraph bench` and `recgraph bench load`: constant-rate load on the running graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from recgraph.bench.load import Load, measure, summarize
from recgraph.cli.ask import SCENE, SceneOption
from recgraph.cli.local import HOME, PORT, HomeOption
from recgraph.cli.output import errors, print_json, print_table, progress
from recgraph.errors import DataError
from recgraph.http1 import parse_target
from recgraph.local import runner
from recgraph.local.state import State, load_state


def load(
    context: typer.Context,
    rate: Annotated[float, typer.Option(min=0.1, help="Requests per second, whatever the answers do.")] = 10.0,
    duration: Annotated[float, typer.Option(min=0.1, help="Seconds of load.")] = 60.0,
    warmup: Annotated[float, typer.Option(min=0.0, help="Seconds before it that do not count.")] = 5.0,
    users: Annotated[Path | None, typer.Option(help="File of user ids, one a line; else HOME/world's users.")] = None,
    unknown: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of requests for unknown users.")] = 0.05,
    explain: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Share of requests that ask to explain; the stages' times are theirs."),
    ] = 0.2,
    scene: SceneOption = SCENE,
    seed: Annotated[int, typer.Option(help="Same seed, same requests.")] = 0,
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds after which a request has failed.")] = 5.0,
    home: HomeOption = HOME,
    port: Annotated[int | None, typer.Option(help="Of the graph; else the one that HOME's graph answers on.")] = None,
    url: Annotated[
        str, typer.Option(help="A graph elsewhere: http://HOST:PORT/v1/recommend of a cluster's gateway.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")] = False,
) -> None:
    """Drive the running graph at a constant rate (open loop) and print percentiles per stage and whole.

    Latency counts from the moment a request was meant to leave; nothing is retried. `ok` counts answers with status
    200, `degraded` those of them that say so. Exit code 0: no request failed. 1: some did, or the graph is down.
    """
    if context.invoked_subcommand is not None:
        return  # `recgraph bench features` and the like
    with errors():
        state = None if url else load_state(home / "run")
        known = _users(users, home)
        plan = Load(
            _address(url, port, state),
            known,
            scene=scene,
            rate=rate,
            duration_s=duration,
            warmup_s=warmup,
            unknown=unknown,
            explain=explain,
            timeout_s=timeout,
            seed=seed,
        )
        _try(plan)
        progress(f"{warmup:g} s of warm-up, then {duration:g} s at {rate:g} requests a second ...")
        result = summarize(plan, measure(plan))
    result["memory_mib"] = _memory(state)
    print_json(result) if json else _print(result)
    if result["requests"]["failed"]:
        raise typer.Exit(1)


def _address(url: str, port: int | None, state: State | None) -> str:
    """The URL that is asked. Raises DataError for one that cannot be."""
    if not url:
        return f"http://127.0.0.1:{port or (state.port if state else PORT)}/"
    if port is not None:
        raise DataError("--url has its port: leave out --port")
    try:
        parse_target(url)
    except ValueError as error:
        raise DataError(f"--url {url}: {error}") from error
    return url


def _try(plan: Load) -> None:
    """One request ahead: an error that can be read, rather than a minute of failures. Raises DataError."""
    (outcome,) = measure(replace(plan, rate=1.0, duration_s=1.0, warmup_s=0.0))
    if outcome.error:
        raise DataError(f"{plan.url} does not answer with a list: {outcome.error}")


def _users(path: Path | None, home: Path) -> list[str]:
    """Ids of known users. Raises DataError where there are none."""
    if path is not None:
        found = [line for line in path.read_text(encoding="utf-8").splitlines() if line]
    else:
        import pyarrow.parquet as pq

        path = home / "world" / "users.parquet"
        if not path.exists():
            raise DataError(f"{path}: no such file; name the workspace with --home, or a file with --users")
        found = pq.read_table(path, columns=["user_id"])["user_id"].to_pylist()
    if not found:
        raise DataError(f"{path}: there are no users in it")
    return found


def _memory(state: State | None) -> float | None:
    """MiB of all processes of the local graph together, None where it is not ours."""
    return round(sum(row.memory_mib for row in runner.status(state)), 1) if state else None


def _print(result: dict[str, Any]) -> None:
    columns = ("p50", "p90", "p99", "max")
    rows = [
        [stage, *("-" if found[c] is None else f"{found[c]:.1f}" for c in columns)]
        for stage, found in result["latency_ms"].items()
    ]
    print_table(["", *(f"{c} ms" for c in columns)], rows)
    requests = "  ".join(f"{name} {count}" for name, count in result["requests"].items())
    typer.echo(f"\n{requests}")
    for title in ("errors", "degraded"):
        for reason, count in sorted(result[title].items()):
            typer.echo(f"{title}: {reason} {count}")
    if result["memory_mib"] is not None:
        typer.echo(f"memory of all processes {result['memory_mib']:.0f} MiB")
