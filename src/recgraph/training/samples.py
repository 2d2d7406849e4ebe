"""Requests of the past, asked again: who asked, when, and what the user clicked afterwards.

The history is cut at several moments. After each cut, every user who comes back makes one request, at the first event
after it, and what they click within the horizon and had not seen before is what the list should have held. This is how
the evaluation asks, too, with the split as its only cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recgraph.data.log import EventLog

Ints = npt.NDArray[np.int64]

MOST_POSITIVES = 16
"""A few users click dozens of a list; lists are padded to the longest, so those would set the cost of all."""
_BEFORE_US = 1_000
"""A request is asked a millisecond before the user's event, so that the event itself is not known yet."""


@dataclass(frozen=True)
class Request:
    """One user at one moment; `time_us` in microseconds, `positives` are item rows, sorted."""

    user: int
    time_us: int
    positives: Ints

    @property
    def now_s(self) -> float:
        """The moment in Unix seconds."""
        return self.time_us / 1e6


def window_requests(log: EventLog, start_us: int, end_us: int) -> list[Request]:
    """One request per user with an event in [start, end) and a new item clicked there, by time.

    New is what the user had neither clicked nor rated before `start_us`.
    """
    part, past = log.between(start_us, end_us), log.before(start_us)
    users, first = np.unique(part.user_row, return_index=True)
    asked = dict(zip(users.tolist(), part.time_us[first].tolist(), strict=True))
    known = past.clicked | past.rated
    seen = _codes(past.user_row[known], past.item_row[known], log.items)
    clicked = np.unique(_codes(part.user_row[part.clicked], part.item_row[part.clicked], log.items))
    new = clicked[~np.isin(clicked, seen)]
    owners, starts = np.unique(new // log.items, return_index=True)
    groups = np.split(new % log.items, starts[1:]) if len(owners) else []
    found = [
        Request(user, asked[user] - _BEFORE_US, items) for user, items in zip(owners.tolist(), groups, strict=True)
    ]
    return sorted(found, key=lambda request: (request.time_us, request.user))


def past_requests(
    log: EventLog, *, start_us: int, end_us: int, horizon_us: int, step_us: int, limit: int, seed: int
) -> list[Request]:
    """At most `limit` requests, by time, from cuts every `step_us` back from `end_us - horizon_us` to `start_us`.

    Nothing after `end_us` is used. A request that several cuts share counts once, with the longest horizon.
    """
    found: dict[tuple[int, int], Request] = {}
    for cut in range(end_us - horizon_us, start_us, -step_us):
        for request in window_requests(log, cut, min(cut + horizon_us, end_us)):
            found.setdefault((request.time_us, request.user), request)
    requests = [found[key] for key in sorted(found)]
    if len(requests) > limit:
        chosen = np.sort(np.random.default_rng(seed).choice(len(requests), limit, replace=False))
        requests = [requests[index] for index in chosen.tolist()]
    return requests


@dataclass(frozen=True)
class Choice:
    """Candidates of one request to learn from: positions in its list, labels, log of 1 / (chance to be chosen)."""

    positions: Ints
    label: npt.NDArray[np.float32]
    log_weight: npt.NDArray[np.float32]


def choose(
    rows: Ints,
    positives: Ints,
    strata: Sequence[Ints],
    counts: Sequence[int],
    rng: np.random.Generator,
    most_positives: int = MOST_POSITIVES,
) -> Choice:
    """The positives that are in the list (at most `most_positives`), and about `counts` others from each stratum.

    Strata are positions in the list. Only candidates that are really there are chosen: positives that the stage before
    lost stay lost, or the model would learn that to be unlikely is to be right.
    """
    is_positive = np.isin(rows, positives)
    groups = [(np.flatnonzero(is_positive), most_positives)]
    groups += [(stratum[~is_positive[stratum]], count) for stratum, count in zip(strata, counts, strict=True)]
    positions, weights = [np.empty(0, np.int64)], [np.empty(0)]
    for group, count in groups:
        take = min(count, len(group))
        if take == 0:
            continue
        positions.append(group if take == len(group) else np.sort(rng.choice(group, take, replace=False)))
        weights.append(np.full(take, np.log(len(group) / take)))
    chosen = np.concatenate(positions)
    return Choice(chosen, is_positive[chosen].astype(np.float32), np.concatenate(weights).astype(np.float32))


@dataclass(frozen=True)
class Samples:
    """Encoded requests of one stage, padded to one size: arrays with a leading dimension R.

    `label` and `log_weight` are float32[R, K]; padding has a log weight of -inf.
    """

    arrays: dict[str, npt.NDArray[Any]]
    label: npt.NDArray[np.float32]
    log_weight: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.label)

    def where(self, mask: npt.NDArray[np.bool_]) -> Samples:
        """Some of the requests."""
        arrays = {name: values[mask] for name, values in self.arrays.items()}
        return Samples(arrays, self.label[mask], self.log_weight[mask])


class SampleBuilder:
    """Collects encoded requests. `click_axes` names the arrays with a click dimension and says which axis it is."""

    def __init__(self, click_axes: dict[str, int]) -> None:
        self._click_axes = click_axes
        self._rows: list[dict[str, npt.NDArray[Any]]] = []
        self._choices: list[Choice] = []

    def add(self, encoded: dict[str, npt.NDArray[Any]], choice: Choice) -> None:
        """One request: what the stage's encoder made of its chosen candidates."""
        self._rows.append(encoded)
        self._choices.append(choice)

    def build(self) -> Samples:
        """All requests, padded: rows with -1, values and masks with 0."""
        width = max((len(choice.label) for choice in self._choices), default=0)
        clicks = max((_clicks(row, self._click_axes) for row in self._rows), default=0)
        names = list(self._rows[0]) if self._rows else []
        return Samples(
            {name: self._stack(name, width, clicks) for name in names},
            _padded([choice.label for choice in self._choices], width, 0.0),
            _padded([choice.log_weight for choice in self._choices], width, -np.inf),
        )

    def _stack(self, name: str, width: int, clicks: int) -> npt.NDArray[Any]:
        first = self._rows[0][name]
        shape = [width, *first.shape[1:]]
        axis = self._click_axes.get(name)
        if axis == 0 or name == "user_dense":
            shape[0] = clicks if axis == 0 else 1
        if axis == 1:
            shape[1] = clicks
        fill = -1 if first.dtype == np.int64 else 0
        out = np.full((len(self._rows), *shape), fill, first.dtype)
        for index, row in enumerate(self._rows):
            value = row[name]
            place = out[index]
            place[tuple(slice(0, size) for size in value.shape)] = value
        return out


def _clicks(row: dict[str, npt.NDArray[Any]], axes: dict[str, int]) -> int:
    return max((row[name].shape[axis] for name, axis in axes.items()), default=0)


def _padded(columns: list[npt.NDArray[np.float32]], width: int, fill: float) -> npt.NDArray[np.float32]:
    out = np.full((len(columns), width), fill, np.float32)
    for index, column in enumerate(columns):
        out[index, : len(column)] = column
    return out


def _codes(users: npt.NDArray[np.integer], items: npt.NDArray[np.integer], count: int) -> Ints:
    codes: Ints = users.astype(np.int64) * count + items
    return codes
