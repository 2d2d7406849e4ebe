"""Past requests, and what is chosen to learn from."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recgraph.data.log import DAY_US, EventLog
from recgraph.training.samples import Choice, SampleBuilder, choose, past_requests, window_requests


def log(*events: tuple[int, int, int, bool]) -> EventLog:
    """(day, user, item, clicked), all of them rated."""
    day, user, item, clicked = (np.array(column) for column in zip(*events, strict=True))
    return EventLog(
        user.astype(np.int32),
        item.astype(np.int32),
        day.astype(np.int64) * DAY_US,
        clicked.astype(bool),
        np.where(clicked, 8, 3).astype(np.float32),
        users=5,
        items=9,
    )


EVENTS = log((1, 0, 1, True), (2, 0, 2, False), (10, 0, 1, True), (11, 0, 3, True), (12, 1, 4, False), (13, 2, 5, True))


def test_one_request_per_user_with_a_new_click() -> None:
    requests = window_requests(EVENTS, 10 * DAY_US, 20 * DAY_US)
    assert [(request.user, request.positives.tolist()) for request in requests] == [(0, [3]), (2, [5])]


def test_a_request_is_asked_before_the_event_that_made_it() -> None:
    request = window_requests(EVENTS, 10 * DAY_US, 20 * DAY_US)[0]
    assert 0 < 10 * DAY_US - request.time_us <= 1000


def test_what_was_rated_low_before_is_seen_too() -> None:
    events = log((1, 0, 1, False), (5, 0, 1, True), (5, 0, 2, True))
    assert window_requests(events, 4 * DAY_US, 9 * DAY_US)[0].positives.tolist() == [2]


def test_nothing_after_the_end_is_a_positive() -> None:
    requests = past_requests(
        EVENTS, start_us=0, end_us=11 * DAY_US, horizon_us=5 * DAY_US, step_us=DAY_US, limit=99, seed=0
    )
    assert requests
    for request in requests:
        assert request.time_us < 11 * DAY_US
        assert not set(request.positives.tolist()) & {3, 5}


def test_the_limit_holds_and_follows_the_seed() -> None:
    def ask(seed: int) -> list[int]:
        found = past_requests(
            EVENTS, start_us=0, end_us=15 * DAY_US, horizon_us=5 * DAY_US, step_us=DAY_US, limit=2, seed=seed
        )
        return [request.time_us for request in found]

    assert len(ask(0)) == 2
    assert ask(0) == ask(0)


@given(
    rows=st.lists(st.integers(0, 20), min_size=1, max_size=20, unique=True),
    positives=st.lists(st.integers(0, 30), max_size=8, unique=True),
    counts=st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
def test_only_candidates_that_are_there_are_chosen(
    rows: list[int], positives: list[int], counts: tuple[int, int]
) -> None:
    places = np.arange(len(rows))
    half = len(rows) // 2
    array, wanted = np.array(rows), np.array(sorted(positives), np.int64)
    choice = choose(array, wanted, (places[:half], places[half:]), counts, np.random.default_rng(0))
    chosen = array[choice.positions]
    assert set(chosen[choice.label > 0].tolist()) == set(rows) & set(positives)
    assert len(set(choice.positions.tolist())) == len(choice.positions)
    negatives = len(rows) - len(set(rows) & set(positives))
    if all(count > 0 for count in counts):
        assert np.exp(choice.log_weight[choice.label == 0]).sum() == pytest.approx(negatives, rel=1e-5)


def test_samples_are_padded_and_masked() -> None:
    builder = SampleBuilder({"click": 0, "affinity": 1})
    for count, clicks in ((2, 0), (3, 2)):
        encoded: dict[str, npt.NDArray[Any]] = {
            "item": np.arange(count),
            "user_dense": np.ones((1, 4), np.float32),
            "click": np.arange(clicks),
            "affinity": np.ones((count, clicks), np.float32),
        }
        builder.add(encoded, Choice(np.arange(count), np.ones(count, np.float32), np.zeros(count, np.float32)))
    samples = builder.build()
    assert samples.arrays["item"].tolist() == [[0, 1, -1], [0, 1, 2]]
    assert samples.arrays["click"].tolist() == [[-1, -1], [0, 1]]
    assert samples.arrays["affinity"].shape == (2, 3, 2)
    assert samples.arrays["user_dense"].shape == (2, 1, 4)
    assert np.isneginf(samples.log_weight).tolist() == [[False, False, True], [False, False, False]]


def test_a_list_of_many_positives_is_thinned_and_weighted() -> None:
    rows = np.arange(40)
    choice = choose(rows, rows[:32], (rows,), (4,), np.random.default_rng(0), most_positives=8)
    assert choice.label.sum() == 8
    assert np.exp(choice.log_weight[choice.label > 0]).sum() == pytest.approx(32)
    assert np.exp(choice.log_weight[choice.label == 0]).sum() == pytest.approx(8)
