"""Keeps the scenes in the chart's schema equal to recgraph.scenes: a wrong scene fails at install, with its path.

python -P helm/scenes_schema.py [--write]      exit code 1: they differ
"""

import json
import sys
from pathlib import Path
from typing import Any

from recgraph.scenes import SceneFile

SCHEMA = Path(__file__).parent / "recgraph" / "values.schema.json"


def merged(schema: dict[str, Any]) -> dict[str, Any]:
    """The chart's schema with the scenes' definitions, without their prose."""
    made = SceneFile.model_json_schema(ref_template="#/definitions/{model}")
    definitions = made.pop("$defs")
    return {
        **schema,
        "definitions": {**schema["definitions"], **_bare(definitions)},
        "properties": {**schema["properties"], "scenes": _bare(made["properties"]["scenes"])},
    }


def _bare(node: Any) -> Any:
    if isinstance(node, dict):
        prose = {"title", "description", "default"} if "type" in node or "$ref" in node or "anyOf" in node else set()
        return {key: _bare(value) for key, value in node.items() if key not in prose}
    return [_bare(value) for value in node] if isinstance(node, list) else node


def main() -> int:
    """Compares or, with --write, writes."""
    text = SCHEMA.read_text(encoding="utf-8")
    wanted = json.dumps(merged(json.loads(text)), indent=2) + "\n"
    if "--write" in sys.argv[1:]:
        SCHEMA.write_text(wanted, encoding="utf-8")
        return 0
    if text != wanted:
        sys.stderr.write(f"{SCHEMA}: the scenes are not those of recgraph.scenes: python -P {__file__} --write\n")
    return int(text != wanted)


if __name__ == "__main__":
    sys.exit(main())
