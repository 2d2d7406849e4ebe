"""Why an item was or was not shown, from the decision record of a request."""

from __future__ import annotations

from dataclasses import dataclass, field

import redis

from recgraph.cache import record_key
from recgraph.errors import DataError
from recgraph.records import Fate, StageRecord, decode, fate
from recgraph.settings import RANKING_STAGES

_TIMEOUT_S = 2.0


class NoRecord(DataError):
    """There is no record of the request."""


@dataclass(frozen=True)
class Verdict:
    """`outcome` is shown, removed, lost (a stage did not get it though the one before kept it), never_candidate, or
    unknown (recall left no record).

    `stage` is where it ended, `text` one sentence for people, `path` what each stage of the record did with it.
    """

    request_id: str
    item: str
    outcome: str
    stage: str
    text: str
    path: list[Fate] = field(default_factory=list)


def read_record(url: str, request_id: str) -> dict[str, StageRecord]:
    """The parts of a request's record by stage. Raises NoRecord, or DataError where the cache Redis is gone."""
    try:
        with redis.Redis.from_url(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S) as client:
            found = client.hgetall(record_key(request_id))
    except redis.RedisError as error:
        raise DataError(f"the cache Redis at {url} does not answer: {error}") from error
    if not found:
        raise NoRecord(
            f"there is no record of request {request_id!r}: the id is unknown, or its record has expired (they are "
            "kept for an hour), or it was not kept (every request with `explain` is, of the others a sample)"
        )
    return decode({stage.decode("utf-8", "replace"): value for stage, value in found.items()})


def judge(request_id: str, item: str, records: dict[str, StageRecord]) -> Verdict:
    """At which stage the item was lost and why, or its place on the page."""
    path = [fate(records[stage], item) for stage in RANKING_STAGES if stage in records]
    kept = [one for one in path if one.status == "kept"]
    ended = next((one for one in path if one.status == "removed"), None)
    if ended is not None and not _kept_later(path, ended):
        text = f"{item} was removed at {ended.stage}: {ended.reason}{_fell_back(records[ended.stage])}"
        return Verdict(request_id, item, "removed", ended.stage, text, path)
    if not kept and RANKING_STAGES[0] not in records:
        text = f"{item} is in no part of the record, but recall's is missing: whether it was a candidate is not known"
        return Verdict(request_id, item, "unknown", "recall", text, path)
    if not kept:
        recall = records[RANKING_STAGES[0]]
        text = f"{item} was never a candidate: recall did not bring it for this request{_fell_back(recall)}"
        return Verdict(request_id, item, "never_candidate", "recall", text, path)
    last = kept[-1]
    if last is path[-1] and last.stage == RANKING_STAGES[-1]:
        total = len(records[last.stage].kept)
        text = f"{item} was shown at place {last.place} of {total}{_origin(last)}"
        return Verdict(request_id, item, "shown", last.stage, text, path)
    missing = _after(last.stage)
    why = "which left no record" if missing not in records else "which did not receive it"
    text = f"{item} was kept at {last.stage} (place {last.place}) and lost before {missing}, {why}"
    return Verdict(request_id, item, "lost", missing, text, path)


def _kept_later(path: list[Fate], ended: Fate) -> bool:
    """A pinned item or a backfill may come back after an earlier stage had removed it."""
    return any(one.status == "kept" for one in path[path.index(ended) + 1 :])


def _fell_back(record: StageRecord) -> str:
    """What the stage did instead of its work, if it did: the reason behind the reason."""
    said = [f"{one.reason}, answered with {one.action}" for one in record.degraded if one.stage == record.stage]
    return f" ({record.stage} was degraded: {'; '.join(said)})" if said else ""


def _after(stage: str) -> str:
    names = list(RANKING_STAGES)
    return names[names.index(stage) + 1] if stage in names[:-1] else names[-1]


def _origin(last: Fate) -> str:
    score = "" if last.score is None else f", score {last.score:.4f}"
    return f"{score}{f', from {last.source}' if last.source else ''}"
