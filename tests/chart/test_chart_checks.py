"""The chart's own checks: lint, schema, unit tests, READMEs, plain manifests equal to what the chart renders."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("helm", "helm-unittest", "helm-docs")
SEARCH = os.pathsep.join([os.environ["PATH"], "/var/lib/testbed/bin"])


def test_helm_check_passes() -> None:
    absent = [tool for tool in TOOLS if shutil.which(tool, path=SEARCH) is None]
    if absent:
        pytest.skip(f"not on PATH: {', '.join(absent)}")

    done = subprocess.run([str(ROOT / "helm" / "check")], capture_output=True, text=True, check=False, timeout=110)

    assert done.returncode == 0, done.stdout + done.stderr
