"""Logging of the serving processes: JSON lines on stderr, one quiet logger tree, the request id where there is one."""

from __future__ import annotations

import json
import logging
import logging.config
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The request in work; every line that is logged meanwhile carries it, and so do the calls to a predictor."""

# What every LogRecord has; anything else on a record came through `extra=` and is printed.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC, ISO 8601), level, logger, message, then what `extra` gave."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of one record."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        current = request_id.get()
        if current:
            line["request_id"] = current
        line.update({name: value for name, value in vars(record).items() if name not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def logging_config(level: str) -> dict[str, Any]:
    """A dictConfig: ours at `level`; KServe and uvicorn, which log several lines per request, from WARNING on."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": "recgraph.logs.JsonFormatter"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stderr"}},
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": {
            "recgraph": {"level": level},
            "recgraph_predictors": {"level": level},
            "recgraph_transformers": {"level": level},
            # KServe configures its logger itself unless it finds a handler there.
            "kserve": {"handlers": ["stderr"], "level": "WARNING", "propagate": False},
            "kserve.trace": {"handlers": ["stderr"], "level": "WARNING", "propagate": False},
            "uvicorn": {"level": "WARNING"},
            "uvicorn.access": {"level": "CRITICAL"},
        },
    }


def configure(level: str) -> None:
    """Sets logging up for this process."""
    logging.config.dictConfig(logging_config(level))
