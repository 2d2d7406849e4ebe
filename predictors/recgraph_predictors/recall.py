"""Predictor of the recall stage.

`python -P -m recgraph_predictors.recall --http_port P --grpc_port G --model_name NAME`
"""

from __future__ import annotations

from recgraph.models.recall import load
from recgraph_predictors.shell import run


def main() -> None:
    """Serves until SIGTERM."""
    run("recall", load)


if __name__ == "__main__":
    main()
