"""The synthetic world: reproducible, plausible, and worth personalising."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from recgraph.data import world as container
from recgraph.data.log import DAY_US, SECOND_US
from recgraph.data.stats import item_stats_as_of
from recgraph.data.synthetic import DEFAULT_END_S, make_world, parameters
from recgraph.data.world import World, times_us
from recgraph.errors import DataError

SIZE = parameters(2_000, 500, 80_000, seed=3)


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(SIZE)


def auc(labels: npt.NDArray[np.bool_], scores: npt.NDArray[np.floating]) -> float:
    """Area under the ROC curve; ties count half."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    hits = int(labels.sum())
    return float((rank[labels].sum() - hits * (hits + 1) / 2) / (hits * (len(labels) - hits)))


def test_same_seed_same_files(world: World, tmp_path: Path) -> None:
    again = container.save(make_world(SIZE), tmp_path / "again")
    assert container.save(world, tmp_path / "world").sha256 == again.sha256
    assert (tmp_path / "world/meta.json").read_bytes() == (tmp_path / "again/meta.json").read_bytes()
    other = container.save(make_world(parameters(2_000, 500, 80_000, seed=4)), tmp_path / "other").sha256
    assert set(other.values()).isdisjoint(again.sha256.values())


def test_sizes(world: World) -> None:
    assert (len(world.users), len(world.items)) == (500, 2_000)
    assert 60_000 <= len(world.log) <= 80_000
    assert 0.09 <= world.log.clicked.mean() <= 0.14
    assert world.meta.end == DEFAULT_END_S
    assert world.meta.start == DEFAULT_END_S - 60 * 86_400
    assert world.meta.start * SECOND_US <= world.log.start_us
    assert world.log.end_us < world.end_us


def test_nothing_happens_before_it_exists(world: World) -> None:
    log = world.log
    assert (world.publish_us[log.item_row] <= log.time_us).all()
    assert (times_us(world.users["created"])[log.user_row] <= log.time_us).all()
    published_during = world.publish_us > world.meta.start * SECOND_US
    assert 0.3 < published_during.mean() < 0.6


def test_a_user_is_not_shown_again_what_was_clicked(world: World) -> None:
    log = world.log
    pair = log.user_row.astype(np.int64) * log.items + log.item_row
    last_shown = {int(key): int(time) for key, time in zip(pair, log.time_us, strict=True)}
    clicks = zip(pair[log.clicked], log.time_us[log.clicked], strict=True)
    assert all(last_shown[int(key)] == int(time) for key, time in clicks)


def test_unavailable_items_vanish(world: World) -> None:
    gone = ~world.available
    assert 0.01 < gone.mean() < 0.06
    late = world.log.between(world.end_us - 2 * DAY_US, world.end_us)
    assert gone[late.item_row].mean() < 0.3 * gone.mean()


def test_popularity_has_a_long_tail_that_moves(world: World) -> None:
    log = world.log
    clicks = np.sort(np.bincount(log.item_row[log.clicked], minlength=log.items))[::-1]
    assert clicks[: log.items // 10].sum() > 0.4 * clicks.sum()
    middle = (log.start_us + log.end_us) // 2
    early = np.bincount(log.before(middle).item_row, minlength=log.items)
    late = np.bincount(log.between(middle, log.end_us).item_row, minlength=log.items)
    best_early, best_late = (set(np.argsort(-counts)[:100].tolist()) for counts in (early, late))
    assert len(best_early & best_late) < 60


def test_tastes_tell_more_than_popularity_and_both_tell_something(world: World) -> None:
    log = world.log
    split = world.end_us - 12 * DAY_US
    past, test = log.before(split), log.between(split, world.end_us)
    width = len(world.category_names)
    cell = past.user_row.astype(np.int64) * width + world.category_code[past.item_row]
    shown = np.bincount(cell, minlength=log.users * width)
    clicked = np.bincount(cell[past.clicked], minlength=log.users * width)
    liking = (clicked + 2) / (shown + 17)
    stats = item_stats_as_of(log, test.item_row, test.time_us - 1)
    popular = (stats["clicks_all"] + 2) / (stats["impressions_all"] + 17)
    taste = liking[test.user_row.astype(np.int64) * width + world.category_code[test.item_row]]
    of_popularity, of_both = auc(test.clicked, popular), auc(test.clicked, np.log(popular) + np.log(taste))
    assert of_popularity > 0.55
    assert of_both > of_popularity + 0.03


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"items": 999}, "items 999 is not between 1000 and 10000000"),
        ({"users": 0}, "users 0 is not"),
        ({"events": 5}, "events 5 is not"),
        ({"events": 1_199}, "events 1199 is not between 1200"),
        ({"events": 7_299, "days": 365}, "events 7299 is not between 7300"),
        ({"days": 1}, "days 1 is not"),
        ({"seed": -1}, "seed -1 is not"),
    ],
)
def test_sizes_that_make_no_world(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        parameters(**sizes)


@pytest.mark.parametrize("days", [7, 60, 365])
def test_the_fewest_events_still_happen_on_every_day(days: int) -> None:
    size = parameters(1_000, 10, days=days)
    log = make_world(size).log
    assert size.events == max(20 * days, 1_600)
    assert 0.4 * size.events <= len(log) <= 1.2 * size.events
    assert len(np.unique(log.time_us // DAY_US)) == days


def test_defaults_follow_the_items() -> None:
    demo = parameters()
    assert (demo.items, demo.users, demo.events) == (20_000, 5_000, 800_000)
    large = parameters(10_000_000)
    assert (large.users, large.events) == (500_000, 10_000_000)
