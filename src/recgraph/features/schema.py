"""What the serving side knows of Feast's definitions: views, fields, ttl, services.

feast_repo/ is the truth. Training exports what a bundle needs of it into the bundle's features.json, and the serving
processes, which have no Feast, load that file. So a stable and a canary bundle can read different views side by side.
"""

from __future__ import annotations

import hashlib
import re
from typing import Literal

import msgspec

DType = Literal["float32", "float64", "int64", "text", "float32_list", "int64_list", "text_list"]
Entity = Literal["user", "item"]

_VERSION = re.compile(r"_v\d+$")


class Field(msgspec.Struct, frozen=True):
    """One feature of a view."""

    name: str
    dtype: DType


class ViewSchema(msgspec.Struct, frozen=True):
    """A feature view: never changed in place, a change is a new view (`item_stats_v2`).

    `ttl_s` is in seconds, 0 means unbounded. `fields` are in the order in which the packed blob stores them.
    """

    name: str
    entity: Entity
    ttl_s: int
    fields: tuple[Field, ...]

    @property
    def role(self) -> str:
        """The name without its version, under which code asks for the view: `item_stats`."""
        return _VERSION.sub("", self.name)

    @property
    def schema_hash(self) -> bytes:
        """Eight bytes over name, fields and dtypes; written into every packed blob and checked on read."""
        text = self.name + "|" + ",".join(f"{field.name}:{field.dtype}" for field in self.fields)
        return hashlib.sha256(text.encode()).digest()[:8]


class FeatureSet(msgspec.Struct, frozen=True):
    """The feature services of one bundle: which views every stage reads, and where they are kept."""

    project: str
    views: tuple[ViewSchema, ...]
    services: dict[str, tuple[str, ...]]
    """Stage name -> names of the views it reads."""

    def of_stage(self, stage: str, entity: Entity) -> tuple[ViewSchema, ...]:
        """The views of `entity` that `stage` reads, in a fixed order."""
        names = self.services[stage]
        return tuple(view for view in self.views if view.entity == entity and view.name in names)

    @property
    def schema_hash(self) -> str:
        """Hex digest over all views and services, as the manifest carries it."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()[:16]
