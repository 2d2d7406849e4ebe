"""The one seam through which stages reach what can fail: the feature reader, the predictor, the cache.

Every call is bounded here a second time, whatever the client below promises. Breakers belong here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import numpy.typing as npt

from recgraph.errors import StageFailure

Tensors = dict[str, npt.NDArray[Any]]
Predict = Callable[[Tensors, float], Awaitable[Tensors]]
"""Tensors and a timeout in seconds -> tensors. Raises StageFailure("predictor_...")."""
T = TypeVar("T")


class Guard:
    """Calls a dependency (`features`, `predictor`, `cache`) within a time, or raises StageFailure with its reason."""

    async def call(self, dependency: str, request: Callable[[float], Awaitable[T]], timeout_ms: float) -> T:
        """`request(timeout_s)`. Raises StageFailure("deadline") at once where there is no time left."""
        if timeout_ms <= 0.0:
            raise StageFailure("deadline", f"no time left for {dependency}")
        try:
            async with asyncio.timeout(timeout_ms / 1000.0):
                return await request(timeout_ms / 1000.0)
        except TimeoutError as error:
            raise StageFailure(f"{dependency}_timeout", f"no answer within {timeout_ms:.1f} ms") from error
