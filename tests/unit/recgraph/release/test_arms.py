"""Assignment: users stay, weights move them one way, shares are what they say, layers are independent."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recgraph.errors import DataError
from recgraph.release.arms import Arms, Layer, arm_of, assign, encode, of_bundle, parse, place, with_weight

USERS = [f"u_{number}" for number in range(20_000)]
weights = st.floats(0.0, 100.0)


def _cascade(weight: float, salt: str = "s") -> Arms:
    return Arms(version=1, salt=salt, layers={"cascade": Layer(stable="v1", canary="v2", weight=weight)})


def _canaries(arms: Arms, layer: str = "cascade") -> list[bool]:
    return [arm_of(arms, layer, user) == "canary" for user in USERS]


@given(user=st.text(min_size=1), salt=st.text(), low=weights, high=weights)
def test_a_greater_weight_only_moves_users_to_the_canary(user: str, salt: str, low: float, high: float) -> None:
    low, high = sorted((low, high))
    before, after = (arm_of(_cascade(weight, salt), "cascade", user) for weight in (low, high))
    assert (before, after) != ("canary", "stable")


@given(user=st.text(min_size=1), version=st.integers(0, 10**9), weight=weights)
def test_a_user_stays_whatever_the_version(user: str, version: int, weight: float) -> None:
    arms = _cascade(weight)
    assert assign(arms, user) == assign(parse(encode(arms).replace(b":1,", b":%d," % version, 1), "x"), user)


def test_nobody_at_0_and_everybody_at_100() -> None:
    assert not any(_canaries(_cascade(0.0)))
    assert all(_canaries(_cascade(100.0)))


@pytest.mark.parametrize("weight", [0.5, 1.0, 5.0, 20.0, 50.0, 95.0])
def test_shares_are_within_three_standard_errors(weight: float) -> None:
    share = weight / 100.0
    error = math.sqrt(share * (1.0 - share) / len(USERS))
    assert sum(_canaries(_cascade(weight))) / len(USERS) == pytest.approx(share, abs=3 * error)


def test_layers_and_salts_are_independent() -> None:
    layers = {name: Layer(stable="v1", canary="v2", weight=50.0) for name in ("cascade", "fine", "coarse")}
    arms = Arms(version=1, layers=layers)
    chosen = [_canaries(arms, "fine"), _canaries(arms, "coarse"), _canaries(_cascade(50.0, "a")), _canaries(arms)]
    error = math.sqrt(0.25 * 0.75 / len(USERS))
    for index, one in enumerate(chosen):
        for other in chosen[index + 1 :]:
            both = sum(x and y for x, y in zip(one, other, strict=True)) / len(USERS)
            assert both == pytest.approx(0.25, abs=4 * error)


def test_places_are_in_the_half_open_range() -> None:
    places = [place("s", "cascade", user) for user in USERS]
    assert 0.0 <= min(places) < 0.1
    assert 99.9 < max(places) < 100.0


def test_the_cascades_canary_takes_all_of_a_request() -> None:
    arms = Arms(
        version=1,
        layers={
            "cascade": Layer(stable="v1", canary="v2", weight=50.0),
            "fine": Layer(stable="v1", canary="v3", weight=100.0),
        },
    )
    for user in USERS[:100]:
        found = assign(arms, user)
        if found.arm["cascade"] == {"canary": True}:
            assert (found.arm, found.bundle, found.stages) == ({"cascade": {"canary": True}}, "v2", {})
        else:
            assert (found.arm["fine"], found.bundle, found.stages) == ({"canary": True}, "v1", {"fine": "v3"})


def test_of_a_bundle_is_stable_for_everyone() -> None:
    found = assign(of_bundle("v7"), "u")
    assert (found.arm, found.bundle, found.stages) == ({"cascade": {"stable": True}}, "v7", {})


def test_with_weight_touches_only_layers_with_a_canary() -> None:
    arms = Arms(version=4, layers={"cascade": Layer(stable="v1"), "fine": Layer(stable="v1", canary="v2", weight=5.0)})
    changed = with_weight(arms, 0.0)
    assert changed.version == 5
    assert (changed.layers["fine"].weight, changed.layers["fine"].canary) == (0.0, "v2")
    assert changed.layers["cascade"] == arms.layers["cascade"]
    with pytest.raises(DataError, match="no canary"):
        with_weight(of_bundle("v1"), 5.0)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": -1}, r"\$\.version"),
        ({"layers": {}}, "cascade"),
        ({"layers": {"cascade": {"stable": ""}}}, r"\$\.layers\[\.\.\.\]\.stable"),
        ({"layers": {"cascade": {"stable": "v1", "weight": 5}}}, "without a canary"),
        ({"layers": {"cascade": {"stable": "v1", "canary": "v2", "weight": 101}}}, "weight"),
        ({"layers": {"cascade": {"stable": "v1"}, "events": {"stable": "v1"}}}, "events"),
        ({"wieght": 3}, "wieght"),
    ],
)
def test_wrong_arms_are_refused_with_source_and_path(change: dict[str, object], told: str) -> None:
    right = {"version": 1, "salt": "s", "layers": {"cascade": {"stable": "v1"}}}
    with pytest.raises(DataError, match=f"arms.json: .*{told}"):
        parse(json.dumps(right | change), "arms.json")
