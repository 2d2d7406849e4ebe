"""Log lines."""

from __future__ import annotations

import json
import logging

from recgraph import logs


def _line(**extra: object) -> dict[str, object]:
    record = logging.makeLogRecord(
        {"name": "recgraph.x", "levelname": "INFO", "msg": "kept %s", "args": ("7",), **extra}
    )
    parsed: dict[str, object] = json.loads(logs.JsonFormatter().format(record))
    return parsed


def test_a_line_is_json_with_what_was_given() -> None:
    line = _line(stage="fine")
    assert line["message"] == "kept 7"
    assert line["stage"] == "fine"
    assert "args" not in line
    assert "request_id" not in line


def test_the_request_in_work_is_named() -> None:
    token = logs.request_id.set("req_1")
    try:
        assert _line()["request_id"] == "req_1"
        assert _line(request_id="other")["request_id"] == "other"
    finally:
        logs.request_id.reset(token)


def test_lines_of_the_servers_are_quiet() -> None:
    config = logs.logging_config("INFO")["loggers"]
    assert config["uvicorn.access"]["level"] == "CRITICAL"
    assert config["kserve"]["level"] == config["kserve.trace"]["level"] == "WARNING"
