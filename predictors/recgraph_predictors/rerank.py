"""Predictor of the rerank stage.

`python -P -m recgraph_predictors.rerank --http_port P --grpc_port G --model_name NAME`
"""

from __future__ import annotations

from recgraph.models.rerank import load
from recgraph_predictors.shell import run


def main() -> None:
    """Serves until SIGTERM."""
    run("rerank", load)


if __name__ == "__main__":
    main()
