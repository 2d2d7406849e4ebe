"""A transformer stays small: what only predictors and jobs need is not even imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Not pyarrow: the SDK imports pandas, which imports pyarrow where it is installed.
HEAVY = {"torch", "faiss", "feast", "duckdb"}


@pytest.mark.parametrize("module", ["recgraph_transformers.recall", "recgraph_predictors.entry"])
def test_no_models_and_no_jobs_in_a_process_without_a_model(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
