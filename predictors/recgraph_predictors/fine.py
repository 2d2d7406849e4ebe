"""Predictor of the fine stage.

`python -P -m recgraph_predictors.fine --http_port P --grpc_port G --model_name NAME`
"""

from __future__ import annotations

from recgraph.models.fine import load
from recgraph_predictors.shell import run


def main() -> None:
    """Serves until SIGTERM."""
    run("fine", load)


if __name__ == "__main__":
    main()
