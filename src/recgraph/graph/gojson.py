"""JSON as Go reads and writes it, where the router's answer depends on that.

`json.Valid` decides the Content-Type, `json.Unmarshal` into a map decides whether an Ensemble's step counts, and
`json.Marshal` writes keys sorted, numbers as float64 and `<`, `>`, `&` escaped.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import orjson

INVALID = object()
_KINDS = {"bool": "bool", "str": "string", "list": "array"}
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def parse(body: bytes) -> Any:
    """The document of `body`, or INVALID.

    orjson is stricter than Go about bad UTF-8, lone surrogates and huge numbers, so what it refuses is read again.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return _parse_leniently(body)


def _parse_leniently(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8", "replace"), parse_constant=_refuse, parse_int=float)
    except (ValueError, RecursionError):
        return INVALID


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def unmarshal_map(body: bytes) -> dict[str, Any] | None:
    """`body` as a map, None for null. Raises ValueError with Go's message for anything else."""
    document = parse(body)
    if document is INVALID:
        raise ValueError("invalid character in JSON" if body else "unexpected end of JSON input")
    if document is not None and not isinstance(document, dict):
        kind = _KINDS.get(type(document).__name__, "number")
        raise ValueError(f"json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}")
    if _overflows(document):
        raise ValueError("json: cannot unmarshal number into Go value of type float64")
    return document


def _overflows(document: object) -> bool:
    """Whether a number in the document is beyond float64."""
    if isinstance(document, dict):
        return any(_overflows(value) for value in document.values())
    if isinstance(document, list):
        return any(_overflows(value) for value in document)
    return isinstance(document, float) and math.isinf(document)


def marshal(value: Any, *, sort_keys: bool = True) -> bytes:
    """`value` as json.Marshal writes a map (keys sorted) or a struct (`sort_keys=False`)."""
    return _text(value, sort_keys).translate(_ESCAPES).encode("utf-8", "replace")


def _text(value: Any, sort_keys: bool) -> str:
    if isinstance(value, dict):
        items = sorted(value.items()) if sort_keys else value.items()
        return "{" + ",".join(f"{_string(key)}:{_text(item, sort_keys)}" for key, item in items) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_text(item, sort_keys) for item in value) + "]"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(float(value))
    return json.dumps(value)


def _string(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    """encoding/json's float64: decimal between 1e-6 and 1e21, else an exponent without a leading zero."""
    number = Decimal(repr(value)).normalize()
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    if 1e-6 <= abs(value) < 1e21:
        return format(number, "f")
    sign, digits, _ = number.as_tuple()
    text = "".join(map(str, digits))
    mantissa = text[0] + ("." + text[1:] if len(text) > 1 else "")
    return f"{'-' if sign else ''}{mantissa}e{number.adjusted():+d}"
