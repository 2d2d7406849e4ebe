"""The towers: unit vectors, content alone is enough, storage changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from recgraph.errors import BundleError
from recgraph.features.assembly import USER_FEATURES
from recgraph.models.towers import ItemContent, Towers, TowerSizes, UserPass

SIZES = TowerSizes(ids=5, categories=4, creators=3, embedding=8, hidden=16, output=12)
CONTENT = ItemContent(
    id_row=np.array([1, 2, 0, 0, 0]),
    creator=np.array([1, 2, 0, 1, 1]),
    categories=np.array([1, 2, 3, 1, 1]),
    offsets=np.array([0, 2, 3, 3, 4, 5]),
    age_days=np.array([1.0, 20.0, 0.0, 3.0, 3.0], np.float32),
)


@pytest.fixture
def towers() -> Towers:
    torch.manual_seed(0)
    return Towers(SIZES).eval()


def users(towers: Towers, clicks: list[list[int]], ages: list[list[float]], dense: np.ndarray) -> np.ndarray:
    width = max(map(len, clicks))
    mask = torch.tensor([[place < len(row) for place in range(width)] for row in clicks], dtype=torch.bool)
    rows = np.array([row + [0] * (width - len(row)) for row in clicks], int).reshape(len(clicks), width)
    times = torch.tensor([row + [0.0] * (width - len(row)) for row in ages], dtype=torch.float32).reshape(rows.shape)
    with torch.inference_mode():
        base = towers.item.base(CONTENT)
        return towers.user(base[torch.from_numpy(rows)], times, mask, torch.from_numpy(dense)).numpy()


def embedded(towers: Towers, content: ItemContent = CONTENT) -> np.ndarray:
    return np.concatenate([vectors for _, vectors in towers.embed_items(content)])


def test_all_vectors_have_unit_length_whatever_is_known(towers: Towers):
    np.testing.assert_allclose(np.linalg.norm(embedded(towers), axis=1), 1.0, rtol=1e-5)
    dense = np.full((3, len(USER_FEATURES)), np.nan, np.float32)
    dense[1], dense[2] = 1e30, -1e30
    found = users(towers, [[], [0, 1], [2]], [[], [5.0, 1e9], [0.0]], dense)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, rtol=1e-5)


def test_items_of_unknown_id_are_told_apart_by_content_alone(towers: Towers):
    vectors = embedded(towers)
    np.testing.assert_allclose(vectors[3], vectors[4], rtol=1e-5)
    assert not np.allclose(vectors[2], vectors[3])


def test_padding_does_not_change_a_user(towers: Towers):
    dense = np.zeros((2, len(USER_FEATURES)), np.float32)
    together = users(towers, [[1], [0, 1, 2]], [[60.0], [1.0, 2.0, 3.0]], dense)
    np.testing.assert_allclose(together[:1], users(towers, [[1]], [[60.0]], dense[:1]), rtol=1e-5, atol=1e-6)


def test_clicks_and_values_matter(towers: Towers):
    dense = np.zeros((1, len(USER_FEATURES)), np.float32)
    base = users(towers, [[0, 1]], [[1.0, 2.0]], dense)
    assert not np.allclose(base, users(towers, [[2, 1]], [[1.0, 2.0]], dense))
    assert not np.allclose(base, users(towers, [[0, 1]], [[1.0, 2.0]], dense + 1))


def test_scale_comes_from_the_rows_and_skips_what_is_not_known(towers: Towers):
    rows = np.random.default_rng(0).lognormal(3, 1, (500, len(USER_FEATURES))).astype(np.float32)
    rows[::7, 3] = np.nan
    rows[:, 5] = 2.0
    towers.user.fit_scale(rows)
    scaled = towers.user.scaled(torch.from_numpy(rows)).numpy()
    assert np.isfinite(scaled).all()
    assert (scaled[::7, 3] == 0).all()
    assert np.abs(scaled.mean(axis=0)).max() < 0.1
    assert np.abs(scaled).max() <= 5


def test_only_training_drops_ids(towers: Towers):
    content = CONTENT.take(np.zeros(400, np.int64))
    dropped = towers.item.base(content, torch.Generator().manual_seed(1)).detach().numpy()
    kept = towers.item.base(content).detach().numpy()
    differs = ~np.isclose(dropped, kept).all(axis=1)
    assert 40 < differs.sum() < 140


@pytest.mark.parametrize("clicks", [0, 1, 3, 50])
@pytest.mark.parametrize("value", [0.0, 3.0, 1e30, -1e30, np.nan, np.inf, -np.inf])
def test_the_pass_in_numpy_gives_the_towers_numbers(towers: Towers, clicks: int, value: float):
    rng = np.random.default_rng(clicks)
    towers.user.fit_scale(rng.lognormal(3, 1, (500, len(USER_FEATURES))).astype(np.float32))
    dense = rng.lognormal(3, 1, (1, len(USER_FEATURES))).astype(np.float32)
    dense[0, ::3] = value
    rows, ages = rng.integers(0, 5, clicks), rng.exponential(1e6, clicks).astype(np.float32)
    expected = users(towers, [rows.tolist()], [ages.tolist()], dense)
    base = next(towers.embed_items(CONTENT))[0]
    np.testing.assert_allclose(UserPass(towers.user)(base[rows], ages, dense), expected, rtol=0, atol=1e-6)


def test_stored_towers_are_the_same(towers: Towers, tmp_path: Path):
    towers.user.fit_scale(np.random.default_rng(0).random((20, len(USER_FEATURES)), np.float32))
    towers.save(tmp_path)
    loaded = Towers.load(tmp_path)
    assert loaded.sizes == SIZES
    assert np.array_equal(embedded(loaded), embedded(towers))
    assert torch.equal(loaded.user.mean, towers.user.mean)


def test_towers_for_other_features_are_refused(towers: Towers, tmp_path: Path):
    towers.save(tmp_path)
    meta = json.loads((tmp_path / "towers.json").read_text())
    (tmp_path / "towers.json").write_text(json.dumps(meta | {"user_features": ["x"]}))
    with pytest.raises(BundleError, match="other user features"):
        Towers.load(tmp_path)
