"""A client of the running graph, for the tools: one POST, never a retry."""

from __future__ import annotations

import http.client
from typing import Any

import msgspec

from recgraph.contract import Answer
from recgraph.errors import DataError

TIMEOUT_S = 10.0
_answers = msgspec.json.Decoder(Answer)


class GraphError(DataError):
    """The graph did not answer with a list; the message says what it said instead."""


def ask(port: int, user_id: str, scene: str, *, explain: bool, context: dict[str, Any] | None = None) -> Answer:
    """The graph's answer for a user. Raises GraphError where nothing answers, or not with 200."""
    body = {"user": {"user_id": user_id, "scene": scene}, "explain": explain, "context": context or {}}
    status, content = post(port, msgspec.json.encode(body))
    if status != 200:
        raise GraphError(f"the graph answered {status}: {content.decode('utf-8', 'replace')[:500]}")
    try:
        return _answers.decode(content)
    except msgspec.DecodeError as error:
        raise GraphError(f"the graph's answer is not one of the contract: {error}") from error


def post(port: int, body: bytes) -> tuple[int, bytes]:
    """Status and body of a POST to the graph on 127.0.0.1. Raises GraphError where no answer comes within 10 s."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", "/", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise GraphError(f"nothing answers on 127.0.0.1:{port} ({reason}): is `recgraph local up` done?") from error
    finally:
        connection.close()
