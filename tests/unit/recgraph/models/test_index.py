"""The index: enough recall for every kind, valid rows only, equal files for equal input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recgraph.errors import BundleError
from recgraph.models.index import TARGET_RECALL, ItemIndex, best, choose_kind, exact, recall

KINDS = ("flat", "hnsw", "ivf", "ivfpq")
K = 100


def unit(rng: np.random.Generator, count: int) -> np.ndarray:
    vectors = rng.standard_normal((count, 16), np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return unit(rng, 4000), unit(rng, 60), unit(rng, 60)


@pytest.fixture(scope="module", params=KINDS)
def index(request, data) -> ItemIndex:
    return ItemIndex.build(data[0], data[1], kind=request.param, k=K)


def test_recall_holds_on_queries_it_was_not_tuned_on(index, data):
    vectors, _, queries = data
    scores, rows = index.search(queries, K)
    assert recall(rows, exact(vectors, queries, K)[1]) >= TARGET_RECALL
    assert (np.diff(scores, axis=1) <= 0).all()
    if index.parameters.kind != "flat":
        assert index.parameters.recall >= TARGET_RECALL


@pytest.mark.parametrize("seed", range(6))
def test_recall_holds_though_few_queries_are_a_rough_sample(seed):
    rng = np.random.default_rng(seed)
    vectors, tuning, queries = unit(rng, 4000), unit(rng, 20), unit(rng, 300)
    rows = ItemIndex.build(vectors, tuning, kind="ivf", k=K).search(queries, K)[1]
    assert recall(rows, exact(vectors, queries, K)[1]) >= TARGET_RECALL


def test_every_item_is_found_once_when_all_are_asked_for(index, data):
    vectors, _, queries = data
    scores, rows = index.search(queries[:3], 10_000)
    assert scores.shape == rows.shape == (3, len(vectors))
    assert np.array_equal(np.sort(rows, axis=1), np.tile(np.arange(len(vectors)), (3, 1)))


def test_few_probes_still_fill_the_answer(data):
    vectors, tuning, queries = data
    built = ItemIndex.build(vectors, tuning, kind="ivf", k=5)
    assert built.parameters.nprobe < built.parameters.nlist
    rows = built.search(queries, 2000)[1]
    assert rows.shape == (len(queries), 2000)
    assert rows.min() >= 0


def test_a_stored_index_answers_the_same(index, data, tmp_path: Path):
    index.save(tmp_path)
    loaded = ItemIndex.load(tmp_path, data[0], threads=1)
    assert loaded.parameters == index.parameters
    for found, expected in zip(loaded.search(data[2], K), index.search(data[2], K), strict=True):
        assert np.array_equal(found, expected)


def test_equal_input_gives_equal_files(index, data, tmp_path: Path):
    again = ItemIndex.build(data[0], data[1], kind=index.parameters.kind, k=K)
    for number, one in enumerate((index, again)):
        (tmp_path / str(number)).mkdir()
        one.save(tmp_path / str(number))
    for name in ("index.faiss", "index.json"):
        assert (tmp_path / "0" / name).read_bytes() == (tmp_path / "1" / name).read_bytes()


def test_an_index_of_other_vectors_is_refused(index, data, tmp_path: Path):
    index.save(tmp_path)
    parameters = (tmp_path / "index.json").read_bytes()
    for found in (data[0][:10], np.ascontiguousarray(data[0][:, :8])):
        with pytest.raises(BundleError, match=r"index\.json: made for vectors \(4000, 16\), but the bundle's are \("):
            ItemIndex.load(tmp_path, found, threads=1)
    if index.parameters.kind == "flat":
        return
    (tmp_path / "index.json").write_bytes(parameters.replace(b"4000", b"10"))
    with pytest.raises(
        BundleError, match=r"index\.faiss: made for vectors \(4000, 16\), but the bundle's are \(10, 16\)"
    ):
        ItemIndex.load(tmp_path, data[0][:10], threads=1)
    (tmp_path / "index.json").write_bytes(parameters)
    (tmp_path / "index.faiss").write_bytes(b"nonsense")
    with pytest.raises(BundleError, match="FAISS cannot read it"):
        ItemIndex.load(tmp_path, data[0], threads=1)


def test_a_flat_index_is_the_vectors_alone(data, tmp_path: Path):
    built = ItemIndex.build(data[0], data[1], kind="flat", k=K)
    built.save(tmp_path)
    (tmp_path / "index.faiss").write_bytes(b"nonsense")
    loaded = ItemIndex.load(tmp_path, data[0], threads=1)
    for found, expected in zip(loaded.search(data[2], K), built.search(data[2], K), strict=True):
        assert np.array_equal(found, expected)


def test_refined_scores_are_exact(data):
    vectors, tuning, queries = data
    built = ItemIndex.build(vectors, tuning, kind="ivfpq", k=K)
    scores, rows = built.search(queries, K)
    np.testing.assert_allclose(scores, np.einsum("qkd,qd->qk", vectors[rows], queries), rtol=1e-5, atol=1e-6)


@given(st.lists(st.integers(-3, 3), max_size=40), st.integers(0, 45))
def test_the_best_are_the_highest_and_the_lower_place_wins(scores, k):
    expected = sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:k]
    assert best(np.array(scores, np.float32), k).tolist() == expected


@pytest.mark.parametrize(
    ("items", "kind"), [(1, "flat"), (20_000, "flat"), (20_001, "hnsw"), (1_000_000, "ivf"), (10_000_000, "ivfpq")]
)
def test_the_kind_follows_the_number_of_items(items: int, kind: str):
    assert choose_kind(items) == kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("items", [1, 3, 40])
def test_a_handful_of_items_works_with_any_kind(kind, items, data):
    built = ItemIndex.build(data[0][:items], data[1], kind=kind)
    assert np.array_equal(np.sort(built.search(data[2], 50)[1], axis=1), np.tile(np.arange(items), (60, 1)))
