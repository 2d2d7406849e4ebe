"""Deadlines, and clocks that disagree."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType
from pydantic import ValidationError

from recgraph.deadline import Deadline
from recgraph.settings import RANKING_STAGES, Budgets

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


finite = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(st.one_of(st.just(UNSET), finite), st.one_of(st.just(UNSET), finite))
def test_nothing_extends_a_request_beyond_the_whole_budget(
    deadline: float | UnsetType, remaining: float | UnsetType
) -> None:
    assert _left(deadline, remaining) <= 100.0 + 1e-6


def test_the_budgets_are_a_timetable() -> None:
    budgets = Budgets()
    hop = budgets.hop_ms
    assert budgets.reserve_ms("rerank") == pytest.approx(hop)
    assert budgets.reserve_ms("fine") == pytest.approx(budgets.rerank + 2 * hop)
    used = budgets.entry
    for stage in RANKING_STAGES:
        used += hop
        # With every stage before it at its full budget, a stage still has all of its own.
        assert budgets.whole - used - budgets.reserve_ms(stage) >= budgets.of(stage) - 1e-9, stage
        used += budgets.of(stage)


def test_budgets_that_do_not_fit_the_whole_are_refused() -> None:
    with pytest.raises(ValidationError, match="add up to 135 ms, the whole has 100"):
        Budgets(fine=60.0)
    assert Budgets(fine=60.0, whole=135.0).fine == 60.0
