"""How long work reports how far it is: a plain callable, so that the library draws nothing itself."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called now and then with what is being done and the share of it (0 to 1) that is done."""

    def __call__(self, task: str, done: float, /) -> None: ...


def silent(task: str, done: float, /) -> None:
    """Reports nothing."""
