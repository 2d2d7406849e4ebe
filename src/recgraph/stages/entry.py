"""Entry: turns a client's request into the envelope of the graph."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Final

from recgraph.contract import BundleRef, Envelope, TraceEntry
from recgraph.deadline import Deadline
from recgraph.release.arms import Arms, assign
from recgraph.scenes import Scenes
from recgraph.settings import Budgets


class EntryStage:
    """Validates the scene, sets deadline, arm, bundle and page size, and decides whether a record is kept.

    Whatever a client sent of these was dropped when its body was parsed (contract.parse_request).
    """

    name: Final = "entry"
    needs_items: Final = False

    def __init__(
        self,
        *,
        scenes: Scenes,
        arms: Callable[[], Arms],
        budgets: Budgets,
        record_sample: float = 0.0,
        wall_ms: Callable[[], float] = lambda: time.time() * 1000.0,
    ) -> None:
        self._scenes = scenes
        self._arms = arms
        self._budgets = budgets
        self._record_sample = record_sample
        self._wall_ms = wall_ms

    async def run(self, envelope: Envelope) -> Envelope:
        """The envelope that recall receives. Raises BadRequest for an unknown scene."""
        started, arrived_ms = time.perf_counter(), self._wall_ms()
        scene = self._scenes.get(envelope.user.scene)
        deadline = Deadline(time.monotonic() + self._budgets.whole / 1000.0)
        assigned = assign(self._arms(), envelope.user.user_id)
        envelope.arm = assigned.arm
        envelope.bundle = BundleRef(version=assigned.bundle, stages=assigned.stages)
        envelope.page_size = scene.page_size
        envelope.record = envelope.explain or sampled(envelope.request_id, self._record_sample)
        ms = (time.perf_counter() - started) * 1000.0
        envelope.trace = [TraceEntry(stage=self.name, ms=round(ms, 3), received=0, kept=0)]
        envelope.deadline_ms = round(arrived_ms + self._budgets.whole, 3)
        envelope.remaining_ms = round(deadline.remaining_ms(), 3)
        return envelope


def sampled(request_id: str, share: float) -> bool:
    """Whether a request is in the sample: by a hash of its id, so that every process would say the same."""
    if share <= 0.0:
        return False
    digest = hashlib.blake2b(request_id.encode(), digest_size=8, person=b"record").digest()
    return int.from_bytes(digest, "big") / 2**64 < share
