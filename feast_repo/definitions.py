"""Entities, sources, views and services of the recommender: the truth about features.

A view never changes its fields: a change is a new view (`item_stats_v2`), so that bundles of before and after can be
served side by side. The sources are described in docs/architecture.md.
"""

import os
from datetime import timedelta
from pathlib import Path

from feast import Entity, FeatureService, FeatureView, Field, FileSource, ValueType
from feast.types import Array, FeastType, Float32, Int64, String

OFFLINE = Path(os.environ.get("RECGRAPH_OFFLINE") or Path(__file__).resolve().parents[1] / ".recgraph" / "offline")
UNBOUNDED = timedelta(0)
# The longest window of the statistics, and a day for a late job.
KEPT = timedelta(days=91)
WINDOWS = ("12h", "1d", "2d", "3d", "7d", "14d", "30d", "90d")

user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.STRING, description="A person with an account.")
item = Entity(name="item", join_keys=["item_id"], value_type=ValueType.STRING, description="What is recommended.")


def _source(role: str) -> FileSource:
    return FileSource(
        name=f"{role}_source",
        path=str(OFFLINE.absolute() / f"{role}.parquet"),
        timestamp_field="event_timestamp",
        created_timestamp_column="created",
    )


def _view(role: str, entity: Entity, ttl: timedelta, fields: dict[str, FeastType]) -> FeatureView:
    key = Field(name=f"{entity.name}_id", dtype=String)
    schema = [key, *(Field(name=name, dtype=dtype) for name, dtype in fields.items())]
    return FeatureView(name=f"{role}_v1", entities=[entity], ttl=ttl, schema=schema, source=_source(role), online=True)


item_profile = _view(
    "item_profile",
    item,
    UNBOUNDED,
    {
        "title": String,
        "category": String,
        "categories": Array(String),
        "creator": String,
        "publish_time": Int64,
        "available": Int64,
    },
)

item_stats = _view(
    "item_stats",
    item,
    KEPT,
    {f"{count}_{window}": Float32 for window in WINDOWS for count in ("impressions", "clicks")}
    | dict.fromkeys(("rating_sum_30d", "rating_count_30d", "rating_sum_all", "rating_count_all"), Float32)
    | dict.fromkeys(("impressions_all", "clicks_all"), Float32)
    | dict.fromkeys(("first_event_time", "last_event_time", "last_click_time"), Int64),
)

user_profile = _view(
    "user_profile",
    user,
    KEPT,
    dict.fromkeys(
        (
            "clicks_all",
            "impressions_all",
            "clicks_7d",
            "clicks_30d",
            "impressions_7d",
            "impressions_30d",
            "rating_sum_all",
            "rating_count_all",
            "rating_sq_sum_all",
            "active_days",
        ),
        Float32,
    )
    | dict.fromkeys(("first_event_time", "last_event_time"), Int64)
    | {"top_categories": Array(String), "category_clicks": Array(Float32)},
)

user_clicks = _view(
    "user_clicks", user, KEPT, {"item_ids": Array(String), "times": Array(Int64), "categories": Array(String)}
)

user_seen = _view("user_seen", user, UNBOUNDED, {"item_ids": Array(String)})

# What each stage reads. Recall needs the item views for what it filters by (availability, categories), not to score.
recall = FeatureService(name="recall", features=[user_profile, user_clicks, user_seen, item_profile])
coarse = FeatureService(name="coarse", features=[user_profile, user_clicks, item_stats])
fine = FeatureService(name="fine", features=[user_profile, user_clicks, item_profile, item_stats])
rerank = FeatureService(name="rerank", features=[user_profile, item_profile, item_stats])
