"""The recall model: one user in, two channels of known items out, whatever the user has clicked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from recgraph.bundle import IdMap
from recgraph.features.assembly import USER_FEATURES
from recgraph.models.index import ItemIndex
from recgraph.models.item_to_item import build_item_to_item
from recgraph.models.recall import BASES, VECTORS, RecallModel
from recgraph.models.towers import ItemContent, Towers, TowerSizes

ITEMS = 300
IDS = [f"ü{number}".encode() for number in range(ITEMS)]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> RecallModel:
    """Towers as they are made, untrained, and items that follow each other."""
    folder: Path = tmp_path_factory.mktemp("recall")
    torch.manual_seed(0)
    towers = Towers(TowerSizes(ids=ITEMS + 1, categories=2, creators=1))
    numbers = np.arange(ITEMS)
    content = ItemContent(numbers + 1, numbers * 0, numbers * 0 + 1, np.arange(ITEMS + 1), np.ones(ITEMS, np.float32))
    ((bases, vectors),) = towers.embed_items(content)
    towers.save(folder)
    np.save(folder / BASES, bases)
    np.save(folder / VECTORS, vectors)
    ItemIndex.build(vectors, vectors[:10]).save(folder)
    build_item_to_item(numbers // 10, numbers, numbers, ITEMS).save(folder)
    return RecallModel.open(folder, IdMap.build(folder / "ids", IDS), "v1", threads=1)


def request(rows: list[int], k: int = 50) -> dict[str, np.ndarray]:
    ids = np.empty(len(rows), object)
    ids[:] = [IDS[row] if row >= 0 else b"unbekannt" for row in rows]
    return {
        "clicks_id": ids,
        "clicks_age_s": np.arange(len(rows), dtype=np.float32) * 3600,
        "user_dense": np.full((1, len(USER_FEATURES)), np.nan, np.float32),
        "ann_k": np.array([k], np.int32),
        "i2i_k": np.array([k], np.int32),
    }


def test_recall_answers_with_known_ids_best_first(model):
    answer = model.predict(request([5, -1, 17]))
    for channel in ("ann", "i2i"):
        ids, scores = answer[f"{channel}_id"], answer[f"{channel}_score"]
        assert 0 < len(ids) == len(scores) <= 50
        assert set(ids.tolist()) <= set(IDS)
        assert len(set(ids.tolist())) == len(ids)
        assert (np.diff(scores) <= 0).all()
        assert scores.dtype == np.float32
    assert len(answer["ann_id"]) == 50
    assert answer["user_embedding"].shape == (1, 64)
    # Ten items in a row share a user: all neighbours but the clicked ones.
    assert set(answer["i2i_id"].tolist()) == {IDS[row] for row in range(20)} - {IDS[5], IDS[17]}


def test_an_unknown_click_counts_for_nothing(model):
    with_unknown, without = request([7, -1]), request([7])
    for name, value in model.predict(without).items():
        assert np.array_equal(model.predict(with_unknown)[name], value)


def test_a_user_without_clicks_gets_candidates(model):
    answer = model.predict(request([]))
    assert len(answer["ann_id"]) == 50
    assert len(answer["i2i_id"]) == 0
    assert np.isfinite(answer["ann_score"]).all()


def test_a_channel_that_is_not_wanted_is_empty(model):
    answer = model.predict(request([0], k=0))
    assert len(answer["ann_id"]) == len(answer["i2i_id"]) == 0
