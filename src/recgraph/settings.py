"""Settings of a serving process: from the environment (prefix RECGRAPH_), frozen, printed once at start."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

StageName = Literal["entry", "recall", "coarse", "fine", "rerank"]
RANKING_STAGES: tuple[StageName, ...] = ("recall", "coarse", "fine", "rerank")
HOPS = 5
_PASSWORD = re.compile(r"(//[^/@]*:)[^/@]*@")


class Budgets(BaseModel):
    """Milliseconds of every stage, of the hops between them, and of the whole. Defaults: docs/adr/0009.

    They are a timetable: a stage may take its own time and what the stages before it left of theirs, never the time of
    those after it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    entry: float = Field(default=3.0, gt=0.0)
    recall: float = Field(default=32.0, gt=0.0)
    coarse: float = Field(default=14.0, gt=0.0)
    fine: float = Field(default=25.0, gt=0.0)
    rerank: float = Field(default=14.0, gt=0.0)
    hops: float = Field(default=12.0, ge=0.0)
    whole: float = Field(default=100.0, gt=0.0)
    read_share: float = Field(default=0.7, gt=0.0, le=1.0)
    """Share of a stage's time that its reads may take before the stage gives up on them."""
    fallback_ms: float = Field(default=2.0, ge=0.0)
    """Kept back in every stage, so that its fallback still fits into its time."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        parts = self.entry + self.recall + self.coarse + self.fine + self.rerank + self.hops
        if parts > self.whole:
            raise ValueError(f"the stages' budgets and the hops add up to {parts:g} ms, the whole has {self.whole:g}")
        return self

    @classmethod
    def unbounded(cls) -> Budgets:
        """For evaluation and warm-up, where time does not count: an hour for everything."""
        hour = 3_600_000.0
        return cls(entry=hour, recall=hour, coarse=hour, fine=hour, rerank=hour, hops=hour, whole=6 * hour)

    def of(self, stage: StageName) -> float:
        """The budget of one stage."""
        budget: float = getattr(self, stage)
        return budget

    @property
    def hop_ms(self) -> float:
        """The allowance of one hop."""
        return self.hops / HOPS

    def reserve_ms(self, stage: StageName) -> float:
        """What `stage` leaves for the stages after it and the hops to and from them."""
        later = RANKING_STAGES[RANKING_STAGES.index(stage) + 1 :] if stage in RANKING_STAGES else RANKING_STAGES
        return sum(self.of(name) for name in later) + self.hop_ms * (len(later) + 1)


class Settings(BaseSettings):
    """Everything that a serving process is told beside its ports and its name."""

    model_config = SettingsConfigDict(
        env_prefix="RECGRAPH_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        nested_model_default_partial_update=True,
    )

    bundle: Path = Path("/mnt/models")
    """Directory of the bundle that this process serves; by default where KServe mounts one."""
    arms: Path | None = None
    """entry: arms (JSON) to start with, until the cache Redis says what is in force. None: `bundle` for everyone."""
    scenes: Path
    """Scene configuration (YAML); read again when it changes."""
    features_redis: str = "redis://127.0.0.1:6379/0"
    """The online store."""
    caches_redis: str = "redis://127.0.0.1:6380/0"
    """Pools, last results, decision records."""
    reader: Literal["packed", "feast_hash"] = "packed"
    """How the online store is laid out: our blobs, or Feast's ordinary hashes."""
    project: str = "recgraph"
    """Feast's project, part of the keys."""
    torch_threads: int = Field(default=1, ge=1)
    """Threads of one prediction; a value of its own, since a CPU limit tells nothing. FAISS heeds it. The networks,
    trained by torch, compute in numpy, whose BLAS takes OMP_NUM_THREADS: set both alike, as the chart and the local
    graph do."""
    executor_workers: int = Field(default=2, ge=1)
    """Threads of a predictor's one executor, in which its model runs (transformers have none, docs/adr/0008)."""
    max_in_flight: int = Field(default=64, ge=1)
    """Requests in work at once per process; above, a transformer answers with its fallback, a predictor refuses."""
    clock_offset_s: float = 0.0
    """Added to the wall clock for everything that depends on the age of data (recgraph.clock)."""
    budgets: Budgets = Budgets()
    """Milliseconds; one is set as RECGRAPH_BUDGETS__FINE=20."""
    record_sample: float = Field(default=0.01, ge=0.0, le=1.0)
    """Share of the requests whose decision record is kept though nobody asked to explain."""
    pools_refresh_s: float = Field(default=10.0, gt=0.0)
    """How old a pool in memory may be before it is read again from the cache Redis."""
    last_result_ttl_s: int = Field(default=86_400, ge=1)
    """How long a user's last result is kept for recall's fallback."""
    record_ttl_s: int = Field(default=3_600, ge=1)
    """How long a decision record is kept."""
    warmup_wait_s: float = Field(default=60.0, ge=0.0)
    """How long a starting transformer waits for its predictor before it becomes ready without it."""
    drain_s: float = Field(default=0.0, ge=0.0)
    """After SIGTERM: how long the process still answers, not ready and with `Connection: close`, before it stops."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    def public(self) -> dict[str, object]:
        """The settings as they may be printed: passwords in URLs are hidden."""
        dumped: dict[str, object] = self.model_dump(mode="json")
        return {name: _hide(value) for name, value in dumped.items()}


def _hide(value: object) -> object:
    return _PASSWORD.sub(r"\1***@", value) if isinstance(value, str) else value
