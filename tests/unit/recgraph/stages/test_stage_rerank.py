"""The rerank stage: rules, model, page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recgraph import records
from recgraph.contract import Degraded
from recgraph.errors import StageFailure
from recgraph.scenes import Boost, Cap, Exclude, Exploration, Filters, Freshness, Pin, Rules, Scene
from recgraph.settings import Budgets
from recgraph.stages import Tensors

ITEMS = [f"i{number}" for number in range(30)]
FALLING = [1.0 - number / 100 for number in range(30)]
PLAIN = Rules(cap=None, mmr_lambda=0.0)


def _as_fine(inputs: Tensors) -> Tensors:
    """A model that agrees with fine and finds all items alike."""
    score = inputs["fine_score"]
    return {"score": score, "embedding": np.zeros((len(score), 2), np.float32)}


def _scene(**more: Any) -> Scene:
    rules = more.pop("rules", {})
    return Scene(page_size=more.pop("page_size", 5), rules=Rules(**{"cap": None, "mmr_lambda": 0.0} | rules), **more)


async def _page(kit: Any, answer: Any = _as_fine, items: list[str] = ITEMS, **more: Any) -> Any:
    scores = more.pop("scores", FALLING[: len(items)])
    return await kit.stage("rerank", answer).run(kit.envelope(items, scores=scores, **more))


async def test_the_page_is_the_best_by_the_models_score(kit: Any) -> None:
    kit.scene = _scene()
    envelope = await _page(kit, lambda inputs: {"score": -inputs["fine_score"]}, sources=[f"s{n}" for n in ITEMS])
    assert envelope.items == ["i29", "i28", "i27", "i26", "i25"]
    assert envelope.sources[0] == "si29"
    assert envelope.scores[0] == pytest.approx(-FALLING[29])
    assert envelope.trace[-1].removed == {"below_page": 25}


async def test_without_scores_the_order_given_counts(kit: Any) -> None:
    kit.scene = _scene()
    envelope = await kit.stage("rerank", _as_fine).run(kit.envelope(ITEMS))
    assert envelope.items == ITEMS[:5]


async def test_page_size_is_entrys_where_it_said_one(kit: Any) -> None:
    kit.scene = _scene()
    assert len((await _page(kit, page_size=7)).items) == 7


async def test_a_duplicate_keeps_its_best_place(kit: Any) -> None:
    kit.scene = _scene()
    envelope = await _page(kit, items=["a", "b", "a", "c"], scores=[0.1, 0.2, 0.9, 0.3])
    assert envelope.items == ["a", "c", "b"]
    assert envelope.scores[0] == pytest.approx(0.9)
    assert envelope.trace[-1].removed == {"duplicate": 1}
    assert envelope.trace[-1].short == 2


async def test_what_is_not_finite_is_removed(kit: Any) -> None:
    kit.scene = _scene()
    envelope = await _page(kit, items=["a", "b", "c"], scores=[float("nan"), 0.5, float("inf")])
    assert envelope.items == ["b"]
    assert envelope.trace[-1].removed == {"not_finite": 2}


async def test_a_models_nan_neither_wins_nor_leaves(kit: Any) -> None:
    def holes(inputs: Tensors) -> Tensors:
        return {"score": np.where(np.arange(len(inputs["item_id"])) % 2, inputs["fine_score"], np.nan)}

    kit.scene = _scene()
    envelope = await _page(kit, holes)
    assert envelope.items == ["i1", "i3", "i5", "i7", "i9"]
    assert np.isfinite(envelope.scores).all()


async def test_rules_by_item_category_and_creator(kit: Any) -> None:
    kit.memory.rows = {
        ("item_profile", "i0"): {"category": "x", "available": 1},
        ("item_profile", "i1"): {"creator": "m", "available": 1},
        ("item_profile", "i2"): {"available": 0},
        ("item_profile", "i9"): {"category": "y", "available": 1},
    }
    exclude = Exclude(items=frozenset({"i3"}), categories=frozenset({"x"}), creators=frozenset({"m"}))
    kit.scene = _scene(rules={"exclude": exclude, "boost": (Boost(category="y", factor=50.0),)})
    envelope = await _page(kit)
    assert envelope.items == ["i9", "i4", "i5", "i6", "i7"]
    assert envelope.trace[-1].removed == {"excluded": 3, "unavailable": 1, "below_page": 21}
    kit.scene = _scene(filters=Filters(unavailable=False))
    assert "i2" in (await _page(kit)).items


async def test_pins_stand_at_their_place_wherever_they_rank(kit: Any) -> None:
    kit.scene = _scene(rerank_best=5, rules={"pin": (Pin(item_id="i29", position=2), Pin(item_id="gone", position=1))})
    envelope = await _page(kit)
    assert envelope.items == ["i0", "i29", "i1", "i2", "i3"]


async def test_fresh_items_rise(kit: Any) -> None:
    kit.memory.rows[("item_profile", "i20")] = {"publish_time": 1_700_000_000 - 60, "available": 1}
    kit.scene = _scene(rules={"freshness": Freshness(weight=2.0, half_life_hours=24.0)})
    assert (await _page(kit)).items[0] == "i20"


async def test_category_cap_and_diversity(kit: Any) -> None:
    for number in range(30):
        category = "x" if number < 10 else "y"
        kit.memory.rows[("item_profile", f"i{number}")] = {"category": category, "available": 1}
    kit.scene = _scene(rules={"cap": Cap(max=2, window=5)})
    assert (await _page(kit)).items == ["i0", "i1", "i10", "i11", "i2"], "nobody left under the cap: it gives way"

    def twins(inputs: Tensors) -> Tensors:
        vectors = np.zeros((len(inputs["item_id"]), 2), np.float32)
        vectors[:, 0], vectors[5, :] = 1.0, (0.0, 1.0)
        return {"score": inputs["fine_score"], "embedding": vectors}

    kit.scene = _scene(rules={"mmr_lambda": 0.5})
    assert (await _page(kit, twins)).items[:2] == ["i0", "i5"]


async def test_exploration_is_one_place_and_follows_the_request_id(kit: Any) -> None:
    rule = Exploration(position=4, share=1.0, channels=("fresh",))
    kit.scene = _scene(rerank_best=5, rules={"exploration": rule})
    sources = ["ann"] * 20 + ["fresh"] * 10
    first = await _page(kit, sources=sources)
    again = await _page(kit, sources=sources)
    assert first.items == again.items
    assert first.sources == ["ann", "ann", "ann", "explore", "ann"]
    assert int(first.items[3][1:]) >= 20
    others = {(await _page(kit, sources=sources, request_id=f"r{n}")).items[3] for n in range(30)}
    assert len(others) > 3, "different requests explore with different items"
    kit.scene = _scene(rules={"exploration": Exploration(position=4, share=0.0)})
    assert (await _page(kit, sources=sources)).items == ITEMS[:5]
    kit.scene = _scene(rules={"exploration": rule})
    assert (await _page(kit, sources=["ann"] * 30)).items == ITEMS[:5], "nothing to explore with"


async def test_share_of_exploring_requests(kit: Any) -> None:
    kit.scene = _scene(rules={"exploration": Exploration(position=4, share=0.3, channels=("fresh",))})
    sources = ["ann"] * 20 + ["fresh"] * 10
    count = 0
    for number in range(200):
        count += "explore" in (await _page(kit, sources=sources, request_id=f"q{number}")).sources
    assert 30 <= count <= 90


async def test_the_rest_fills_the_page(kit: Any) -> None:
    for number in range(5):
        kit.memory.rows[("item_profile", f"i{number}")] = {"available": 0}
    kit.scene = _scene(rerank_best=6)
    envelope = await _page(kit)
    assert envelope.items == ["i5", "i6", "i7", "i8", "i9"]
    assert kit.memory.reads[-2:] == [("item", 6), ("item", 24)], "the rest is read once, where the head does not fill"
    kit.memory.rows.clear()
    await _page(kit)
    assert kit.memory.reads[-1] == ("item", 6), "and else not at all"


@pytest.mark.parametrize("model", [_as_fine, StageFailure("predictor_error")])
async def test_what_fills_the_page_is_held_to_the_rules_too(kit: Any, model: Any) -> None:
    for number in range(30):
        profile = {"category": "x" if number < 10 or number % 2 else "y", "available": int(number != 12)}
        kit.memory.rows[("item_profile", f"i{number}")] = profile
    pin = Pin(item_id="i28", position=4)
    kit.scene = _scene(rerank_best=6, rules={"exclude": Exclude(categories=frozenset({"x"})), "pin": (pin,)})
    envelope = await _page(kit, model, record=True)
    assert envelope.items == ["i10", "i14", "i16", "i28", "i18"], "no x, nothing that is gone, the pin in its place"
    assert envelope.trace[-1].removed == {"excluded": 20, "unavailable": 1, "below_page": 4}
    assert np.isfinite(envelope.scores).all()


async def test_the_cap_reaches_into_the_rest(kit: Any) -> None:
    for number in range(30):
        kit.memory.rows[("item_profile", f"i{number}")] = {"category": "xyz"[number % 3], "available": int(number > 2)}
    kit.scene = _scene(rerank_best=5, rules={"cap": Cap(max=1, window=3)})
    assert (await _page(kit)).items == ["i3", "i4", "i5", "i6", "i7"]
    for number in range(5, 12):
        kit.memory.rows[("item_profile", f"i{number}")] = {"category": "x", "available": 1}
    assert (await _page(kit)).items == ["i3", "i4", "i14", "i5", "i13"]


async def test_a_rest_that_cannot_be_read_still_fills_the_page_and_says_so(kit: Any) -> None:
    for number in range(6):
        kit.memory.rows[("item_profile", f"i{number}")] = {"available": 0}
    kit.scene = _scene(rerank_best=6)
    read = kit.memory.read

    async def once(entity: str, views: Any, ids: Any, **more: Any) -> Any:
        if len(ids) > 6:
            raise StageFailure("features_timeout")
        return await read(entity, views, ids, **more)

    kit.memory.read = once
    envelope = await _page(kit)
    assert envelope.items == ["i6", "i7", "i8", "i9", "i10"]
    assert [(one.reason, one.action) for one in envelope.degraded] == [("features_timeout", "fill_unchecked")]


async def test_scores_as_far_apart_as_numbers_go(kit: Any) -> None:
    kit.scene = _scene()
    scores = [-1.7e308] * 15 + [1.7e308] * 15
    envelope = await _page(kit, StageFailure("predictor_error"), scores=scores)
    assert envelope.items == ITEMS[15:20]


async def test_without_the_model_the_rules_remain(kit: Any) -> None:
    kit.memory.rows[("item_profile", "i0")] = {"available": 0}
    kit.scene = _scene()
    envelope = await _page(kit, StageFailure("predictor_unavailable"))
    assert envelope.items == ["i1", "i2", "i3", "i4", "i5"]
    assert [(each.reason, each.action) for each in envelope.degraded] == [
        ("predictor_unavailable", "rules_without_model")
    ]


async def test_without_features_the_rules_that_need_none_remain(kit: Any) -> None:
    kit.memory.fail = "features_unavailable"
    kit.scene = _scene(rules={"pin": (Pin(item_id="i7", position=1),), "exclude": Exclude(items=frozenset({"i0"}))})
    envelope = await _page(kit)
    assert envelope.items == ["i7", "i1", "i2", "i3", "i4"]
    assert envelope.degraded[0].action == "rules_without_features"


async def test_a_hung_model_still_leaves_a_page(kit: Any) -> None:
    kit.budgets, kit.scene = Budgets(), _scene()
    envelope = await _page(kit, None)
    assert envelope.items == ITEMS[:5]
    assert envelope.degraded[0].reason == "predictor_timeout"


async def test_the_result_is_remembered_unless_it_came_from_memory(kit: Any) -> None:
    kit.scene = _scene()
    await _page(kit)
    assert kit.memory.last["u"] == ITEMS
    kit.memory.last.clear()
    await _page(kit, degraded=[Degraded(stage="recall", reason="deadline", action="last_result")])
    assert kit.memory.last == {}


async def test_the_models_inputs_have_both_scores_best_first(kit: Any) -> None:
    kit.scene = _scene()
    await _page(kit, items=["a", "b"], scores=[0.1, 0.9], coarse_scores=[5.0, 6.0])
    await _page(kit, items=["a", "b"], scores=[0.1, 0.9])
    first, second = kit.offered
    assert first["item_id"].tolist() == [b"b", b"a"]
    assert first["coarse_score"].tolist() == [6.0, 5.0]
    assert np.isnan(second["coarse_score"]).all(), "coarse fell back: not known is not zero"


async def test_the_record_has_every_candidate_once(kit: Any) -> None:
    kit.scene = _scene()
    await _page(kit, items=["a", "b", "a"], scores=[0.1, 0.2, 0.3], record=True)
    record = records.decode({"rerank": kit.memory.records["rerank"]})["rerank"]
    assert (record.kept, record.removed) == (["a", "b"], {"duplicate": ["a"]})


rows = st.lists(
    st.tuples(
        st.integers(0, 25),
        st.one_of(st.floats(0, 1), st.just(float("nan"))),
        st.sampled_from(["ann", "hot", "fresh", "pin"]),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows, st.integers(1, 15), st.integers(1, 20), st.booleans(), st.text(min_size=1, max_size=5))
async def test_rerank_invariants(
    kit: Any, candidates: list[tuple[int, float, str]], size: int, best: int, model: bool, request_id: str
) -> None:
    pins = (Pin(item_id="i1", position=1), Pin(item_id="i2", position=size)) if size > 1 else ()
    exploration = Exploration(position=min(3, size), share=1.0, channels=("fresh", "hot"))
    exclude = Exclude(items=frozenset({"i4"}))
    kit.scene = Scene(
        page_size=size,
        rerank_best=best,
        rules=Rules(pin=pins, exploration=exploration, exclude=exclude, cap=Cap(max=1, window=3), mmr_lambda=0.3),
    )
    for number in range(26):
        kit.memory.rows[("item_profile", f"i{number}")] = {"category": "xyz"[number % 3], "available": number != 5}
    items = [f"i{number}" for number, _, _ in candidates]
    envelope = await _page(
        kit,
        _as_fine if model else StageFailure("predictor_error"),
        items=items,
        scores=[score for _, score, _ in candidates],
        sources=[source for _, _, source in candidates],
        request_id=request_id,
    )
    page, trace = envelope.items, envelope.trace[-1]
    assert len(set(page)) == len(page) == len(envelope.scores) == len(envelope.sources)
    assert set(page) <= set(items) - {"i4", "i5"}
    assert np.isfinite(envelope.scores).all()
    assert trace.received == len(items) == trace.kept + sum(trace.removed.values())
    usable = {item for item, (_, score, _) in zip(items, candidates, strict=True) if np.isfinite(score)} - {"i4"}
    assert len(usable) - 1 <= len(page) or len(page) == size
    assert trace.short == size - len(page)
    assert envelope.sources.count("explore") <= 1
