"""`recgraph train`: from a data set and its feature sources to a bundle."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from recgraph.cli.output import Output, OutputOption, errors, flat, print_json, print_table
from recgraph.cli.progress import progress_bars
from recgraph.repository import graph_file


def train(
    world: Annotated[Path, typer.Option(help="Folder of the data set.")],
    offline: Annotated[Path, typer.Option(help="Folder of the feature sources (`recgraph data sources`).")],
    registry: Annotated[str, typer.Option(help="SQLAlchemy URL of the Feast registry, after `feast apply`.")],
    out: Annotated[Path, typer.Option(help="Folder of bundles; the new one is OUT/<version>.")],
    seed: Annotated[int, typer.Option(help="Same seed and data, same files.")] = 0,
    version: Annotated[str | None, typer.Option(help="Name of the bundle; by default a digest of its files.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML with training parameters.")] = None,
    scenes: Annotated[Path | None, typer.Option(help="Scene configuration to train and evaluate with.")] = None,
    project: Annotated[str, typer.Option(help="Feast project.")] = "recgraph",
    output: OutputOption = Output.table,
) -> None:
    """Train every stage, evaluate the cascade on the held-out time, and write a bundle."""
    begun = time.perf_counter()
    with errors(), progress_bars() as progress:
        # Torch and Feast take seconds to import; the other commands do without them.
        from recgraph.bundle import Bundle
        from recgraph.data import world as worlds
        from recgraph.scenes import parse_scenes
        from recgraph.training import pipeline

        chosen = scenes or graph_file().with_name("scenes.yaml")
        job = pipeline.TrainingJob(
            world=worlds.load(world),
            offline=offline,
            bundles=out,
            definitions=pipeline.read_definitions(registry, project),
            scenes=parse_scenes(chosen.read_text(encoding="utf-8"), str(chosen)),
            seed=seed,
            version=version,
            config=pipeline.read_config(config) if config else pipeline.TrainingConfig(),
            progress=progress,
        )
        bundle = Bundle.open(asyncio.run(pipeline.train_bundle(job)), verify="hash")
    summary = {"bundle": str(bundle.path), "version": bundle.version, "seconds": round(time.perf_counter() - begun, 1)}
    if output is Output.json:
        print_json({**summary, "metrics": bundle.manifest.metrics})
    else:
        values = [*summary.items(), *flat(bundle.manifest.metrics)]
        print_table(["metric", "value"], [[name, shown(value)] for name, value in values])


def shown(value: Any) -> str:
    """A value as a table shows it: floats with four digits, what is not defined as a dash."""
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
