"""Training of recall: it learns, looks at the past alone, and does the same twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from recgraph.bundle import IdMap
from recgraph.data import synthetic
from recgraph.data.log import sorted_log
from recgraph.data.stats import UserProfiles
from recgraph.data.world import World
from recgraph.features.assembly import USER_FEATURES, Context, user_dense
from recgraph.features.reader import ListColumn, ViewBlock
from recgraph.models.recall import RecallModel
from recgraph.training.retrieval import (
    Retrieval,
    RetrievalConfig,
    embed_users,
    first_requests,
    item_content,
    requests_at,
    train_retrieval,
)

CONFIG = RetrievalConfig(epochs=3, batch=128, uniform_negatives=128, index_queries=20)


@pytest.fixture(scope="module")
def world() -> World:
    return synthetic.make_world(synthetic.parameters(1000, 120, 20_000, days=20, seed=5))


@pytest.fixture(scope="module")
def split(world: World) -> int:
    return int(world.log.time_us[int(len(world.log) * 0.9)])


@pytest.fixture(scope="module")
def trained(world: World, split: int) -> Retrieval:
    return train_retrieval(world, split, 0, CONFIG)


@pytest.fixture(scope="module")
def folder(trained: Retrieval, world: World, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("recall")
    trained.save(path)
    return path


def test_torch_is_left_as_it_was(world: World, split: int) -> None:
    threads = torch.get_num_threads()
    train_retrieval(world, split, 0, msgspec.structs.replace(CONFIG, epochs=1, threads=threads + 1))
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()


def with_other_future(world: World, split: int) -> World:
    """The same world until the split, and other events from then on."""
    log = world.log
    later = log.time_us >= split
    items = np.where(later, (log.item_row + 1) % log.items, log.item_row)
    clicked = np.where(later, ~log.clicked, log.clicked)
    changed = sorted_log(log.user_row, items, log.time_us, clicked, log.rating, users=log.users, items=log.items)
    return World(world.users, world.items, changed, world.meta)


def test_equal_seeds_give_equal_files_and_the_future_is_not_known(trained, world, split, folder, tmp_path: Path):
    # The number of items makes the index flat, so that nothing but the past decides.
    train_retrieval(with_other_future(world, split), split, 0, CONFIG).save(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert "vectors.npy" in names
    for name in names:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


def test_the_towers_find_more_than_chance(trained, world, split):
    users, times = first_requests(world.log, split)
    later = world.log.select(world.log.time_us >= split)
    clicks = {(u, i) for u, i in zip(later.user_row[later.clicked], later.item_row[later.clicked], strict=True)}
    vectors = embed_users(trained.towers, trained.bases, requests_at(world, users, times))
    _, rows = trained.index.search(vectors, 200)
    found = sum(len({(user, item) for item in row} & clicks) for user, row in zip(users, rows, strict=True))
    assert found / len(clicks) > 1.3 * 200 / world.log.items


def test_requests_know_only_what_was_before(world):
    clicks = np.flatnonzero(world.log.clicked)[-50:]
    users, times = world.log.user_row[clicks], world.log.time_us[clicks]
    requests = requests_at(world, users, times)
    for row, event in enumerate(clicks.tolist()):
        past = world.log.select(slice(0, event))
        mine = past.item_row[(past.user_row == users[row]) & past.clicked & (past.time_us < times[row])]
        assert requests.clicks.row(row).tolist() == mine[::-1][:50].tolist()
        assert requests.dense[row, USER_FEATURES.index("clicks_all")] == len(mine)
    assert (requests.ages_s >= 0).all()


@pytest.mark.parametrize("rated", [False, True])
def test_user_features_are_those_of_serving(world, rated):
    if rated:
        rating = np.where(world.log.clicked, 7 + world.log.item_row % 3, np.nan).astype(np.float32)
        world = World(world.users, world.items, replace(world.log, rating=rating), world.meta)
    users = np.repeat(np.arange(120), 2)
    times = np.tile([world.log.start_us + 9_999_999, world.end_us - 123_456], 120)
    found = requests_at(world, users, times)
    columns = UserProfiles(world).as_of(users, times - 1)
    for row in range(len(users)):
        one = {name: _one_row(column, row) for name, column in columns.items()}
        clicks = ListColumn(found.clicks.row(row), np.array([0, len(found.clicks.row(row))]))
        nothing = np.array([columns["first_event_time"][row] == 0])
        masks = (nothing, np.zeros(1, bool), np.zeros(1, np.int64))
        blocks = {"user_profile": ViewBlock(1, one, *masks), "user_clicks": ViewBlock(1, {"item_ids": clicks}, *masks)}
        np.testing.assert_array_equal(found.dense[row], user_dense(blocks, Context.at(times[row] / 1e6))[0])


def _one_row(column: np.ndarray | ListColumn, row: int) -> np.ndarray | ListColumn:
    if isinstance(column, ListColumn):
        return ListColumn(column.row(row), np.array([0, len(column.row(row))]))
    return column[row : row + 1]


def test_ids_without_clicks_are_unknown_to_the_item_tower(world, split):
    content, sizes = item_content(world, split, CONFIG)
    log = world.log.before(split)
    clicks = np.bincount(log.item_row[log.clicked], minlength=log.items)
    assert ((content.id_row == 0) == (clicks < 2)).all()
    assert content.id_row.max() == sizes.ids - 1
    assert (content.age_days[world.publish_us > split] == 0).all()


def test_serving_embeds_users_as_training_does(folder, trained, world, split, tmp_path: Path):
    ids = IdMap.build(tmp_path, (item.encode() for item in world.item_ids))
    model = RecallModel.open(folder, ids, "v1", threads=1)
    users, times = first_requests(world.log, split)
    requests = requests_at(world, users[:20], times[:20])
    expected = embed_users(trained.towers, trained.bases, requests)
    for row in range(20):
        part = slice(int(requests.clicks.offsets[row]), int(requests.clicks.offsets[row + 1]))
        history = np.asarray(requests.clicks.values[part], np.int64)
        found = model.embed(history, requests.ages_s[part], requests.dense[row : row + 1])
        np.testing.assert_allclose(found[0], expected[row], rtol=1e-4, atol=1e-5)
