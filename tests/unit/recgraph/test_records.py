"""Decision records."""

from __future__ import annotations

import pytest

from recgraph import records
from recgraph.errors import DataError
from recgraph.records import Fate, StageRecord

RECORD = StageRecord(
    stage="coarse",
    request_id="r",
    user_id="u",
    scene="s",
    bundle="v",
    at_ms=1.0,
    kept=["a", "b"],
    scores=[0.5, 0.25],
    sources=["ann", "hot"],
    removed={"below_cut": ["c"], "duplicate": ["a"]},
)


def test_a_record_survives_the_cache() -> None:
    assert records.decode({"coarse": records.encode(RECORD)}) == {"coarse": RECORD}
    assert RECORD.received == 4
    with pytest.raises(DataError):
        records.decode({"coarse": b"{}"})


def test_fate_of_an_item() -> None:
    assert records.fate(RECORD, "b") == Fate("coarse", "kept", place=2, score=0.25, source="hot")
    assert records.fate(RECORD, "a").status == "kept", "kept once and removed as a duplicate is kept"
    assert records.fate(RECORD, "c") == Fate("coarse", "removed", reason="below_cut")
    assert records.fate(RECORD, "x").status == "not received"
