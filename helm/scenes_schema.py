"""Keeps scenes and training.config of the schema equal to the library: wrong ones fail at install, with their path.

python -P helm/scenes_schema.py [--write]      exit code 1: they differ
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from recgraph.scenes import SceneFile
from recgraph.training.pipeline import TrainingConfig

SCHEMA = Path(__file__).parent / "recgraph" / "values.schema.json"


def merged(schema: dict[str, Any]) -> dict[str, Any]:
    """The chart's schema with the definitions of the scenes and of the training, without their prose."""
    made = SceneFile.model_json_schema(ref_template="#/definitions/{model}")
    (training,), configs = msgspec.json.schema_components([TrainingConfig], ref_template="#/definitions/{name}")
    definitions = _bare(made.pop("$defs")) | {name: _closed(_bare(one)) for name, one in configs.items()}
    properties: dict[str, Any] = {**schema["properties"], "scenes": _bare(made["properties"]["scenes"])}
    jobs = properties["training"]
    properties["training"] = {**jobs, "properties": {**jobs["properties"], "config": training}}
    return {**schema, "definitions": {**schema["definitions"], **definitions}, "properties": properties}


def _closed(definition: dict[str, Any]) -> dict[str, Any]:
    """msgspec leaves objects open; `recgraph train` does not."""
    return {**definition, "additionalProperties": False}


def _bare(node: Any) -> Any:
    if isinstance(node, dict):
        if "prefixItems" in node:  # of a later draft than helm's schema
            node = {**node, "items": node["prefixItems"], "prefixItems": None}
        prose = {"title", "description", "default"} if "type" in node or "$ref" in node or "anyOf" in node else set()
        return {key: _bare(value) for key, value in node.items() if key not in prose and value is not None}
    return [_bare(value) for value in node] if isinstance(node, list) else node


def main() -> int:
    """Compares or, with --write, writes."""
    text = SCHEMA.read_text(encoding="utf-8")
    wanted = json.dumps(merged(json.loads(text)), indent=2) + "\n"
    if "--write" in sys.argv[1:]:
        SCHEMA.write_text(wanted, encoding="utf-8")
        return 0
    if text != wanted:
        sys.stderr.write(f"{SCHEMA}: scenes or training are not the library's: python -P {__file__} --write\n")
    return int(text != wanted)


if __name__ == "__main__":
    sys.exit(main())
