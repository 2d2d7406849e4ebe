"""From blocks of features to the inputs of the models: the same code in serving, training and evaluation.

Everything here is a function of the user, one item and the moment; only rerank, whose model looks at the list as a
whole, adds the scores that the stages before it gave. Values are raw (counts, seconds, ratios): the models normalise
them. A count of what is not stored is 0, every other value that is not known is NaN.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from recgraph.features.reader import ListColumn, ViewBlock

Tensors = dict[str, npt.NDArray[Any]]
Blocks = dict[str, ViewBlock]
Floats = npt.NDArray[np.float32]

WINDOWS = ("12h", "1d", "2d", "3d", "7d", "14d", "30d", "90d")
MAX_CLICKS = 50
"""Length of the recent-click sequence (rows newest first); shorter ones are not padded."""

_STAT_COUNTS = (
    *(f"clicks_{window}" for window in WINDOWS),
    *(f"impressions_{window}" for window in WINDOWS),
    "clicks_all",
    "impressions_all",
)
_COUNT_NAMES = frozenset(_STAT_COUNTS)
STAT_FEATURES = (
    *_STAT_COUNTS,
    "rating_mean_30d",
    "rating_mean_all",
    "since_first_event_s",
    "since_last_event_s",
    "since_last_click_s",
)
"""What is derived from item_stats alone, one value per item."""

ITEM_FEATURES = (*STAT_FEATURES, "since_publish_s", "category_match", "category_cosine", "recent_category_share")
"""`item_dense` of fine."""

COARSE_ITEM_FEATURES = (
    *(f"clicks_{window}" for window in ("1d", "3d", "7d", "30d", "90d")),
    *(f"impressions_{window}" for window in ("12h", "2d", "7d")),
    "impressions_all",
    "rating_mean_all",
    "since_first_event_s",
    "since_last_event_s",
)
"""`item_dense` of coarse: few, and all of one view."""

RERANK_ITEM_FEATURES = (
    *(f"clicks_{window}" for window in ("12h", "1d", "3d", "7d", "30d")),
    "impressions_3d",
    "rating_mean_all",
    "since_first_event_s",
    "since_last_event_s",
    "category_match",
)
"""`item_dense` of rerank."""

_USER_COUNTS = (
    "clicks_all",
    "impressions_all",
    "clicks_7d",
    "clicks_30d",
    "impressions_7d",
    "impressions_30d",
    "active_days",
)
USER_FEATURES = (
    *_USER_COUNTS,
    "rating_mean",
    "rating_std",
    "since_first_event_s",
    "since_last_event_s",
    "recent_clicks",
    "hour_sin",
    "hour_cos",
    "weekday_sin",
    "weekday_cos",
)
"""`user_dense` of recall, coarse and fine, one row: the user and the moment."""

RERANK_USER_FEATURES = tuple(name for name in USER_FEATURES if name != "recent_clicks")
"""`user_dense` of rerank, which does not read the clicks."""

LOG_FEATURES = frozenset(
    name
    for name in (*ITEM_FEATURES, *USER_FEATURES)
    if name.startswith(("clicks_", "impressions_", "since_", "active_", "recent_clicks"))
)
"""Heavy-tailed features: models take log(1 + x) of them first."""


@dataclass(frozen=True)
class Context:
    """The moment of a request. `now_s` is the data clock (Unix seconds), weekday 0 is Monday."""

    hour: int
    weekday: int
    device: str
    scene: str
    now_s: float

    @classmethod
    def at(cls, now_s: float, *, device: str = "", scene: str = "") -> Context:
        """The context of a moment, hour and weekday in UTC."""
        days, rest = divmod(int(now_s), 86400)
        return cls(hour=rest // 3600, weekday=(days + 3) % 7, device=device, scene=scene, now_s=now_s)


def recall_inputs(user_blocks: Blocks, context: Context) -> Tensors:
    """The user's clicks and values: `clicks_id` object[L], `clicks_age_s` f32[L], `user_dense` f32[1, U]."""
    return {**_clicks(user_blocks, context), "user_dense": user_dense(user_blocks, context)}


def coarse_inputs(
    user_id: str, item_ids: Sequence[str], user_blocks: Blocks, item_blocks: Blocks, context: Context
) -> Tensors:
    """Inputs of coarse, whose model knows no ids: `item_dense` f32[N, C] and `user_dense`.

    Of the items it reads the view item_stats alone.
    """
    stats = _stats(item_blocks["item_stats"], context.now_s)
    return {
        "item_dense": _stack(stats, COARSE_ITEM_FEATURES, len(item_ids)),
        "user_dense": user_dense(user_blocks, context),
    }


def fine_inputs(
    user_id: str, item_ids: Sequence[str], user_blocks: Blocks, item_blocks: Blocks, context: Context
) -> Tensors:
    """Inputs of fine: ids, category and creator as object[N] of bytes, `item_dense` f32[N, I], and the user's.

    The user's are those of recall and `clicks_category` object[L].
    """
    profile = item_blocks["item_profile"]
    values = _item_values(user_blocks, item_blocks, context)
    values["recent_category_share"] = _recent_share(profile, user_blocks)
    return {
        **recall_inputs(user_blocks, context),
        "user_id": encode([user_id]),
        "item_id": encode(item_ids),
        "category": encode(_column(profile, "category")),
        "creator": encode(_column(profile, "creator")),
        "clicks_category": encode(_list(user_blocks["user_clicks"], "categories")[:MAX_CLICKS]),
        "item_dense": _stack(values, ITEM_FEATURES, len(item_ids)),
    }


def rerank_inputs(
    item_ids: Sequence[str],
    fine_score: npt.ArrayLike,
    coarse_score: npt.ArrayLike,
    user_blocks: Blocks,
    item_blocks: Blocks,
    context: Context,
) -> Tensors:
    """Inputs of rerank, best first: ids, categories, the scores of the stages before, and few values per item."""
    values = _item_values(user_blocks, item_blocks, context)
    return {
        "item_id": encode(item_ids),
        "category": encode(_column(item_blocks["item_profile"], "category")),
        "fine_score": np.asarray(fine_score, np.float32),
        "coarse_score": np.asarray(coarse_score, np.float32),
        "item_dense": _stack(values, RERANK_ITEM_FEATURES, len(item_ids)),
        "user_dense": _stack_row(_user_values(user_blocks["user_profile"], context), RERANK_USER_FEATURES),
    }


def user_dense(user_blocks: Blocks, context: Context) -> Floats:
    """USER_FEATURES of one user, f32[1, len(USER_FEATURES)]."""
    values = _user_values(user_blocks["user_profile"], context)
    values["recent_clicks"] = len(_list(user_blocks["user_clicks"], "item_ids")[:MAX_CLICKS])
    return _stack_row(values, USER_FEATURES)


def encode(texts: Sequence[str] | npt.NDArray[Any]) -> npt.NDArray[np.object_]:
    """Text as an object array of UTF-8, the form in which tensors carry it."""
    out = np.empty(len(texts), object)
    out[:] = [text.encode() for text in texts]
    return out


def _user_values(profile: ViewBlock, context: Context) -> dict[str, float]:
    """RERANK_USER_FEATURES by name."""
    values = {name: _count(profile, name) for name in _USER_COUNTS}
    ratings = _count(profile, "rating_count_all")
    mean = _ratio(_count(profile, "rating_sum_all"), ratings)
    variance = _ratio(_count(profile, "rating_sq_sum_all"), ratings) - mean * mean
    values["rating_mean"] = mean
    values["rating_std"] = math.sqrt(max(variance, 0.0)) if ratings else math.nan
    for name in ("first_event", "last_event"):
        values[f"since_{name}_s"] = float(_since(profile, f"{name}_time", context.now_s)[0])
    values["hour_sin"], values["hour_cos"] = _circle(context.hour, 24)
    values["weekday_sin"], values["weekday_cos"] = _circle(context.weekday, 7)
    return values


def _clicks(user_blocks: Blocks, context: Context) -> Tensors:
    block = user_blocks["user_clicks"]
    ids = _list(block, "item_ids")[:MAX_CLICKS]
    ages = context.now_s - _list(block, "times")[:MAX_CLICKS].astype(np.float64)
    return {"clicks_id": encode(ids), "clicks_age_s": np.maximum(ages, 0.0).astype(np.float32)}


def _item_values(user_blocks: Blocks, item_blocks: Blocks, context: Context) -> dict[str, npt.NDArray[Any]]:
    profile = item_blocks["item_profile"]
    values = _stats(item_blocks["item_stats"], context.now_s)
    published = _column(profile, "publish_time").astype(np.float64)
    known = ~_absent(profile, "publish_time")
    values["since_publish_s"] = np.where(known, np.maximum(context.now_s - published, 0.0), np.nan)
    values.update(_category_match(profile, user_blocks))
    return values


def _stats(block: ViewBlock, now_s: float) -> dict[str, npt.NDArray[Any]]:
    """STAT_FEATURES by name."""
    values = {name: _column(block, name) for name in _STAT_COUNTS}
    for span in ("30d", "all"):
        total, count = _column(block, f"rating_sum_{span}"), _column(block, f"rating_count_{span}")
        values[f"rating_mean_{span}"] = total / np.where(count > 0, count, np.nan)
    for name in ("first_event", "last_event", "last_click"):
        values[f"since_{name}_s"] = _since(block, f"{name}_time", now_s)
    return values


def _category_match(profile: ViewBlock, user_blocks: Blocks) -> dict[str, npt.NDArray[Any]]:
    """How the items' categories agree with those of all the user's clicks: share and cosine; NaN without clicks."""
    block = user_blocks["user_profile"]
    names, clicks = _list(block, "top_categories").tolist(), _list(block, "category_clicks").astype(np.float64)
    total = float(clicks.sum())
    if not names or total <= 0:
        nothing = np.full(profile.rows, np.nan, np.float32)
        return dict.fromkeys(("category_match", "category_cosine"), nothing)
    categories = _column_list(profile, "categories")
    sizes = np.maximum(np.diff(categories.offsets), 1)
    weight = dict(zip(names, (clicks / total).tolist(), strict=True))
    sums = _row_sums(categories, weight)
    norm = float(np.sqrt(np.square(clicks / total).sum()))
    return {
        "category_match": sums / sizes,
        "category_cosine": sums / (norm * np.sqrt(sizes)),
    }


def _recent_share(profile: ViewBlock, user_blocks: Blocks) -> Floats:
    """Share of the user's recent clicks that have an item's first category; NaN without clicks."""
    recent = _list(user_blocks["user_clicks"], "categories")[:MAX_CLICKS].tolist()
    if not recent:
        return np.full(profile.rows, np.nan, np.float32)
    shares = {name: count / len(recent) for name, count in Counter(recent).items()}
    return np.array([shares.get(name, 0.0) for name in _column(profile, "category")], np.float32)


def _row_sums(lists: ListColumn, weight: dict[str, float]) -> npt.NDArray[np.float64]:
    """Sum of the weights of the values of each row, float64[rows]."""
    flat = np.array([0.0, *(weight.get(value, 0.0) for value in lists.values.tolist())])
    total = np.cumsum(flat)
    sums: npt.NDArray[np.float64] = total[lists.offsets[1:]] - total[lists.offsets[:-1]]
    return sums


def _stack_row(values: dict[str, float], names: Sequence[str]) -> Floats:
    return np.array([[values[name] for name in names]], np.float32)


def _stack(values: dict[str, npt.NDArray[Any]], names: tuple[str, ...], rows: int) -> Floats:
    """The named values side by side, f32[rows, names]; a count that is not known becomes 0."""
    out = np.empty((rows, len(names)), np.float32)
    for index, name in enumerate(names):
        out[:, index] = values[name]
    np.copyto(out, np.float32(0.0), where=_are_counts(names) & np.isnan(out))
    return out


@lru_cache(maxsize=16)
def _are_counts(names: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    return np.array([name in _COUNT_NAMES for name in names])


def _absent(block: ViewBlock, name: str) -> npt.NDArray[np.bool_]:
    absent = block.missing | block.stale
    return absent | block.nulls[name] if name in block.nulls else absent


def _column(block: ViewBlock, name: str) -> npt.NDArray[Any]:
    column = block.columns[name]
    assert not isinstance(column, ListColumn), name
    return column


def _column_list(block: ViewBlock, name: str) -> ListColumn:
    column = block.columns[name]
    assert isinstance(column, ListColumn), name
    return column


def _list(block: ViewBlock, name: str) -> npt.NDArray[Any]:
    return _column_list(block, name).row(0)


def _count(block: ViewBlock, name: str) -> float:
    """A value of the only row; 0 where it is not known."""
    value = float(_column(block, name)[0])
    return 0.0 if math.isnan(value) else value


def _since(block: ViewBlock, name: str, now_s: float) -> npt.NDArray[np.float64]:
    """Seconds since a stored time, at least 0; NaN where the time is 0 (never) or absent."""
    times = _column(block, name).astype(np.float64)
    return np.where((times > 0) & ~_absent(block, name), np.maximum(now_s - times, 0.0), np.nan)


def _ratio(total: float, count: float) -> float:
    return total / count if count else math.nan


def _circle(value: int, period: int) -> tuple[float, float]:
    angle = 2.0 * math.pi * value / period
    return math.sin(angle), math.cos(angle)
