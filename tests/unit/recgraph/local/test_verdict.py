"""Why an item was not shown, from records that a real Redis holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from msgspec.structs import replace

from recgraph.cache import record_key
from recgraph.contract import Degraded
from recgraph.errors import DataError
from recgraph.local.verdict import NoRecord, judge, read_record
from recgraph.records import StageRecord, encode
from recgraph.redis_process import RedisProcess, start_redis


def record(stage: str, kept: list[str], **removed: list[str]) -> StageRecord:
    scores = [1.0 / (i + 1) for i in range(len(kept))]
    return StageRecord(
        stage=stage,
        request_id="r1",
        user_id="u",
        scene="home_feed",
        bundle="b",
        at_ms=0.0,
        kept=kept,
        scores=scores,
        sources=["hot"] * len(kept),
        removed=removed,
    )


RECORDS = {
    "recall": record("recall", ["a", "b", "c", "d"], seen=["s"], duplicate=["a"]),
    "coarse": record("coarse", ["b", "a", "d"], below_cut=["c"]),
    "fine": record("fine", ["a", "b", "d"]),
    "rerank": record("rerank", ["b", "a", "pinned"], excluded=["d"]),
}


@pytest.mark.parametrize(
    ("item", "outcome", "stage", "text"),
    [
        ("b", "shown", "rerank", "b was shown at place 1 of 3, score 1.0000, from hot"),
        ("a", "shown", "rerank", "a was shown at place 2 of 3, score 0.5000, from hot"),
        ("s", "removed", "recall", "s was removed at recall: seen"),
        ("c", "removed", "coarse", "c was removed at coarse: below_cut"),
        ("d", "removed", "rerank", "d was removed at rerank: excluded"),
        ("x", "never_candidate", "recall", "x was never a candidate: recall did not bring it for this request"),
        ("pinned", "shown", "rerank", "pinned was shown at place 3 of 3, score 0.3333, from hot"),
    ],
)
def test_the_fate_of_an_item(item: str, outcome: str, stage: str, text: str) -> None:
    verdict = judge("r1", item, RECORDS)
    assert (verdict.outcome, verdict.stage, verdict.text) == (outcome, stage, text)
    assert [one.stage for one in verdict.path] == ["recall", "coarse", "fine", "rerank"]


def test_an_item_that_a_stage_never_received_is_lost_between() -> None:
    records = RECORDS | {"fine": record("fine", ["a"]), "rerank": record("rerank", ["a"])}
    verdict = judge("r1", "b", records)
    assert (verdict.outcome, verdict.stage) == ("lost", "fine")
    assert "kept at coarse (place 1) and lost before fine, which did not receive it" in verdict.text


def test_a_record_that_breaks_off_says_so() -> None:
    verdict = judge("r1", "b", {"recall": RECORDS["recall"]})
    assert (verdict.outcome, verdict.stage) == ("lost", "coarse")
    assert "which left no record" in verdict.text


def test_a_stage_that_fell_back_says_so() -> None:
    fallback = [Degraded(stage="coarse", reason="predictor_timeout", action="order_of_recall")]
    records = RECORDS | {"coarse": replace(RECORDS["coarse"], degraded=fallback)}
    assert judge("r1", "c", records).text == (
        "c was removed at coarse: below_cut (coarse was degraded: predictor_timeout, answered with order_of_recall)"
    )
    fallback = [Degraded(stage="recall", reason="deadline", action="hot_pool")]
    records = RECORDS | {"recall": replace(RECORDS["recall"], degraded=fallback)}
    assert judge("r1", "x", records).text.endswith("(recall was degraded: deadline, answered with hot_pool)")


def test_a_record_of_somebody_elses_is_an_error(server: RedisProcess) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.hset(record_key("odd"), b"\xff", b"{}")
    with pytest.raises(DataError, match="cannot be read"):
        read_record(server.url, "odd")


def test_without_recalls_record_nobody_knows_what_it_brought() -> None:
    rest = {stage: part for stage, part in RECORDS.items() if stage != "recall"}
    assert (judge("r1", "x", rest).outcome, judge("r1", "x", rest).stage) == ("unknown", "recall")
    assert judge("r1", "c", rest).outcome == "removed"
    assert judge("r1", "b", rest).outcome == "shown"


def test_an_item_that_a_later_stage_brought_back_was_shown() -> None:
    records = RECORDS | {"rerank": record("rerank", ["c"])}
    assert judge("r1", "c", records).outcome == "shown"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with start_redis(tmp_path_factory.mktemp("redis"), persist=False) as process:
        yield process


def test_a_record_is_read_from_redis(server: RedisProcess) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.hset(record_key("r1"), mapping={stage: encode(one) for stage, one in RECORDS.items()})
        client.hset(record_key("bad"), mapping={"recall": b"{"})
    assert read_record(server.url, "r1") == RECORDS
    with pytest.raises(DataError, match="cannot be read"):
        read_record(server.url, "bad")


def test_an_unknown_request_is_told_from_a_dead_redis(server: RedisProcess, tmp_path: Path) -> None:
    with pytest.raises(NoRecord, match=r"no record of request 'nope': the id is unknown, or its record has expired"):
        read_record(server.url, "nope")
    with pytest.raises(DataError, match="does not answer") as caught:
        read_record("redis://127.0.0.1:9/0", "r1")
    assert not isinstance(caught.value, NoRecord)
