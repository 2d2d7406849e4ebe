"""Recall's merge: channels to one list by quota, each item once, every removal with its reason."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

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
    rules: Sequence[tuple[str, Container[str]]],
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
    removed: dict[str, list[str]] = {}
    cleaned: dict[str, list[str]] = {}
    for order, (channel, ids) in enumerate(channels.items()):
        kept = cleaned[channel] = []
        for item in ids:
            reason = next((reason for reason, banned in rules if item in banned), None)
            if reason is not None:
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
    keyed: list[tuple[float, int, str, str]] = []
    for order, (channel, ids) in enumerate(channels.items()):
        quota = quotas.get(channel, 0)
        for place, item in enumerate(ids):
            key = (place + 0.5) / quota if place < quota else 1.0 + place - quota
            keyed.append((key, order, channel, item))
    keyed.sort(key=lambda entry: entry[:2])
    merged = Merged(
        items=[entry[3] for entry in keyed[:total]],
        sources=[entry[2] for entry in keyed[:total]],
    )
    if len(keyed) > total:
        merged.removed["over_quota"] = [entry[3] for entry in keyed[total:]]
    return merged
