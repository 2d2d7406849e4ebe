"""Predictor of the coarse stage.

`python -P -m recgraph_predictors.coarse --http_port P --grpc_port G --model_name NAME`
"""

from __future__ import annotations

from recgraph.models.coarse import load
from recgraph_predictors.shell import run


def main() -> None:
    """Serves until SIGTERM."""
    run("coarse", load)


if __name__ == "__main__":
    main()
