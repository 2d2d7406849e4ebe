"""Recall's merge: channels to one list by quota, each item once, every removal with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import count
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Merged(NamedTuple):
    """Columns of one length."""

    items: list[str]
    sources: list[str]


def clean(
    channels: Mapping[str, Sequence[str]],
    rules: Sequence[tuple[str, AbstractSet[str]]],
    ahead: str = "",
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The channels without what `rules` (reason, ids) remove and without what an earlier place already has.

    Places are compared across channels, so that an item stays in the channel where it stands highest; at the same
    place the channel named first wins, and all places of the channel `ahead` are higher than those of the others.
    Returns the cleaned channels and the removed ids by reason.
    """
    banned = frozenset[str]().union(*(ids for _, ids in rules))
    step = len(channels)
    # Keys of places are place * step + order of the channel: lower is better, and no two are equal.
    begins = {
        channel: order - (step * len(ids) if channel == ahead else 0)
        for order, (channel, ids) in enumerate(channels.items())
    }
    best: dict[str, int] = {}
    for channel, ids in channels.items():
        for key, item in zip(count(begins[channel], step), ids, strict=False):
            if key < best.setdefault(item, key):
                best[item] = key
    removed: dict[str, list[str]] = {}
    cleaned: dict[str, list[str]] = {}
    for channel, ids in channels.items():
        keyed = list(zip(count(begins[channel], step), ids, strict=False))
        cleaned[channel] = [item for key, item in keyed if best[item] == key and item not in banned]
        for key, item in keyed:
            if item in banned:
                reason = next(reason for reason, ids_of_rule in rules if item in ids_of_rule)
                removed.setdefault(reason, []).append(item)
            elif best[item] != key:
                removed.setdefault("duplicate", []).append(item)
    return cleaned, removed


def by_quota(channels: Mapping[str, Sequence[str]], quotas: Mapping[str, int]) -> Merged:
    """All items in the order in which they are wanted: of each channel its quota, then what is left of all in turn.

    The channels must not share items (see `clean`). Within the quotas the order interleaves the channels in
    proportion to them, so that any prefix holds about the same mix: recall's order is what coarse falls back to.
    """
    items = [item for ids in channels.values() for item in ids]
    sources = [channel for channel, ids in channels.items() for _ in ids]
    keys = [_keys(len(ids), quotas.get(channel, 0)) for channel, ids in channels.items()]
    # Stable: at equal keys the channel named first comes first.
    order = np.argsort(np.concatenate([*keys, np.empty(0)]), kind="stable").tolist()
    return Merged([items[row] for row in order], [sources[row] for row in order])


def _keys(count: int, quota: int) -> npt.NDArray[np.float64]:
    """Sort keys of a channel's places: below 1 within the quota, from 1 on beyond it."""
    place = np.arange(count, dtype=np.float64)
    return np.where(place < quota, (place + 0.5) / max(quota, 1), 1.0 + place - quota)
