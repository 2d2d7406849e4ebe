"""The chart's own checks: lint, schema, unit tests, READMEs, plain manifests equal to what the chart renders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from recgraph.settings import Budgets

ROOT = Path(__file__).parents[2]
TOOLS = ("helm", "helm-unittest", "helm-docs")
SEARCH = os.pathsep.join([os.environ["PATH"], "/var/lib/testbed/bin"])


def test_helm_check_passes() -> None:
    absent = [tool for tool in TOOLS if shutil.which(tool, path=SEARCH) is None]
    if absent:
        pytest.skip(f"not on PATH: {', '.join(absent)}")

    done = subprocess.run([str(ROOT / "helm" / "check")], capture_output=True, text=True, check=False, timeout=110)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_has_the_scenes_of_the_library() -> None:
    script = str(ROOT / "helm" / "scenes_schema.py")

    done = subprocess.run([sys.executable, "-P", script], capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 0, done.stderr


def test_the_values_have_the_scenes_of_the_local_graph() -> None:
    values = yaml.safe_load((ROOT / "helm" / "recgraph" / "values.yaml").read_text(encoding="utf-8"))
    local = yaml.safe_load((ROOT / "inferencegraph" / "scenes.yaml").read_text(encoding="utf-8"))

    assert values["scenes"] == local["scenes"]


def test_the_values_have_the_budgets_of_the_settings() -> None:
    values = yaml.safe_load((ROOT / "helm" / "recgraph" / "values.yaml").read_text(encoding="utf-8"))
    own = Budgets().model_dump(exclude={"read_share", "fallback_ms"})

    assert values["settings"]["budgets"] == own
