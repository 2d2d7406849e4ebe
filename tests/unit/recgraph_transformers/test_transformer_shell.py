"""Connecting to dependencies at the start."""

from __future__ import annotations

import logging

import pytest

from recgraph.errors import StageFailure
from recgraph_transformers.shell import reach


@pytest.mark.parametrize(("failures", "warnings"), [(0, 0), (2, 0), (3, 1)])
async def test_a_start_survives_a_slow_and_a_missing_dependency(
    caplog: pytest.LogCaptureFixture, failures: int, warnings: int
) -> None:
    asked: list[float] = []

    async def connect(timeout_s: float) -> None:
        asked.append(timeout_s)
        if len(asked) <= failures:
            raise StageFailure("features_timeout")

    with caplog.at_level(logging.WARNING):
        await reach("features", connect)
    assert len(asked) == min(failures + 1, 3)
    assert len(caplog.records) == warnings
