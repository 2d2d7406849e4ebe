"""Arms: which bundle serves which user. Configuration, and the assignment that follows from it alone.

A layer is `cascade` (every ranking stage) or one stage. Each has a stable bundle and may have a canary with a weight.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from recgraph.errors import DataError
from recgraph.settings import RANKING_STAGES

STABLE: Final = "stable"
CANARY: Final = "canary"
CASCADE: Final = "cascade"
STEP: Final = 1_000
"""A release's revision N publishes version N * STEP; what is published between two revisions counts up from there."""

Version = Annotated[str, Meta(min_length=1, max_length=256)]


class Layer(Struct, frozen=True, forbid_unknown_fields=True):
    """One layer: its stable bundle, a canary's ("" for none), and the percent of the users that the canary serves."""

    stable: Version
    canary: Annotated[str, Meta(max_length=256)] = ""
    weight: Annotated[float, Meta(ge=0.0, le=100.0)] = 0.0


class Arms(Struct, frozen=True, forbid_unknown_fields=True):
    """What is in force. `version` only grows; 0 is what an entry starts with that was told nothing."""

    version: Annotated[int, Meta(ge=0)]
    layers: dict[str, Layer]
    salt: str = "recgraph"

    def __post_init__(self) -> None:
        if CASCADE not in self.layers:
            raise ValueError(f"`layers` needs `{CASCADE}`")
        for name, layer in self.layers.items():
            if name != CASCADE and name not in RANKING_STAGES:
                raise ValueError(f"`layers.{name}` is neither `{CASCADE}` nor one of {', '.join(RANKING_STAGES)}")
            if layer.weight and not layer.canary:
                raise ValueError(f"`layers.{name}.weight` is {layer.weight:g} without a canary")


@dataclass(frozen=True)
class Assignment:
    """What entry writes into an envelope. `stages` has the bundles of the stages that differ from `bundle`."""

    arm: dict[str, dict[str, bool]]
    bundle: str
    stages: dict[str, str]


def of_bundle(bundle: str) -> Arms:
    """Everyone in the stable arm of one bundle, at version 0."""
    return Arms(version=0, layers={CASCADE: Layer(stable=bundle)})


def parse(text: bytes | str, source: str) -> Arms:
    """Arms from JSON. Raises DataError with `source` and the path of the bad value."""
    try:
        return msgspec.json.decode(text, type=Arms)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{source}: {error}") from error


def encode(arms: Arms) -> bytes:
    """Arms as JSON, in the form that `parse` reads."""
    return msgspec.json.encode(arms)


def place(salt: str, layer: str, user_id: str) -> float:
    """Where a user stands in [0, 100), even over all users; independent between layers and between salts."""
    digest = hashlib.blake2b(f"{salt}\0{layer}\0{user_id}".encode(), digest_size=8, person=b"arm").digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53 * 100.0


def arm_of(arms: Arms, layer: str, user_id: str) -> str:
    """The user's arm in one layer. A greater weight only moves users from stable to canary."""
    found = arms.layers[layer]
    return CANARY if found.canary and place(arms.salt, layer, user_id) < found.weight else STABLE


def assign(arms: Arms, user_id: str) -> Assignment:
    """The user's arms and bundles. Whoever the cascade's canary serves gets all of it: single stages do not count."""
    cascade = arm_of(arms, CASCADE, user_id)
    arm = {CASCADE: {cascade: True}}
    layer = arms.layers[CASCADE]
    if cascade == CANARY:
        return Assignment(arm, layer.canary, {})
    stages: dict[str, str] = {}
    for name, single in arms.layers.items():
        if name == CASCADE:
            continue
        arm[name] = {arm_of(arms, name, user_id): True}
        if CANARY in arm[name]:
            stages[name] = single.canary
    return Assignment(arm, layer.stable, stages)


def with_weight(arms: Arms, weight: float) -> Arms:
    """The next version, with `weight` in every layer that has a canary. Raises DataError where none has."""
    if not any(layer.canary for layer in arms.layers.values()):
        raise DataError("there is no canary whose weight could be set")
    layers = {
        name: msgspec.structs.replace(layer, weight=weight) if layer.canary else layer
        for name, layer in arms.layers.items()
    }
    return msgspec.structs.replace(arms, version=arms.version + 1, layers=layers)
