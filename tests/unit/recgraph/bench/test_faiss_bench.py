"""The nearest-item benchmark: its data has the stated shape, its report is complete and holds the recall."""

from __future__ import annotations

import numpy as np
import pytest

from recgraph.bench.faiss import VECTORS, bench_faiss, clustered
from recgraph.models.index import TARGET_RECALL


@pytest.mark.parametrize("name", sorted(VECTORS))
def test_vectors_have_unit_length_and_depend_on_the_seed_alone(name: str):
    make = VECTORS[name]
    items, queries = make(np.random.default_rng(1), 2000, 30, 16)
    assert items.shape == (2000, 16)
    assert queries.shape == (30, 16)
    assert items.dtype == queries.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(np.concatenate([items, queries]), axis=1), 1.0, rtol=1e-5)
    assert np.array_equal(items, make(np.random.default_rng(1), 2000, 30, 16)[0])


def test_clustered_items_are_nearer_to_each_other_than_chance():
    items, _ = clustered(np.random.default_rng(0), 3000, 10, 32)
    near = np.sort(items[:50] @ items.T, axis=1)[:, -20:-1].mean()
    other, _ = VECTORS["gaussian"](np.random.default_rng(0), 3000, 10, 32)
    assert near > np.sort(other[:50] @ other.T, axis=1)[:, -20:-1].mean() + 0.1


def test_the_report_holds_times_recall_and_sizes():
    report = bench_faiss(3000, 16, 100, kind="ivfpq", data=("clustered",))
    assert (report["items"], report["dim"], report["k"]) == (3000, 16, 100)
    part = report["clustered"]
    assert part["kind"] == "ivfpq"
    assert part["recall"] >= TARGET_RECALL - 0.02
    assert 0 < part["p50_ms"] <= part["p99_ms"]
    assert 0 < part["exact_p50_ms"] <= part["exact_p99_ms"]
    assert part["index_mb"] > 0
    assert "gaussian" not in report
