"""The entry stage."""

from __future__ import annotations

import pytest

from recgraph.contract import BundleRef, Degraded, Envelope, TraceEntry, User
from recgraph.errors import BadRequest
from recgraph.release.arms import Arms, Layer, of_bundle
from recgraph.scenes import Scene, Scenes
from recgraph.settings import Budgets
from recgraph.stages.entry import EntryStage, sampled


def _entry(sample: float = 0.0, arms: Arms | None = None) -> EntryStage:
    scenes = Scenes({"home": Scene(page_size=7)})
    held = arms or of_bundle("v1")
    return EntryStage(scenes=scenes, arms=lambda: held, budgets=Budgets(), record_sample=sample, wall_ms=lambda: 1000.0)


def _request(scene: str = "home", **more: bool) -> Envelope:
    return Envelope(request_id="r", user=User(user_id="u", scene=scene), **more)  # type: ignore[arg-type]


async def test_entry_says_what_the_graph_needs() -> None:
    envelope = await _entry().run(_request())
    assert envelope.deadline_ms == 1100.0
    assert envelope.remaining_ms == pytest.approx(100.0, abs=5.0)
    assert envelope.bundle is not None
    assert envelope.bundle.version == "v1"
    assert envelope.page_size == 7
    assert envelope.arm == {"cascade": {"stable": True}}, "exactly one key per layer"
    assert [entry.stage for entry in envelope.trace] == ["entry"]
    assert (envelope.record, envelope.degraded) == (False, list[Degraded]())
    assert isinstance(envelope.trace[0], TraceEntry)


async def test_arms_and_bundles_of_a_canary_are_named() -> None:
    whole = Arms(version=1, layers={"cascade": Layer(stable="v1", canary="v2", weight=100)})
    envelope = await _entry(arms=whole).run(_request())
    assert envelope.arm == {"cascade": {"canary": True}}
    assert envelope.bundle == BundleRef(version="v2")
    fine = Arms(version=2, layers={"cascade": Layer(stable="v1"), "fine": Layer(stable="v1", canary="v2", weight=100)})
    envelope = await _entry(arms=fine).run(_request())
    assert envelope.arm == {"cascade": {"stable": True}, "fine": {"canary": True}}
    assert envelope.bundle == BundleRef(version="v1", stages={"fine": "v2"})
    assert [envelope.bundle.of(stage) for stage in ("recall", "fine")] == ["v1", "v2"]


async def test_a_record_is_kept_to_explain_and_for_a_sample() -> None:
    assert (await _entry().run(_request(explain=True))).record
    assert (await _entry(1.0).run(_request())).record
    shares = [sampled(f"r{number}", 0.2) for number in range(1000)]
    assert 120 < sum(shares) < 280
    assert shares == [sampled(f"r{number}", 0.2) for number in range(1000)]


async def test_an_unknown_scene_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadRequest, match="known are: home"):
        await _entry().run(_request("nowhere"))
