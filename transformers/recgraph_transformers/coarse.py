"""Transformer of the coarse stage.

`python -P -m recgraph_transformers.coarse --http_port P --model_name NAME --predictor_host HOST:GRPCPORT`
"""

from __future__ import annotations

from recgraph_transformers.shell import run


def main() -> None:
    """Serves until SIGTERM."""
    run("coarse")


if __name__ == "__main__":
    main()
