"""Deadlines: how much time a request has left here, whatever the clocks of the machines say.

A hop sends `deadline_ms` (absolute, the clock of entry) and `remaining_ms` (what was left when it sent). Their
difference is the sender's time of sending, so the receiver's clock less that is the transit time. Where it is not
between 0 and 50 ms the clocks disagree: then `remaining_ms` less a hop allowance counts. Nothing ever exceeds the whole
budget, so that a wrong clock neither extends a request nor ends it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from msgspec import UnsetType

MAX_TRANSIT_MS: Final = 50.0


@dataclass(frozen=True)
class Deadline:
    """A moment on this process's monotonic clock (`at_s`, seconds)."""

    at_s: float
    monotonic: Callable[[], float] = field(default=time.monotonic, repr=False)

    @classmethod
    def of(
        cls,
        deadline_ms: float | UnsetType,
        remaining_ms: float | UnsetType,
        *,
        whole_ms: float,
        hop_ms: float,
        now_ms: float | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> Deadline:
        """The deadline of a received envelope. `now_ms` is this machine's Unix time in ms.

        An envelope without either value (a stage called alone) has the whole budget.
        """
        now = time.time() * 1000.0 if now_ms is None else now_ms
        left = _left(deadline_ms, remaining_ms, now, whole_ms, hop_ms)
        return cls(monotonic() + min(left, whole_ms) / 1000.0, monotonic)

    def remaining_ms(self) -> float:
        """Milliseconds left; negative when it has passed."""
        return (self.at_s - self.monotonic()) * 1000.0


def _left(
    deadline_ms: float | UnsetType, remaining_ms: float | UnsetType, now_ms: float, whole_ms: float, hop_ms: float
) -> float:
    if isinstance(deadline_ms, UnsetType):
        return whole_ms if isinstance(remaining_ms, UnsetType) else remaining_ms - hop_ms
    if isinstance(remaining_ms, UnsetType):
        return deadline_ms - now_ms
    transit_ms = now_ms - (deadline_ms - remaining_ms)
    return deadline_ms - now_ms if 0.0 <= transit_ms <= MAX_TRANSIT_MS else remaining_ms - hop_ms
