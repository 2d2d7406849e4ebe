"""Scenes: what every stage does for one place of the product, as validated configuration that reloads by itself.

A scene file is YAML: `scenes: {home_feed: {...}, ...}`. Every model is frozen and refuses unknown keys, so that a typo
fails with its path instead of doing nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from recgraph.errors import BadRequest, DataError

Channel = Literal["ann", "i2i", "hot", "fresh"]
CHANNELS: tuple[Channel, ...] = ("ann", "i2i", "hot", "fresh")
ItemId = Annotated[str, Field(min_length=1, max_length=256)]
_CHECK_EVERY_S = 1.0
_log = logging.getLogger(__name__)


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Quotas(_Config):
    """Candidates per recall channel; what one channel cannot fill, the others do in turn."""

    ann: int = Field(default=450, ge=0, le=5000)
    i2i: int = Field(default=270, ge=0, le=5000)
    hot: int = Field(default=170, ge=0, le=5000)
    fresh: int = Field(default=110, ge=0, le=5000)

    @property
    def total(self) -> int:
        """Candidates that recall hands on at most (pinned items aside)."""
        return self.ann + self.i2i + self.hot + self.fresh

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not 1 <= self.total <= 5000:
            raise ValueError(f"the quotas add up to {self.total}, expected 1 to 5000 (the contract's limit)")
        return self


class Filters(_Config):
    """What recall removes."""

    seen: bool = True
    unavailable: bool = True
    blocklist: frozenset[ItemId] = frozenset()


class Pin(_Config):
    """An item that stands at a fixed place (1 is the first), where it is available and not excluded."""

    item_id: ItemId
    position: int = Field(ge=1, le=500)


class Boost(_Config):
    """Multiplies the relevance of what matches; exactly one of item, category and creator."""

    item_id: ItemId | None = None
    category: str | None = None
    creator: str | None = None
    factor: float = Field(gt=0.0, le=100.0)

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        given = [name for name in ("item_id", "category", "creator") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"exactly one of item_id, category and creator is needed, got {given}")
        return self


class Exclude(_Config):
    """What never appears on the page: items always, categories and creators while the features can be read (else the
    answer is degraded and says so).
    """

    items: frozenset[ItemId] = frozenset()
    categories: frozenset[str] = frozenset()
    creators: frozenset[str] = frozenset()


class Cap(_Config):
    """At most `max` items of one category among any `window` consecutive places."""

    max: int = Field(default=5, ge=1)
    window: int = Field(default=10, ge=1)


class Freshness(_Config):
    """Adds `weight` * 2^(-age / half_life) to the relevance, which lies between 0 and 1."""

    weight: float = Field(default=0.0, ge=0.0, le=10.0)
    half_life_hours: float = Field(default=48.0, gt=0.0)


class Exploration(_Config):
    """One place of the page for an item that would not have made it, from the given channels.

    `share` is the share of the requests that explore; which ones, and with which item, follows from the request id.
    """

    position: int = Field(default=18, ge=1, le=500)
    share: float = Field(default=0.0, ge=0.0, le=1.0)
    channels: tuple[Channel, ...] = ("fresh",)


class Rules(_Config):
    """Rerank's rules. `mmr_lambda` weighs diversity: 0 is relevance alone, 1 is diversity alone."""

    pin: tuple[Pin, ...] = ()
    boost: tuple[Boost, ...] = ()
    exclude: Exclude = Exclude()
    cap: Cap | None = Cap()
    mmr_lambda: float = Field(default=0.1, ge=0.0, le=1.0)
    freshness: Freshness = Freshness()
    exploration: Exploration = Exploration()

    @model_validator(mode="after")
    def _pins_are_distinct(self) -> Self:
        for name in ("item_id", "position"):
            values = [getattr(pin, name) for pin in self.pin]
            twice = sorted({str(value) for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"pin: {name} {', '.join(twice)} is given twice")
        return self


class Pools(_Config):
    """Where the hot and fresh pools come from: the scene's own, or those of another scene.

    `fixed` is the operator's own list, for when every other source of candidates is gone.
    """

    scene: str | None = None
    fixed: tuple[ItemId, ...] = ()


class Scene(_Config):
    """All of one scene. Without any values it is a sensible feed."""

    page_size: int = Field(default=20, ge=1, le=500)
    recall: Quotas = Quotas()
    filters: Filters = Filters()
    coarse_keep: int = Field(default=300, ge=1, le=5000)
    rerank_best: int = Field(default=60, ge=1, le=1000)
    """How many of the best candidates rerank's model and diversity look at; the rest only fill the page."""
    rules: Rules = Rules()
    pools: Pools = Pools()

    @model_validator(mode="after")
    def _places_fit(self) -> Self:
        beyond = [pin.position for pin in self.rules.pin if pin.position > self.page_size]
        if beyond:
            raise ValueError(f"rules.pin: position {beyond[0]} is beyond the page of {self.page_size}")
        explored = self.rules.exploration
        if explored.share > 0.0 and explored.position > self.page_size:
            raise ValueError(
                f"rules.exploration: position {explored.position} is beyond the page of {self.page_size}, so that no "
                "request would explore"
            )
        return self


class SceneFile(_Config):
    """The whole file."""

    scenes: dict[str, Scene] = Field(min_length=1)

    @model_validator(mode="after")
    def _pools_exist(self) -> Self:
        for name, scene in self.scenes.items():
            if scene.pools.scene is not None and scene.pools.scene not in self.scenes:
                raise ValueError(f"scenes.{name}.pools.scene: there is no scene {scene.pools.scene!r}")
        return self


class _Loader(yaml.SafeLoader):
    """YAML without what would do nothing or something else: a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """See SafeLoader. Raises ConstructorError for a key that is there already."""
        found: set[Hashable] = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) and key_node.value != "<<" else None
            if key is not None and key in found:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", key_node.start_mark)
            found.add(key)
        return super().construct_mapping(node, deep)


def parse_scenes(text: str, where: str) -> dict[str, Scene]:
    """The scenes of a YAML text. Raises DataError that names the file and the path of every bad value."""
    try:
        raw = yaml.load(text, _Loader)  # noqa: S506  # a SafeLoader
    except yaml.YAMLError as error:
        raise DataError(f"{where}: not YAML: {error}") from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        # What PyYAML lets out for a date like 2024-13-45, a tag that does not fit its value, or brackets without end.
        raise DataError(f"{where}: a value cannot be read: {error}") from error
    try:
        return SceneFile.model_validate(raw).scenes
    except ValidationError as error:
        places = "; ".join(
            f"{'.'.join(str(part) for part in item['loc']) or '(file)'}: {item['msg']} (got {str(item['input'])[:80]})"
            for item in error.errors()
        )
        raise DataError(f"{where}: {places}") from error


class Scenes:
    """Scenes by name, in memory."""

    def __init__(self, scenes: dict[str, Scene]) -> None:
        self._scenes = scenes

    def get(self, name: str) -> Scene:
        """The scene. Raises BadRequest that names the known ones."""
        scene = self.current().get(name)
        if scene is None:
            known = ", ".join(sorted(self.current()))
            raise BadRequest(f"Unknown scene {name[:64]!r}, known are: {known}", "$.user.scene")
        return scene

    def current(self) -> dict[str, Scene]:
        """All scenes."""
        return self._scenes


class SceneFileWatch(Scenes):
    """The scenes of a file, read again when it changes (looked at once a second, by mtime, size and inode).

    A new version that is invalid is logged once and the last good one stays. `version` is a hash of the text in use.
    """

    def __init__(self, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._monotonic = monotonic
        self._stamp: tuple[int, int, int] | None = None
        self.version = ""
        self._missing = False
        try:
            self._stamp = self._stat()
            super().__init__(self._read())
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8: {error}") from error
        self._checked_at = monotonic()

    def current(self) -> dict[str, Scene]:
        now = self._monotonic()
        if now - self._checked_at >= _CHECK_EVERY_S:
            self._checked_at = now
            self._reload()
        return self._scenes

    def _reload(self) -> None:
        try:
            stamp = self._stat()
            if stamp == self._stamp:
                return
            self._stamp = stamp
            self._scenes = self._read()
            self._missing = False
            _log.info("scenes reloaded: %s, version %s", self._path, self.version)
        except OSError as error:
            # Looked at again every time: the file may be in the middle of being replaced.
            if not self._missing:
                _log.error("scenes kept at version %s, the file cannot be read: %s", self.version, error)
            self._missing, self._stamp = True, None
        except (UnicodeDecodeError, DataError) as error:
            self._missing = False
            _log.error("scenes kept at version %s, the new file is not usable: %s", self.version, error)

    def _stat(self) -> tuple[int, int, int]:
        status = os.stat(self._path)
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> dict[str, Scene]:
        text = self._path.read_text(encoding="utf-8")
        scenes = parse_scenes(text, str(self._path))
        self.version = hashlib.sha256(text.encode()).hexdigest()[:12]
        return scenes
