"""`recgraph canary`: a second bundle for a share of the users, on a Helm release."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from recgraph.cli.output import Output, OutputOption, errors, print_json, print_table, progress
from recgraph.release import compare
from recgraph.release.canary import SETTLE_S, Canary, Release, Step, Usage, WaitTimeout
from recgraph.release.cluster import Cluster, ClusterError
from recgraph.release.compare import Comparison, Limits
from recgraph.release.helm import Helm
from recgraph.repository import chart_folder

app = typer.Typer(
    no_args_is_help=True,
    help="""Serve a second bundle to a share of the users, compare the two, and promote it or send everyone back.

    \b
    recgraph canary start shop --bundle v20261201 --weight 5
    recgraph canary status shop --window 300
    recgraph canary set shop 50
    recgraph canary promote shop
    recgraph canary abort shop

    Exit codes: 0 done, or the canary is as good. 1 failed, or the canary is worse. 2 wrong usage, too few requests, or
    timed out.
    """,
)


class StageLayer(StrEnum):
    """What a canary may cover."""

    cascade = "cascade"
    recall = "recall"
    coarse = "coarse"
    fine = "fine"
    rerank = "rerank"


ReleaseArgument = Annotated[str, typer.Argument(help="Name of the Helm release.")]
NamespaceOption = Annotated[str, typer.Option("--namespace", "-n", envvar="HELM_NAMESPACE", help="Its namespace.")]
ContextOption = Annotated[str, typer.Option("--context", help="Context of the kubeconfig; the current one if none.")]
ChartOption = Annotated[Path | None, typer.Option("--chart", help="The chart; the checkout's helm/recgraph if none.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds for the whole act.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the steps, and what each changes; change nothing.")]
WeightRange = typer.Option("--weight", min=0.0, max=100.0, help="Percent of the users.")
TIMEOUT_S = 900.0


@app.command()
def start(
    release: ReleaseArgument,
    bundle: Annotated[str, typer.Option("--bundle", help="Version of the bundle; it lies beside the stable one.")],
    weight: Annotated[float, WeightRange] = 0.0,
    layer: Annotated[
        list[StageLayer] | None, typer.Option("--layer", help="Cover a single stage; may be repeated.")
    ] = None,
    namespace: NamespaceOption = "default",
    context: ContextOption = "",
    chart: ChartOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    dry_run: DryRunOption = False,
) -> None:
    """Bring up the canary's pods, wait until they answer, then give them their share.

    \b
    recgraph canary start shop --bundle v20261201
    recgraph canary start shop --bundle v20261201 --weight 5 --layer fine
    """
    with _ends():
        canary = _canary(release, namespace, context, chart, timeout)
        layers = [one.value for one in layer or [StageLayer.cascade]]
        _do(canary, canary.start(bundle, weight, layers), dry_run)


@app.command(name="set")
def set_weight(
    release: ReleaseArgument,
    weight: Annotated[float, typer.Argument(min=0.0, max=100.0, help="Percent of the users.")],
    namespace: NamespaceOption = "default",
    context: ContextOption = "",
    chart: ChartOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    dry_run: DryRunOption = False,
) -> None:
    """Change the canary's share. A greater one only moves users from stable to canary; no pod restarts.

    \b
    recgraph canary set shop 20
    """
    with _ends():
        canary = _canary(release, namespace, context, chart, timeout)
        _do(canary, canary.set(weight), dry_run)


@app.command()
def promote(
    release: ReleaseArgument,
    settle: Annotated[
        float, typer.Option(min=0.0, help="Seconds between the last user's move and the end of the old pods.")
    ] = SETTLE_S,
    namespace: NamespaceOption = "default",
    context: ContextOption = "",
    chart: ChartOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    dry_run: DryRunOption = False,
) -> None:
    """Make the canary the stable bundle and remove the old pods. The canary's pods serve on, untouched.

    \b
    recgraph canary promote shop --dry-run
    recgraph canary promote shop
    """
    with _ends():
        canary = _canary(release, namespace, context, chart, timeout)
        canary.settle_s = settle
        _do(canary, canary.promote(), dry_run)


@app.command()
def abort(
    release: ReleaseArgument,
    namespace: NamespaceOption = "default",
    context: ContextOption = "",
    chart: ChartOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    dry_run: DryRunOption = False,
) -> None:
    """Send everyone back to the stable bundle within two seconds, then remove the canary's pods.

    \b
    recgraph canary abort shop
    """
    with _ends():
        canary = _canary(release, namespace, context, chart, timeout)
        _do(canary, canary.abort(), dry_run)


@app.command()
def status(
    release: ReleaseArgument,
    window: Annotated[
        float, typer.Option(min=0.0, help="Count for so many seconds from now; 0: since the pods started.")
    ] = 0.0,
    min_samples: Annotated[int, typer.Option(min=1, help="Requests that each arm needs.")] = Limits.min_samples,
    max_p99_ratio: Annotated[float, typer.Option(help="Canary's p99 over stable's.")] = Limits.p99_ratio,
    max_errors: Annotated[float, typer.Option(help="More errors than stable, as a share.")] = Limits.errors,
    max_degraded: Annotated[float, typer.Option(help="More degraded answers, as a share.")] = Limits.degraded,
    max_empty: Annotated[float, typer.Option(help="More empty pages, as a share.")] = Limits.empty,
    max_missing: Annotated[float, typer.Option(help="More missing features.")] = Limits.missing_features,
    max_drift: Annotated[float, typer.Option(help="Relative change of the mean score.")] = Limits.score_drift,
    namespace: NamespaceOption = "default",
    context: ContextOption = "",
    chart: ChartOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    output: OutputOption = Output.table,
) -> None:
    """Compare the two arms. Exit code 0: the canary is as good. 1: it is worse. 2: too few requests to say.

    \b
    recgraph canary status shop
    recgraph canary status shop --window 300 --min-samples 500 -o json
    """
    limits = Limits(min_samples, max_p99_ratio, max_errors, max_degraded, max_empty, max_missing, max_drift)
    with _ends():
        canary = _canary(release, namespace, context, chart, timeout)
        comparison = _compare(canary, limits, window)
        entries = canary.entries()
    if output is Output.json:
        print_json({"release": canary.release, "entries": entries, "comparison": comparison})
    else:
        _print_status(canary.release, entries, comparison)
    if canary.release.canary and comparison.verdict != "met":
        raise typer.Exit(1 if comparison.verdict == "worse" else 2)


def _canary(release: str, namespace: str, context: str, chart: Path | None, timeout: float) -> Canary:
    helm = Helm(release, namespace, chart or chart_folder(), context, timeout)
    values = helm.values()
    cluster = Cluster(namespace, context)
    return Canary(Release.of(release, cluster.fullname(release), values), helm, cluster, timeout)


@contextmanager
def _ends() -> Iterator[None]:
    """Exit code 2 for what the caller can mend or wait for, 1 for what failed."""
    with errors():
        try:
            yield
        except (Usage, WaitTimeout) as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from error


def _do(canary: Canary, steps: Sequence[Step], dry_run: bool) -> None:
    if not dry_run:
        canary.run(steps, progress)
        return
    for number, (what, command, objects) in enumerate(canary.plan(steps), 1):
        typer.echo(f"{number}. {what}")
        if command:
            typer.echo(f"   {shlex.join(command)}")
        for change, names in objects.items():
            for name in names:
                typer.echo(f"     {change} {name}")


def _compare(canary: Canary, limits: Limits, window_s: float) -> Comparison:
    release = canary.release
    before = _scrape(canary) if window_s else {}
    time.sleep(window_s)
    counted = [compare.since(before.get(pod, {}), now) for pod, now in _scrape(canary).items()]
    return compare.compare(counted, limits, (release.canary, frozenset(release.covered())), release.bundles())


def _scrape(canary: Canary) -> dict[str, compare.Counters]:
    """What every pod that counts shows; one that goes away meanwhile is left out, and told."""
    found = {}
    for pod in canary.cluster.pods(canary.release.name):
        if pod.stage != "entry" and pod.role != "transformer":
            continue
        try:
            found[pod.name] = compare.parse(canary.cluster.metrics(pod.name))
        except ClusterError as error:
            progress(f"left out: {error}")
    return found


def _print_status(release: Release, entries: dict[str, float], comparison: Comparison) -> None:
    bundles = {"stable": release.stable, "canary": release.canary or "-"}
    weights = {"stable": 100.0 - release.weight, "canary": release.weight}
    head = [
        "ARM",
        "BUNDLE",
        "WEIGHT %",
        "SHARE %",
        "REQUESTS",
        "P50 ms",
        "P99 ms",
        "ERRORS",
        "DEGRADED",
        "EMPTY",
        "SCORE",
    ]
    rows: list[list[object]] = [
        [
            *(arm.arm, bundles[arm.arm], weights[arm.arm], arm.share * 100.0, arm.requests),
            *(_or_dash(arm.p50), _or_dash(arm.p99), arm.errors, arm.degraded, arm.empty),
            "-" if arm.mean_score is None else f"{arm.mean_score:.4f}",
        ]
        for arm in comparison.arms
    ]
    print_table(head, rows)
    typer.echo("")
    for check in comparison.checks:
        if check.ok is not None:
            told = "ok" if check.ok else "WORSE"
            typer.echo(f"{told:6}{check.name}: stable {check.stable:.4g}, canary {check.canary:.4g}")
    covers = ", ".join(release.layers)
    versions = ", ".join(f"{version:.0f}" for version in sorted(set(entries.values())))
    typer.echo(f"arms in force: version {versions} on {len(entries)} entry pods")
    typer.echo(f"canary: {release.canary} covers {covers}: {comparison.verdict}" if release.canary else "no canary")


def _or_dash(value: float | None) -> object:
    return "-" if value is None else value
