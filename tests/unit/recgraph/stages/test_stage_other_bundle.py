"""A request of another bundle: refused from a direct caller, degraded where entry has assigned it."""

from __future__ import annotations

from typing import Any

import pytest

from recgraph.contract import BundleRef

ITEMS = ["i1", "i2", "i3"]
CASCADE = {"cascade": {"canary": True}}


@pytest.mark.parametrize("stage", ["coarse", "fine", "rerank"])
async def test_a_misrouted_request_gets_the_fallback_and_keeps_its_bundle(kit: Any, stage: str) -> None:
    def never(inputs: Any) -> Any:
        raise AssertionError("scores of another bundle")

    envelope = await kit.stage(stage, never).run(kit.envelope(ITEMS, bundle=BundleRef(version="v0"), arm=CASCADE))
    assert [(entry.stage, entry.reason) for entry in envelope.degraded] == [(stage, "other_bundle")]
    assert envelope.bundle == BundleRef(version="v0")
    assert sorted(envelope.items) == ITEMS


async def test_a_stage_serves_what_names_its_bundle_for_this_stage(kit: Any, numbered: Any) -> None:
    stage = kit.stage("fine", numbered)
    mine = stage.deps.bundle.version
    reference = BundleRef(version="v0", stages={"fine": mine})
    envelope = await stage.run(kit.envelope(ITEMS, bundle=reference, arm=CASCADE))
    assert (envelope.degraded, envelope.bundle) == ([], reference)
