"""The benchmark of feature reads runs, and shows every way side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from recgraph.bench.features import run
from recgraph.errors import DataError

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

REPO = Path(__file__).parents[3] / "feast_repo"


def test_every_way_is_measured_on_the_same_items() -> None:
    (reading,) = run(REPO, [5]).readings
    assert (reading.items, reading.values_per_item) == (5, 31)
    assert set(reading.latency_ms) == {"packed", "feast_hash", "get_online_features", "packed_one_read_per_item"}
    assert all(0 < took.p50 <= took.p90 <= took.p99 for took in reading.latency_ms.values())
    assert reading.times_slower_than_packed["packed"] == 1.0


def test_without_definitions_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"definitions\.py is not there.*--repo"):
        run(tmp_path, [5])
