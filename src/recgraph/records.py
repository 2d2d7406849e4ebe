"""Decision records: what each stage of one request received, kept and removed, with ids: "why was X not shown"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from recgraph.contract import Degraded
from recgraph.errors import DataError


class StageRecord(msgspec.Struct, kw_only=True):
    """One stage's part. `kept`, `scores` and `sources` are columns of one length, in the order of the answer.

    `removed` has ids by reason. `received` is kept plus removed, duplicates included.
    """

    stage: str
    request_id: str
    user_id: str
    scene: str
    bundle: str
    at_ms: float
    kept: list[str]
    scores: list[float] | None = None
    sources: list[str] | None = None
    removed: dict[str, list[str]] = msgspec.field(default_factory=dict)
    degraded: list[Degraded] = msgspec.field(default_factory=list)

    @property
    def received(self) -> int:
        """How many candidates the stage had."""
        return len(self.kept) + sum(len(ids) for ids in self.removed.values())


@dataclass(frozen=True)
class Fate:
    """What one stage did with one item. `place` is 1-based among the kept; `reason` is set where it was removed."""

    stage: str
    status: str
    """`kept`, `removed`, or `not received`."""
    reason: str = ""
    place: int | None = None
    score: float | None = None
    source: str = ""


_decoder = msgspec.json.Decoder(StageRecord)
_encoder = msgspec.json.Encoder()


def encode(record: StageRecord) -> bytes:
    """As it is kept in the cache Redis."""
    return _encoder.encode(record)


def decode(stages: Mapping[str, bytes]) -> dict[str, StageRecord]:
    """The records by stage. Raises DataError for what is not one."""
    try:
        return {stage: _decoder.decode(value) for stage, value in stages.items()}
    except msgspec.DecodeError as error:
        raise DataError(f"a decision record cannot be read: {error}") from error


def fate(record: StageRecord, item: str) -> Fate:
    """What this stage did with `item`. An item that was kept once and removed as a duplicate was kept."""
    if item in record.kept:
        at = record.kept.index(item)
        return Fate(
            record.stage,
            "kept",
            place=at + 1,
            score=record.scores[at] if record.scores else None,
            source=record.sources[at] if record.sources else "",
        )
    for reason, ids in record.removed.items():
        if item in ids:
            return Fate(record.stage, "removed", reason=reason)
    return Fate(record.stage, "not received")
