"""Coarse, fine and rerank with random weights: loading, shapes, and that scores are always finite."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file, save_file

from recgraph.bundle import IdMap
from recgraph.errors import BundleError
from recgraph.features.assembly import (
    COARSE_ITEM_FEATURES,
    ITEM_FEATURES,
    RERANK_ITEM_FEATURES,
    RERANK_USER_FEATURES,
    USER_FEATURES,
)
from recgraph.models import coarse, fine, rerank
from recgraph.models.base import Tensors
from recgraph.models.nn import Normalizer, load_config, load_weights
from recgraph.models.pairs import PAIR_FEATURES, PairTable

ITEMS = 40


def texts(values: list[str]) -> npt.NDArray[Any]:
    """An object array of bytes."""
    out = np.empty(len(values), object)
    out[:] = [value.encode() for value in values]
    return out


@dataclass(frozen=True)
class RankingModels:
    """The folder and what was loaded from it."""

    folder: Path
    items: IdMap
    coarse: coarse.CoarseModel
    fine: fine.FineModel
    rerank: rerank.RerankModel


def dense(rng: np.random.Generator, features: int, log: npt.NDArray[np.bool_]) -> Normalizer:
    """A normalizer fitted on positive noise in which the last feature is sometimes missing."""
    values = rng.exponential(5.0, (200, features)).astype(np.float32)
    values[::3, -1] = np.nan
    return Normalizer.fit(values, log)


def request(names: list[str], clicks: int, seed: int = 0) -> Tensors:
    """Inputs that hold what coarse, fine and rerank need, but for `item_dense` and `user_dense`."""
    rng = np.random.default_rng(seed)
    return {
        "user_id": texts(["u"]),
        "item_id": texts(names),
        "category": texts([f"cat{len(name) % 3}" for name in names]),
        "creator": texts(["nobody"] * len(names)),
        "clicks_id": texts([f"item{n}" for n in range(clicks)]),
        "clicks_category": texts(["cat1"] * clicks),
        "clicks_age_s": np.sort(rng.exponential(1e5, clicks)).astype(np.float32),
        "fine_score": rng.random(len(names)).astype(np.float32),
        "coarse_score": rng.random(len(names)).astype(np.float32),
    }


def with_dense(inputs: Tensors, items: tuple[str, ...], users: tuple[str, ...]) -> Tensors:
    """The inputs and random values of a stage."""
    rng = np.random.default_rng(1)
    rows = len(inputs["item_id"])
    return {
        **inputs,
        "item_dense": rng.exponential(5.0, (rows, len(items))).astype(np.float32),
        "user_dense": rng.exponential(5.0, (1, len(users))).astype(np.float32),
    }


def fine_request(names: list[str], clicks: int) -> Tensors:
    """Inputs of fine."""
    return with_dense(request(names, clicks), ITEM_FEATURES, USER_FEATURES)


def coarse_request(names: list[str], clicks: int) -> Tensors:
    """Inputs of coarse."""
    inputs = with_dense(request(names, clicks), COARSE_ITEM_FEATURES, USER_FEATURES)
    return {name: inputs[name] for name in ("item_dense", "user_dense")}


def rerank_request(names: list[str]) -> Tensors:
    """Inputs of rerank."""
    return with_dense(request(names, 0), RERANK_ITEM_FEATURES, RERANK_USER_FEATURES)


@pytest.fixture(scope="module")
def ranking_models(tmp_path_factory: pytest.TempPathFactory) -> RankingModels:
    """Random weights, written and loaded again."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("ranking")
    items = IdMap.build(folder / "items", [f"item{n}".encode() for n in range(ITEMS)])
    for name, words in (("categories", [b"cat0", b"cat1", b"cat2"]), ("creators", [b"someone"])):
        IdMap.build(folder / "fine" / name, words)
    pairs = PairTable.build(rng.integers(0, 30, 600), rng.integers(0, ITEMS, 600), ITEMS, window=50, keep=50)
    _write_fine(folder / "fine", rng, pairs)
    _write_coarse(folder / "coarse", rng)
    _write_rerank(folder / "rerank", rng)
    vectors = rng.normal(size=(ITEMS, 8)).astype(np.float32)
    return RankingModels(
        folder,
        items,
        coarse.load_folder(folder / "coarse", "v"),
        fine.load_folder(folder / "fine", items, "v"),
        rerank.load_folder(folder / "rerank", items, vectors, "v"),
    )


def _write_fine(folder: Path, rng: np.random.Generator, pairs: PairTable) -> None:
    normalizer = dense(rng, len(ITEM_FEATURES) + len(USER_FEATURES) + len(PAIR_FEATURES), fine.log_mask())
    config = fine.FineConfig(items=ITEMS, categories=3, creators=1, indicators=len(normalizer.indicated))
    fine.write(folder, fine.FineNetwork(config, normalizer), config, pairs)


def _write_coarse(folder: Path, rng: np.random.Generator) -> None:
    item_log, user_log = coarse.log_masks()
    item, user = dense(rng, len(item_log), item_log), dense(rng, len(user_log), user_log)
    config = coarse.CoarseConfig(item_indicators=len(item.indicated), user_indicators=len(user.indicated))
    coarse.write(folder, coarse.CoarseNetwork(config, item, user), config)


def _write_rerank(folder: Path, rng: np.random.Generator) -> None:
    log = rerank.log_mask()
    normalizer = dense(rng, len(log), log)
    config = rerank.RerankConfig(indicators=len(normalizer.indicated))
    network = rerank.RerankNetwork(config, normalizer)
    torch.nn.init.normal_(network.out.weight)
    rerank.write(folder, network, config)


NAMES = [f"item{n}" for n in (3, 7, 39, 3)] + ["unknown"]


@pytest.mark.parametrize("clicks", [0, 1, 50, 60])
def test_a_fine_score_is_a_probability_of_its_own_item(ranking_models: RankingModels, clicks: int) -> None:
    inputs = fine_request(NAMES, clicks)
    score = ranking_models.fine.predict(inputs)["score"]
    assert score.shape == (5,)
    assert score.dtype == np.float32
    assert ((score > 0) & (score < 1)).all()
    assert len(set(score.tolist())) == 5
    own = ("item_id", "category", "creator", "item_dense")
    for row in range(5):
        alone = {name: value[row : row + 1] if name in own else value for name, value in inputs.items()}
        assert ranking_models.fine.predict(alone)["score"][0] == pytest.approx(score[row], rel=1e-4)


def test_the_clicks_matter_to_fine(ranking_models: RankingModels) -> None:
    few, many = (ranking_models.fine.predict(fine_request(NAMES, clicks))["score"] for clicks in (2, 30))
    assert not np.allclose(few, many)


def test_coarse_scores_each_item_by_itself(ranking_models: RankingModels) -> None:
    inputs = coarse_request(NAMES, 3)
    score = ranking_models.coarse.predict(inputs)["score"]
    alone = {**inputs, "item_dense": inputs["item_dense"][2:3]}
    assert ranking_models.coarse.predict(alone)["score"][0] == pytest.approx(score[2], rel=1e-4)


def by_torch(folder: Path, config: type[Any], network: type[Any], encoded: Tensors) -> npt.NDArray[np.float32]:
    """The scores of a stored network as torch computes them."""
    stored = network(load_config(folder, config))
    load_weights(folder, stored)
    batch = {name: torch.from_numpy(np.ascontiguousarray(value)).unsqueeze(0) for name, value in encoded.items()}
    with torch.inference_mode():
        logits = stored.scale * stored(batch)[0] + stored.offset
        scores: npt.NDArray[np.float32] = torch.sigmoid(logits).numpy()
    return scores


@pytest.mark.parametrize("bad", [None, np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 0.0, -7.0])
@pytest.mark.parametrize("clicks", [0, 1, 50])
def test_the_passes_in_numpy_give_torchs_scores(ranking_models: RankingModels, clicks: int, bad: float | None) -> None:
    names = [f"item{n}" for n in range(ITEMS)] + ["unknown"]
    fine_in, coarse_in = fine_request(names, clicks), coarse_request(names, clicks)
    rerank_in = rerank_request(names)
    for inputs in (fine_in, coarse_in, rerank_in) if bad is not None else ():
        inputs["item_dense"][::2, ::2] = bad
        inputs["user_dense"][0, ::2] = bad
    encoded = ranking_models.fine.encode(fine_in)
    assert clicks < 50 or encoded["affinity"].any()
    for found, expected in (
        (ranking_models.fine.predict(fine_in), (fine.FineConfig, fine.FineNetwork, encoded)),
        (ranking_models.coarse.predict(coarse_in), (coarse.CoarseConfig, coarse.CoarseNetwork, coarse_in)),
        (
            ranking_models.rerank.predict(rerank_in),
            (rerank.RerankConfig, rerank.RerankNetwork, rerank.encode(rerank_in)),
        ),
    ):
        folder = ranking_models.folder / expected[1].__name__.removesuffix("Network").lower()
        np.testing.assert_allclose(found["score"], by_torch(folder, *expected), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3.4e38, -3.4e38])
def test_scores_stay_finite_whatever_comes_in(ranking_models: RankingModels, bad: float) -> None:
    models = (
        (ranking_models.fine, fine_request(NAMES, 5)),
        (ranking_models.coarse, coarse_request(NAMES, 5)),
        (ranking_models.rerank, rerank_request(NAMES)),
    )
    for model, inputs in models:
        for name, value in inputs.items():
            if value.dtype == np.float32:
                outputs = model.predict({**inputs, name: np.full_like(value, bad)})
                assert all(np.isfinite(output).all() for output in outputs.values()), name


def test_nothing_in_nothing_out(ranking_models: RankingModels) -> None:
    assert ranking_models.fine.predict(fine_request([], 3))["score"].shape == (0,)
    assert ranking_models.coarse.predict(coarse_request([], 3))["score"].shape == (0,)
    outputs = ranking_models.rerank.predict(rerank_request([]))
    assert outputs["score"].shape == (0,)
    assert outputs["embedding"].shape == (0, 8)


def test_rerank_does_not_depend_on_the_order_of_its_list(ranking_models: RankingModels) -> None:
    inputs = rerank_request([f"item{n}" for n in range(12)])
    inputs["category"] = texts([f"cat{n % 3}" for n in range(12)])
    score = ranking_models.rerank.predict(inputs)["score"]
    order = np.random.default_rng(0).permutation(12)
    whole = {"user_id", "user_dense", "clicks_id", "clicks_category", "clicks_age_s"}
    shuffled = {name: value if name in whole else value[order] for name, value in inputs.items()}
    np.testing.assert_allclose(ranking_models.rerank.predict(shuffled)["score"], score[order], rtol=1e-4)


def test_rerank_sees_the_list(ranking_models: RankingModels) -> None:
    inputs = rerank_request([f"item{n}" for n in range(12)])
    other = {**inputs, "fine_score": inputs["fine_score"].copy()}
    other["fine_score"][1:] *= 0.5
    before, after = (ranking_models.rerank.predict(one)["score"][0] for one in (inputs, other))
    assert before != after


def test_categories_are_counted_by_place() -> None:
    inputs = rerank_request(["item1", "item2", "item3", "item4"])
    inputs["fine_score"] = np.array([0.2, 0.9, 0.5, 0.1], np.float32)
    inputs["category"] = texts(["a", "b", "a", "a"])
    encoded = rerank.encode(inputs)["list_dense"]
    names = rerank.LIST_FEATURES
    np.testing.assert_allclose(encoded[:, names.index("category_in_list")], [0.75, 0.25, 0.75, 0.75])
    np.testing.assert_allclose(np.expm1(encoded[:, names.index("category_above")]), [1, 0, 0, 2], atol=1e-6)
    np.testing.assert_allclose(np.expm1(encoded[:, names.index("place_log")]), [2, 0, 1, 3], atol=1e-6)


def test_embeddings_have_unit_length_or_are_zero(ranking_models: RankingModels) -> None:
    embedding = ranking_models.rerank.predict(rerank_request(NAMES))["embedding"]
    np.testing.assert_allclose(np.linalg.norm(embedding, axis=1), [1, 1, 1, 1, 0], rtol=1e-5)


def test_the_shape_that_the_product_promises() -> None:
    config = fine.FineConfig(items=1, categories=1, creators=1, indicators=0)
    assert (config.embedding, config.cross_layers, config.hidden) == (16, 3, (256, 128, 64))


def test_other_features_are_refused(ranking_models: RankingModels, tmp_path: Path) -> None:
    config = (ranking_models.folder / "coarse" / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace("clicks_1d", "clicks_2d"))
    with pytest.raises(BundleError, match="item_features"):
        coarse.load_folder(tmp_path, "v")


def test_weights_that_are_not_finite_are_refused(ranking_models: RankingModels, tmp_path: Path) -> None:
    source = ranking_models.folder / "coarse"
    state = load_file(source / "model.safetensors")
    state["out.bias"][0] = float("nan")
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    with pytest.raises(BundleError, match="not all finite"):
        coarse.load_folder(tmp_path, "v")


def test_damaged_files_are_refused(ranking_models: RankingModels, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"config\.json"):
        fine.load_folder(tmp_path, ranking_models.items, "v")
    (tmp_path / "config.json").write_bytes((ranking_models.folder / "coarse" / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(BundleError, match=r"model\.safetensors"):
        coarse.load_folder(tmp_path, "v")


def test_the_normalizer_standardises_and_marks_what_is_missing() -> None:
    rng = np.random.default_rng(0)
    values = rng.lognormal(3.0, 1.0, (5000, 2)).astype(np.float32)
    values[::4, 1] = np.nan
    normalizer = Normalizer.fit(values, np.array([True, True]))
    out = normalizer(torch.from_numpy(values)).numpy()
    assert out.shape == (5000, 3)
    assert abs(float(out[:, 0].mean())) < 0.01
    assert float(out[:, 0].std()) == pytest.approx(1.0, abs=0.02)
    np.testing.assert_array_equal(out[:, 2], np.isnan(values[:, 1]))
    assert (out[::4, 1] == 0.0).all()
