"""Deadlines, and clocks that disagree."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from recgraph.deadline import Deadline
from recgraph.settings import Budgets

NOW = 1_700_000_000_000.0


def _left(deadline: float | UnsetType, remaining: float | UnsetType) -> float:
    made = Deadline.of(deadline, remaining, whole_ms=100.0, hop_ms=2.0, now_ms=NOW, monotonic=lambda: 50.0)
    return made.remaining_ms()


@pytest.mark.parametrize(
    ("deadline", "remaining", "expected"),
    [
        (UNSET, UNSET, 100.0),
        (NOW + 70, UNSET, 70.0),
        (NOW + 70, 75.0, 70.0),  # 5 ms of transit
        (NOW + 70, 120.0, 70.0),  # 50 ms: still believable
        (NOW + 70, 121.0, 100.0),  # 51 ms: the clocks disagree, the whole budget is the most
        (NOW + 170, 60.0, 58.0),  # sent in the future: the sender's clock is ahead
        (NOW - 9_000, 60.0, 58.0),  # a clock that is behind does not end a request
        (UNSET, 60.0, 58.0),
        (NOW - 1, UNSET, -1.0),
        (NOW + 1e15, UNSET, 100.0),
        (-1e300, UNSET, pytest.approx(-1e300)),
    ],
)
def test_what_is_left(deadline: float | UnsetType, remaining: float | UnsetType, expected: float) -> None:
    assert _left(deadline, remaining) == pytest.approx(expected)


def test_time_for_a_call_leaves_the_reserve() -> None:
    deadline = Deadline(10.05, lambda: 10.0)
    assert deadline.for_call(40.0, 20.0) == pytest.approx(30.0)
    assert deadline.for_call(15.0, 20.0) == pytest.approx(15.0)
    assert deadline.for_call(15.0, 60.0) == pytest.approx(-10.0)


finite = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(st.one_of(st.just(UNSET), finite), st.one_of(st.just(UNSET), finite))
def test_nothing_extends_a_request_beyond_the_whole_budget(
    deadline: float | UnsetType, remaining: float | UnsetType
) -> None:
    assert _left(deadline, remaining) <= 100.0 + 1e-6


def test_reserves_fit_the_budgets() -> None:
    budgets = Budgets()
    assert budgets.reserve_ms("rerank") == pytest.approx(budgets.hop_ms)
    assert budgets.reserve_ms("fine") == pytest.approx(0.5 * 16 + 2 * budgets.hop_ms)
    stages = ("recall", "coarse", "fine", "rerank")
    used = budgets.entry
    for stage in stages:
        # With every stage before it at its full budget, a stage still has time of its own.
        assert budgets.whole - used - budgets.reserve_ms(stage) > 0, stage
        used += budgets.of(stage)
