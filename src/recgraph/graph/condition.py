"""Conditions of a step: the part of gjson's path syntax that tests whether a path exists.

KServe's router evaluates `condition` with gjson and looks only at `Exists()`. What is understood here is keys
separated by dots, array indices, and `\\` before a character that is meant literally. Wildcards, queries, modifiers
and pipes are refused when the graph is loaded, rather than read differently from the real router.
"""

from __future__ import annotations

from dataclasses import dataclass

from recgraph.errors import DataError

_SPECIAL = frozenset('*?#|@!{}[]()=<>%~"')


@dataclass(frozen=True)
class Condition:
    """A parsed path. `exists` is true where every part is found; a value of null exists, as in gjson."""

    parts: tuple[str, ...]

    def exists(self, document: object) -> bool:
        """Whether the path leads to a value in a parsed JSON document."""
        for part in self.parts:
            if isinstance(document, dict):
                if part not in document:
                    return False
                document = document[part]
            elif isinstance(document, list):
                if not (part.isascii() and part.isdigit()) or int(part) >= len(document):
                    return False
                document = document[int(part)]
            else:
                return False
        return True


def parse_condition(text: str) -> Condition:
    """The condition as a path. Raises DataError for what is outside the understood part of gjson."""
    parts = _split(text)
    if "" in parts:
        raise DataError(f"condition {text!r} has an empty key")
    return Condition(tuple(parts))


def _split(text: str) -> list[str]:
    parts, current = [], ""
    characters = iter(text)
    for character in characters:
        if character == "\\":
            escaped = next(characters, None)
            if escaped is None:
                raise DataError(f"condition {text!r} ends with a backslash")
            current += escaped
        elif character == ".":
            parts.append(current)
            current = ""
        elif character in _SPECIAL:
            raise DataError(f"condition {text!r} uses {character!r}: only keys, dots and array indices are supported")
        else:
            current += character
    return [*parts, current]
