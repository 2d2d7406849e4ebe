"""The recall stage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recgraph import records
from recgraph.errors import StageFailure
from recgraph.scenes import Filters, Pin, Pools, Quotas, Rules, Scene
from recgraph.settings import Budgets
from recgraph.stages import Tensors

SCENE = Scene(recall=Quotas(ann=10, i2i=5, hot=5, fresh=0))


def _found(inputs: Tensors) -> Tensors:
    def ids(letter: str, k: int) -> Any:
        out = np.empty(k, object)
        out[:] = [f"{letter}{number}".encode() for number in range(k)]
        return out

    ann, i2i = (int(inputs[name][0]) for name in ("ann_k", "i2i_k"))
    return {"ann_id": ids("a", ann), "i2i_id": ids("b", i2i), "ann_score": np.zeros(ann, np.float32)}


@pytest.fixture
def ready(kit: Any) -> Any:
    kit.scene = SCENE
    kit.bundle.pools = {"home": {"hot": [(f"h{number}", 1.0) for number in range(30)], "fresh": [("f0", 1.0)]}}
    return kit


async def test_channels_are_merged_by_quota(ready: Any) -> None:
    envelope = await ready.stage("recall", _found).run(ready.envelope())
    assert [envelope.sources.count(name) for name in ("ann", "i2i", "hot", "fresh")] == [10, 5, 5, 0]
    assert envelope.items[:3] == ["a0", "b0", "h0"]
    assert envelope.degraded == []
    trace = envelope.trace[-1]
    assert trace.stage == "recall"
    assert trace.received == trace.kept + sum(trace.removed.values())


async def test_seen_blocked_and_unavailable_items_are_removed_and_counted(ready: Any) -> None:
    ready.scene = Scene(recall=SCENE.recall, filters=Filters(blocklist=frozenset({"h1"})))
    ready.memory.rows[("user_seen", "u")] = {"item_ids": ["a0", "h0"]}
    ready.memory.rows[("item_profile", "a1")] = {"available": 0}
    ready.memory.rows[("item_profile", "a2")] = {"available": 1}
    envelope = await ready.stage("recall", _found).run(ready.envelope(record=True))
    assert {"a0", "h0", "h1", "a1"}.isdisjoint(envelope.items)
    assert "a2" in envelope.items
    assert len(envelope.items) == 20, "what was removed is made up for"
    removed = envelope.trace[-1].removed
    assert (removed["seen"], removed["blocked"], removed["unavailable"]) == (2, 1, 1)
    record = records.decode({"recall": ready.memory.records["recall"]})["recall"]
    assert record.removed["seen"] == ["a0", "h0"]
    assert record.received == envelope.trace[-1].received


async def test_availability_is_read_for_little_more_than_is_wanted(ready: Any) -> None:
    envelope = await ready.stage("recall", _found).run(ready.envelope())
    assert ready.memory.reads == [("user", 1), ("item", 22)], "1.1 times the 20 that are wanted"
    assert len(envelope.items) == 20


async def test_where_most_is_unavailable_the_rest_is_read_too(ready: Any) -> None:
    for number in range(30):
        ready.memory.rows[("item_profile", f"h{number}")] = {"available": 0}
        ready.memory.rows[("item_profile", f"a{number}")] = {"available": int(number >= 8)}
    envelope = await ready.stage("recall", _found).run(ready.envelope())
    assert len([entity for entity, _ in ready.memory.reads if entity == "item"]) == 2
    assert {item for item in envelope.items if item[0] in "ah"} == {f"a{number}" for number in range(8, 13)}
    trace = envelope.trace[-1]
    assert trace.received == trace.kept + sum(trace.removed.values())


async def test_filters_can_be_switched_off(ready: Any) -> None:
    ready.scene = Scene(recall=SCENE.recall, filters=Filters(seen=False, unavailable=False))
    ready.memory.rows[("user_seen", "u")] = {"item_ids": ["a0"]}
    ready.memory.rows[("item_profile", "a1")] = {"available": 0}
    envelope = await ready.stage("recall", _found).run(ready.envelope())
    assert {"a0", "a1"} <= set(envelope.items)
    assert [entity for entity, _ in ready.memory.reads] == ["user"], "availability is not read for nothing"


async def test_pinned_items_come_first_even_when_seen(ready: Any) -> None:
    ready.scene = Scene(recall=SCENE.recall, rules=Rules(pin=(Pin(item_id="a3", position=2),)))
    ready.memory.rows[("user_seen", "u")] = {"item_ids": ["a3"]}
    envelope = await ready.stage("recall", _found).run(ready.envelope())
    assert (envelope.items[0], envelope.sources[0]) == ("a3", "pin")
    assert envelope.items.count("a3") == 1


async def test_a_pool_of_another_scene_can_be_used(ready: Any) -> None:
    ready.scene = Scene(recall=Quotas(ann=0, i2i=0, hot=5, fresh=0), pools=Pools(scene="elsewhere"))
    ready.bundle.pools["elsewhere"] = {"hot": [("e0", 1.0)]}
    envelope = await ready.stage("recall", _found).run(ready.envelope())
    assert envelope.items == ["e0"]


@pytest.mark.parametrize("failure", ["predictor", "features", "hung predictor", "hung features"])
async def test_fallback_is_the_last_result_then_the_hot_pool_then_the_fixed_list(ready: Any, failure: str) -> None:
    ready.budgets = Budgets(recall=200.0, whole=1000.0, fallback_ms=120.0, read_share=0.2)
    ready.memory.fail = "features_unavailable" if failure == "features" else ""
    ready.memory.hang = failure == "hung features"
    answer = {"predictor": StageFailure("predictor_unavailable"), "hung predictor": None}.get(failure, _found)
    reason = {"predictor": "predictor_unavailable", "features": "features_unavailable"}.get(
        failure, f"{failure.split()[-1]}_timeout"
    )
    ready.memory.last["u"] = ["x", "y"]
    envelope = await ready.stage("recall", answer).run(ready.envelope())
    assert (envelope.items[:3], envelope.sources[:3]) == (["x", "y", "h0"], ["last", "last", "hot"])
    assert [(each.reason, each.action) for each in envelope.degraded] == [(reason, "last_result")]
    ready.memory.last.clear()
    envelope = await ready.stage("recall", answer).run(ready.envelope())
    assert envelope.items == [f"h{number}" for number in range(20)]
    assert envelope.degraded[0].action == "hot_pool"
    ready.bundle.pools.clear()
    ready.scene = Scene(recall=SCENE.recall, pools=Pools(fixed=("z",)))
    envelope = await ready.stage("recall", answer).run(ready.envelope())
    assert (envelope.items, envelope.degraded[0].action) == (["z"], "fixed_pool")
    ready.scene = SCENE
    envelope = await ready.stage("recall", answer).run(ready.envelope())
    assert (envelope.items, envelope.degraded[0].action) == ([], "empty")


async def test_the_blocklist_holds_in_the_fallback(ready: Any) -> None:
    ready.scene = Scene(recall=SCENE.recall, filters=Filters(blocklist=frozenset({"h0"})))
    envelope = await ready.stage("recall", StageFailure("predictor_error")).run(ready.envelope())
    assert envelope.items[0] == "h1"
    assert envelope.trace[-1].removed == {"blocked": 1}


async def test_without_availability_recall_goes_on_and_says_so(ready: Any) -> None:
    async def only_users(entity: str, *args: Any, **more: Any) -> Any:
        if entity == "item":
            raise StageFailure("features_timeout")
        return await read(entity, *args, **more)

    read, ready.memory.read = ready.memory.read, only_users
    envelope = await ready.stage("recall", _found).run(ready.envelope())
    assert len(envelope.items) == 20
    assert [(each.reason, each.action) for each in envelope.degraded] == [
        ("features_timeout", "availability_unchecked")
    ]


@pytest.mark.parametrize(
    "answer",
    [{}, {"ann_id": np.zeros(3, np.int64), "i2i_id": np.empty(0, object)}, {"ann_id": np.array([-1], object)}],
)
async def test_a_predictor_that_answers_nonsense_is_a_failure(ready: Any, answer: Tensors) -> None:
    envelope = await ready.stage("recall", lambda _: answer).run(ready.envelope())
    assert envelope.degraded[0].reason == "predictor_bad_output"
    assert envelope.items[0] == "h0"


async def test_empty_ids_never_leave(ready: Any) -> None:
    def with_empty(inputs: Tensors) -> Tensors:
        return {**_found(inputs), "ann_id": np.array([b"", b"a0"], object)}

    envelope = await ready.stage("recall", with_empty).run(ready.envelope())
    assert "" not in envelope.items
    assert envelope.trace[-1].removed["invalid"] == 1


async def test_every_pin_goes_as_one_though_a_channel_has_it_higher(ready: Any) -> None:
    pins = (Pin(item_id="h5", position=1), Pin(item_id="a0", position=2), Pin(item_id="h0", position=3))
    ready.scene = Scene(recall=SCENE.recall, rules=Rules(pin=pins))
    envelope = await ready.stage("recall", _found).run(ready.envelope())
    assert envelope.items[:3] == ["h5", "a0", "h0"]
    assert envelope.sources[:3] == ["pin"] * 3, "coarse cuts by score whatever is not called a pin"


async def test_pins_stand_in_the_fallback_too(ready: Any) -> None:
    pins = (Pin(item_id="mine", position=1), Pin(item_id="h0", position=2), Pin(item_id="bad", position=3))
    ready.scene = Scene(
        recall=SCENE.recall, rules=Rules(pin=pins), filters=Filters(blocklist=frozenset({"bad"})), pools=Pools()
    )
    envelope = await ready.stage("recall", StageFailure("predictor_error")).run(ready.envelope())
    assert envelope.items[:3] == ["mine", "h0", "h1"]
    assert envelope.sources[:3] == ["pin", "pin", "hot"]
    assert envelope.degraded[0].action == "hot_pool"
    ready.bundle.pools = {}
    envelope = await ready.stage("recall", StageFailure("predictor_error")).run(ready.envelope())
    assert envelope.degraded[0].action == "empty", "pins alone are no pool"


async def test_a_last_result_too_short_for_a_page_has_the_hot_pool_behind_it(ready: Any) -> None:
    ready.memory.last["u"] = ["l0", "h3", "l1"]
    envelope = await ready.stage("recall", StageFailure("predictor_error")).run(ready.envelope())
    assert envelope.items[:5] == ["l0", "h3", "l1", "h0", "h1"]
    assert envelope.sources[:4] == ["last", "last", "last", "hot"]
    assert len(envelope.items) == SCENE.recall.total
    assert [(one.reason, one.action) for one in envelope.degraded] == [("predictor_error", "last_result")]
    trace = envelope.trace[-1]
    assert trace.received == trace.kept + sum(trace.removed.values())
    ready.memory.last["u"] = [f"l{number}" for number in range(SCENE.rerank_best)]
    envelope = await ready.stage("recall", StageFailure("predictor_error")).run(ready.envelope())
    assert set(envelope.sources) == {"last"}, "a long one stands alone"
