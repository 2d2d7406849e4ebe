"""Fails unless a demo's report says that the final list beats live 3-day popularity, and that nothing failed."""

import json
import sys
from pathlib import Path


def main(path: str) -> str | None:
    """What is wrong with the report, or None."""
    report = json.loads(Path(path).read_text())
    over = report["metrics"]["final_over_popular_3d_live"]
    print(json.dumps({"quality": report["quality"], "final - live": over, "requests": report["requests"]}))  # noqa: T201
    if over["low"] <= 0:
        return f"the interval of final - popular_3d_live is [{over['low']}, {over['high']}]: not above zero"
    if report["requests"]["failed"]:
        return f"{report['requests']['failed']} requests failed"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
