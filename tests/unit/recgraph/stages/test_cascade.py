"""The cascade in one process, and the warm-up that uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from recgraph.errors import BundleError
from recgraph.scenes import Quotas, Rules, Scene
from recgraph.stages import Cascade, Tensors, local_predict
from recgraph.stages.warmup import ROUNDS, recorded, warm_up


def _recall(inputs: Tensors) -> Tensors:
    ids = np.empty(20, object)
    ids[:] = [f"i{number}".encode() for number in range(20)]
    return {"ann_id": ids, "i2i_id": ids[:0]}


def _kit(kit: Any) -> Any:
    rules = Rules(cap=None, mmr_lambda=0.0)
    kit.scene = Scene(page_size=3, recall=Quotas(ann=20, i2i=0, hot=0, fresh=0), coarse_keep=10, rules=rules)
    return kit


async def test_each_stage_gets_what_the_one_before_passed_on(kit: Any, numbered: Any) -> None:
    kit = _kit(kit)
    answers = {"recall": _recall, "coarse": numbered, "fine": numbered, "rerank": numbered}
    cascade = Cascade.of(lambda name: kit.stage(name, answers[name]).deps)
    envelope = await cascade.run(kit.envelope())
    assert envelope.items == ["i19", "i18", "i17"]
    assert [entry.stage for entry in envelope.trace] == ["recall", "coarse", "fine", "rerank"]
    for before, after in zip(envelope.trace, envelope.trace[1:], strict=False):
        assert after.received == before.kept
    assert envelope.degraded == []


async def test_a_local_model_is_a_predictor() -> None:
    class Model:
        bundle_version = "v1"

        def predict(self, inputs: Tensors) -> Tensors:
            return {"score": inputs["x"] + 1}

    assert (await local_predict(Model())({"x": np.zeros(1)}, 0.0))["score"].tolist() == [1.0]


async def test_warm_up_asks_what_was_recorded_and_writes_nothing(kit: Any, numbered: Any, tmp_path: Path) -> None:
    kit = _kit(kit)
    (tmp_path / "warmup").mkdir()
    old = kit.envelope(["i1", "i2"], deadline_ms=1.0, remaining_ms=1.0, record=True)
    other = kit.envelope(["i1"], scene="closed")
    (tmp_path / "warmup" / "rerank.json").write_bytes(msgspec.json.encode([old, other]))
    answers = await warm_up("rerank", kit.stage("rerank", numbered).deps, tmp_path)
    assert [answer.items for answer in answers] == [["i2", "i1"]], "a scene that is no more is passed over"
    assert answers[0].degraded == []
    assert len(kit.offered) == ROUNDS
    assert (kit.memory.last, kit.memory.records) == ({}, {})


@pytest.mark.parametrize("content", [None, b"[]", b"{", b'[{"user": 1}]'])
def test_a_bundle_without_usable_requests_is_refused(tmp_path: Path, content: bytes | None) -> None:
    (tmp_path / "warmup").mkdir()
    if content is not None:
        (tmp_path / "warmup" / "fine.json").write_bytes(content)
    with pytest.raises(BundleError, match=r"warmup/fine\.json"):
        recorded(tmp_path, "fine")
