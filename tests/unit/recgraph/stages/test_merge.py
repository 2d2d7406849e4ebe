"""Recall's merge."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from recgraph.stages.merge import by_quota, clean

ids = st.lists(st.integers(0, 30).map(str), max_size=40)
channels = st.fixed_dictionaries({"ann": ids, "i2i": ids, "hot": ids})
quotas = st.fixed_dictionaries({name: st.integers(0, 15) for name in ("ann", "i2i", "hot")})


def test_an_item_stays_where_it_stands_highest() -> None:
    cleaned, removed = clean({"ann": ["a", "b", "c"], "hot": ["c", "a", "d", "d"]}, [])
    assert cleaned == {"ann": ["a", "b"], "hot": ["c", "d"]}
    assert removed == {"duplicate": ["c", "a", "d"]}


def test_rules_remove_with_their_reason_in_order() -> None:
    cleaned, removed = clean({"ann": ["a", "b", "c"]}, [("blocked", {"a"}), ("seen", {"a", "b"})])
    assert cleaned == {"ann": ["c"]}
    assert removed == {"blocked": ["a"], "seen": ["b"]}


def test_unused_quota_is_filled_in_turn() -> None:
    merged = by_quota(
        {"ann": [f"a{n}" for n in range(9)], "i2i": ["b0"], "hot": [f"h{n}" for n in range(9)]},
        {"ann": 2, "i2i": 4, "hot": 2},
    )
    assert Counter(merged.sources[:8]) == {"ann": 4, "i2i": 1, "hot": 3}
    assert merged.items[5:8] == ["a2", "h2", "a3"], "the places that i2i left, one of each in turn"


def test_every_prefix_holds_about_the_same_mix() -> None:
    merged = by_quota(
        {"ann": [f"a{n}" for n in range(60)], "hot": [f"h{n}" for n in range(30)]}, {"ann": 60, "hot": 30}
    )
    assert Counter(merged.sources[:30]) == {"ann": 20, "hot": 10}


@settings(deadline=None)
@given(channels, quotas, st.sets(st.integers(0, 30).map(str)))
def test_merge_invariants(given_channels: dict[str, list[str]], given_quotas: dict[str, int], banned: set[str]) -> None:
    cleaned, removed = clean(given_channels, [("seen", banned)])
    merged = by_quota(cleaned, given_quotas)
    received = Counter(item for ids in given_channels.values() for item in ids)
    assert len(set(merged.items)) == len(merged.items) == len(merged.sources)
    assert not banned & set(merged.items)
    gone = Counter(item for ids in removed.values() for item in ids)
    assert gone + Counter(merged.items) == received
    for item, source in zip(merged.items, merged.sources, strict=True):
        assert item in given_channels[source]
    within = sum(min(given_quotas[channel], len(ids)) for channel, ids in cleaned.items())
    for channel, quota in given_quotas.items():
        assert merged.sources[:within].count(channel) == min(quota, len(cleaned[channel]))


def test_the_channel_ahead_keeps_its_items_wherever_others_have_them() -> None:
    cleaned, removed = clean({"pin": ["p", "q"], "hot": ["q", "a", "p"]}, [], ahead="pin")
    assert cleaned == {"pin": ["p", "q"], "hot": ["a"]}
    assert removed == {"duplicate": ["q", "p"]}
