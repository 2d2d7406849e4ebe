"""Transformer of the fine stage.

`python -P -m recgraph_transformers.fine --http_port P --model_name NAME --predictor_host HOST:GRPCPORT`
"""

from __future__ import annotations

from recgraph_transformers.shell import run


def main() -> None:
    """Serves until SIGTERM."""
    run("fine")


if __name__ == "__main__":
    main()
