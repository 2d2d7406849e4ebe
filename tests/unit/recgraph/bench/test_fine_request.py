"""The requests that the fine benchmark measures."""

from __future__ import annotations

import numpy as np

from recgraph.bench.fine import one_item


def test_one_item_keeps_the_user() -> None:
    inputs = {
        "item_id": np.array([b"a", b"b"], object),
        "category": np.array([b"x", b"y"], object),
        "creator": np.array([b"", b""], object),
        "item_dense": np.arange(6, dtype=np.float32).reshape(2, 3),
        "user_dense": np.ones((1, 4), np.float32),
        "clicks_id": np.array([b"c", b"d", b"e"], object),
    }
    single = one_item(inputs, 1)
    assert single["item_id"].tolist() == [b"b"]
    assert single["item_dense"].tolist() == [[3.0, 4.0, 5.0]]
    assert len(single["clicks_id"]) == 3
    assert single["user_dense"].shape == (1, 4)
