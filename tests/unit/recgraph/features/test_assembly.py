"""Derived features: what each value is, and that none depends on the other candidates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from recgraph.features.assembly import (
    COARSE_ITEM_FEATURES,
    ITEM_FEATURES,
    RERANK_ITEM_FEATURES,
    RERANK_USER_FEATURES,
    USER_FEATURES,
    WINDOWS,
    Blocks,
    Context,
    coarse_inputs,
    fine_inputs,
    recall_inputs,
    rerank_inputs,
    user_dense,
)
from recgraph.features.reader import Column, ListColumn, ViewBlock

NOW = 1_378_000_000.0
CONTEXT = Context.at(NOW)
ITEMS = ["a", "ü", "gone"]


def texts(*values: str) -> npt.NDArray[Any]:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def lists(*rows: list[Any], dtype: Any = object) -> ListColumn:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    values = np.empty(int(offsets[-1]), dtype)
    values[:] = [value for row in rows for value in row]
    return ListColumn(values, offsets)


def block(columns: dict[str, Column], missing: list[bool]) -> ViewBlock:
    rows = len(missing)
    return ViewBlock(rows, columns, np.array(missing), np.zeros(rows, bool), np.zeros(rows, np.int64))


def item_blocks() -> Blocks:
    nothing = np.float32("nan")
    counts = {
        f"{kind}_{window}": np.array([index, 10.0, nothing], np.float32)
        for kind in ("clicks", "impressions")
        for index, window in enumerate((*WINDOWS, "all"))
    }
    stats: dict[str, Column] = {
        **counts,
        "rating_sum_30d": np.array([0.0, 14.0, nothing], np.float32),
        "rating_count_30d": np.array([0.0, 2.0, nothing], np.float32),
        "rating_sum_all": np.array([9.0, 30.0, nothing], np.float32),
        "rating_count_all": np.array([1.0, 4.0, nothing], np.float32),
        "first_event_time": np.array([NOW - 100, NOW + 5, 0], np.int64),
        "last_event_time": np.array([NOW - 10, NOW, 0], np.int64),
        "last_click_time": np.array([0, NOW - 7, 0], np.int64),
    }
    profile: dict[str, Column] = {
        "category": texts("Drama", "Comedy", ""),
        "categories": lists(["Drama", "War"], ["Comedy"], []),
        "creator": texts("c1", "", ""),
        "publish_time": np.array([-86400, NOW - 50, 0], np.int64),
    }
    absent = [False, False, True]
    return {"item_stats": block(stats, absent), "item_profile": block(profile, absent)}


def user_blocks(clicks: int = 3, *, known: bool = True) -> Blocks:
    names = "clicks_all impressions_all clicks_7d clicks_30d impressions_7d impressions_30d active_days"
    profile: dict[str, Column] = {name: np.array([4.0], np.float32) for name in names.split()}
    profile |= {
        "rating_sum_all": np.array([16.0], np.float32),
        "rating_count_all": np.array([2.0], np.float32),
        "rating_sq_sum_all": np.array([130.0], np.float32),
        "first_event_time": np.array([NOW - 1000], np.int64),
        "last_event_time": np.array([NOW - 60], np.int64),
        "top_categories": lists(["Drama", "Comedy"]),
        "category_clicks": lists([3.0, 1.0], dtype=np.float32),
    }
    if not known:
        profile = {
            name: ListColumn(column.values[:0], np.zeros(2, np.int64))
            if isinstance(column, ListColumn)
            else np.full(1, np.nan if column.dtype == np.float32 else 0, column.dtype)
            for name, column in profile.items()
        }
    recent: dict[str, Column] = {
        "item_ids": lists([f"i{n}" for n in range(clicks)]),
        "times": lists([int(NOW) - 10 * n for n in range(clicks)], dtype=np.int64),
        "categories": lists(["Drama" if n % 2 == 0 else "War" for n in range(clicks)]),
    }
    return {"user_profile": block(profile, [not known]), "user_clicks": block(recent, [not known])}


def column(inputs: dict[str, npt.NDArray[Any]], name: str) -> list[float]:
    values: list[float] = inputs["item_dense"][:, ITEM_FEATURES.index(name)].tolist()
    return values


def test_item_values() -> None:
    inputs = fine_inputs("u", ITEMS, user_blocks(), item_blocks(), CONTEXT)
    assert inputs["item_dense"].shape == (3, len(ITEM_FEATURES))
    assert inputs["item_dense"].dtype == np.float32
    assert column(inputs, "clicks_2d") == [2.0, 10.0, 0.0]
    assert np.isnan(column(inputs, "rating_mean_30d")[0])
    assert column(inputs, "rating_mean_30d")[1] == 7.0
    assert column(inputs, "rating_mean_all")[:2] == [9.0, 7.5]
    assert column(inputs, "since_first_event_s")[:2] == [100.0, 0.0]
    assert np.isnan(column(inputs, "since_last_click_s")[0])
    assert column(inputs, "since_publish_s")[0] == pytest.approx(NOW + 86400)
    assert np.isnan(inputs["item_dense"][2, ITEM_FEATURES.index("since_publish_s")])


def test_categories_match_the_user() -> None:
    inputs = fine_inputs("u", ITEMS, user_blocks(), item_blocks(), CONTEXT)
    assert column(inputs, "category_match") == [0.375, 0.25, 0.0]
    norm = np.sqrt(0.75**2 + 0.25**2)
    assert column(inputs, "category_cosine") == pytest.approx([0.75 / norm / np.sqrt(2), 0.25 / norm, 0.0])
    assert column(inputs, "recent_category_share") == pytest.approx([2 / 3, 0.0, 0.0])


def test_at_least_thirty_dense_features() -> None:
    assert len(ITEM_FEATURES) + len(USER_FEATURES) >= 30
    assert len(ITEM_FEATURES) >= 20


def test_ids_are_utf8() -> None:
    inputs = fine_inputs("ü", ITEMS, user_blocks(), item_blocks(), CONTEXT)
    assert inputs["item_id"].tolist() == [b"a", "ü".encode(), b"gone"]
    assert inputs["user_id"].tolist() == ["ü".encode()]
    assert inputs["category"].tolist() == [b"Drama", b"Comedy", b""]
    assert inputs["clicks_category"].tolist() == [b"Drama", b"War", b"Drama"]


def test_user_values() -> None:
    values = dict(zip(USER_FEATURES, user_dense(user_blocks(), CONTEXT)[0].tolist(), strict=True))
    assert values["rating_mean"] == 8.0
    assert values["rating_std"] == 1.0
    assert values["since_first_event_s"] == 1000.0
    assert values["since_last_event_s"] == 60.0
    assert values["recent_clicks"] == 3.0
    assert values["hour_sin"] ** 2 + values["hour_cos"] ** 2 == pytest.approx(1.0)


def test_unknown_user() -> None:
    users = user_blocks(0, known=False)
    values = dict(zip(USER_FEATURES, user_dense(users, CONTEXT)[0].tolist(), strict=True))
    assert values["clicks_all"] == 0.0
    assert np.isnan(values["rating_mean"])
    assert np.isnan(values["since_last_event_s"])
    inputs = fine_inputs("nobody", ITEMS, users, item_blocks(), CONTEXT)
    assert np.isnan(column(inputs, "category_match")).all()
    assert len(inputs["clicks_id"]) == 0


def test_clicks_are_the_newest_fifty() -> None:
    inputs = recall_inputs(user_blocks(60), CONTEXT)
    assert inputs["clicks_id"].tolist() == [f"i{n}".encode() for n in range(50)]
    assert inputs["clicks_age_s"].tolist() == [10.0 * n for n in range(50)]


@pytest.mark.parametrize("rows", [[1], [2, 0], [1, 1, 2]])
def test_a_value_does_not_depend_on_the_other_candidates(rows: list[int]) -> None:
    blocks = item_blocks()
    whole = fine_inputs("u", ITEMS, user_blocks(), blocks, CONTEXT)
    part = fine_inputs(
        "u", [ITEMS[row] for row in rows], user_blocks(), {k: take(v, rows) for k, v in blocks.items()}, CONTEXT
    )
    np.testing.assert_array_equal(part["item_dense"], whole["item_dense"][rows])


def test_coarse_needs_the_statistics_alone() -> None:
    stats = {"item_stats": item_blocks()["item_stats"]}
    inputs = coarse_inputs("u", ITEMS, user_blocks(), stats, CONTEXT)
    assert inputs["item_dense"].shape == (3, len(COARSE_ITEM_FEATURES))
    assert inputs["item_dense"][1, COARSE_ITEM_FEATURES.index("clicks_7d")] == 10.0


def test_rerank_reads_no_clicks() -> None:
    users = {"user_profile": user_blocks()["user_profile"]}
    inputs = rerank_inputs(ITEMS, [0.3, 0.2, 0.1], [0.5, 0.5, 0.5], users, item_blocks(), CONTEXT)
    assert inputs["item_dense"].shape == (3, len(RERANK_ITEM_FEATURES))
    assert inputs["user_dense"].shape == (1, len(RERANK_USER_FEATURES))
    assert inputs["fine_score"].dtype == np.float32


def test_stale_times_are_not_used() -> None:
    blocks = item_blocks()
    stale = replace(blocks["item_stats"], stale=np.array([True, False, False]))
    inputs = fine_inputs("u", ITEMS, user_blocks(), {**blocks, "item_stats": stale}, CONTEXT)
    assert np.isnan(column(inputs, "since_first_event_s")[0])


def test_context_of_a_moment() -> None:
    # 2013-09-01 01:46:40 UTC, a Sunday.
    assert (CONTEXT.hour, CONTEXT.weekday) == (1, 6)


def take(source: ViewBlock, rows: list[int]) -> ViewBlock:
    """Some rows of a block."""
    columns: dict[str, Column] = {}
    for name, values in source.columns.items():
        columns[name] = (
            lists(*(values.row(row).tolist() for row in rows)) if isinstance(values, ListColumn) else values[rows]
        )
    return ViewBlock(len(rows), columns, source.missing[rows], source.stale[rows], source.event_time_us[rows])
