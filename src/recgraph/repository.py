"""Where the files of the checkout are that are not part of the package: feature repository, graph manifest, scenes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from recgraph.errors import DataError


def feast_repo() -> Path:
    """The folder of feature_store.yaml: RECGRAPH_FEAST_REPO, else the checkout's. Raises DataError if there is none."""
    return _find("RECGRAPH_FEAST_REPO", "feast_repo", "feature_store.yaml")


def graph_file() -> Path:
    """inferencegraph/cascade.yaml: RECGRAPH_GRAPH, else the checkout's. Raises DataError if there is none."""
    return _find("RECGRAPH_GRAPH", "inferencegraph/cascade.yaml", "")


def scenes_file() -> Path:
    """inferencegraph/scenes.yaml: RECGRAPH_SCENES, else the checkout's. Raises DataError if there is none."""
    return _find("RECGRAPH_SCENES", "inferencegraph/scenes.yaml", "")


def chart_folder() -> Path:
    """helm/recgraph: RECGRAPH_CHART, else the checkout's. Raises DataError if there is none."""
    return _find("RECGRAPH_CHART", "helm/recgraph", "Chart.yaml")


def _find(variable: str, relative: str, marker: str) -> Path:
    named = os.environ.get(variable)
    if named:
        if (Path(named) / marker).is_file():
            return Path(named).resolve()
        raise DataError(f"{variable}={named}: there is no {marker or 'such file'}")
    for root in _roots():
        if (root / relative / marker).is_file():
            return root / relative
    raise DataError(f"{relative} was not found: run inside the checkout of recgraph, or set {variable}")


def _roots() -> Iterator[Path]:
    """The checkout that this package runs from (an editable install), then the working directory and those above."""
    yield Path(__file__).resolve().parents[2]
    yield from (Path.cwd(), *Path.cwd().parents)
