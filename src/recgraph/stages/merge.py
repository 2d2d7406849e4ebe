"""Recall's merge: channels to one list by quota, each item once, every removal with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

import numpy as np
import numpy.typing as npt

_TAKEN: Final = -1


@dataclass
class Merged:
    """`items` and `sources` are columns of one length; `removed` has ids by reason, one for each removal.

    received (all channels together, duplicates included) = kept + removed.
    """

    items: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    removed: dict[str, list[str]] = field(default_factory=dict)


def clean(
    channels: Mapping[str, Sequence[str]],
    rules: Sequence[tuple[str, AbstractSet[str]]],
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The channels without what `rules` (reason, ids) remove and without what an earlier place already has.

    Places are compared across channels, so that an item stays in the channel where it stands highest; at the same
    place the channel named first wins. Returns the cleaned channels and the removed ids by reason.
    """
    owner: dict[str, int] = {}
    for places in zip_longest(*channels.values()):
        for order, item in enumerate(places):
            if item is not None and item not in owner:
                owner[item] = order
    banned = frozenset[str]().union(*(ids for _, ids in rules))
    removed: dict[str, list[str]] = {}
    cleaned: dict[str, list[str]] = {}
    for order, (channel, ids) in enumerate(channels.items()):
        kept = cleaned[channel] = []
        for item in ids:
            if item in banned:
                reason = next(reason for reason, ids_of_rule in rules if item in ids_of_rule)
                removed.setdefault(reason, []).append(item)
            elif owner[item] == order:
                owner[item] = _TAKEN
                kept.append(item)
            else:
                removed.setdefault("duplicate", []).append(item)
    return cleaned, removed


def by_quota(channels: Mapping[str, Sequence[str]], quotas: Mapping[str, int], total: int) -> Merged:
    """At most `total` items: of each channel its quota first, then what is left of all in turn, one each.

    The channels must not share items (see `clean`). Within the quotas the order interleaves the channels in
    proportion to them, so that any prefix holds about the same mix: recall's order is what coarse falls back to.
    """
    items = [item for ids in channels.values() for item in ids]
    sources = [channel for channel, ids in channels.items() for _ in ids]
    keys = [_keys(len(ids), quotas.get(channel, 0)) for channel, ids in channels.items()]
    # Stable: at equal keys the channel named first comes first.
    order = np.argsort(np.concatenate([*keys, np.empty(0)]), kind="stable").tolist()
    merged = Merged([items[row] for row in order[:total]], [sources[row] for row in order[:total]])
    if len(order) > total:
        merged.removed["over_quota"] = [items[row] for row in order[total:]]
    return merged


def _keys(count: int, quota: int) -> npt.NDArray[np.float64]:
    """Sort keys of a channel's places: below 1 within the quota, from 1 on beyond it."""
    place = np.arange(count, dtype=np.float64)
    return np.where(place < quota, (place + 0.5) / max(quota, 1), 1.0 + place - quota)
