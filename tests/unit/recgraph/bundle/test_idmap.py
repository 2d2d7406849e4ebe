"""IdMap: exact for any ids, whatever the hash function does."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from recgraph.bundle import IdMap
from recgraph.errors import BundleError, DataError

IDS = st.lists(st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")), unique=True, max_size=60)


def constant(_: bytes) -> int:
    """The worst hash function: every id collides with every other, tag included."""
    return 0xABCDEF0012345678


def two_chains(text: bytes) -> int:
    """Equal slots with different tags, wrapping around the end of the table."""
    return (len(text) << 32) | 0xFFFFFFFF


@pytest.mark.parametrize("in_memory", [0, 100])
@pytest.mark.parametrize("digest", [xxh3_64_intdigest, constant, two_chains])
@given(ids=IDS, others=IDS)
@settings(max_examples=30, deadline=None)
def test_rows_and_ids_are_inverse_and_unknown_ids_are_minus_one(digest, in_memory, ids, others):
    with tempfile.TemporaryDirectory() as folder:
        built = IdMap.build(folder, ids, digest, in_memory)
        expected = {text: row for row, text in enumerate(ids)}
        asked = others + ids[::-1] + ids[:3]
        assert built.rows(asked).tolist() == [expected.get(text, -1) for text in asked]
        assert built.ids(np.arange(len(ids))) == built.texts(np.arange(len(ids))).tolist() == ids
        assert len(built) == len(ids)


@pytest.mark.parametrize("in_memory", [0, 100])
def test_an_id_that_shares_a_prefix_or_a_length_is_another_id(tmp_path: Path, in_memory: int):
    built = IdMap.build(tmp_path, [b"i_1", b"i_12", "ü".encode(), b""], constant, in_memory)
    assert built.rows([b"i_2", b"i_1", b"i_123", b"i_12", "ü".encode(), b"", b"\xc3"]).tolist() == [
        -1,
        0,
        -1,
        1,
        2,
        3,
        -1,
    ]


def test_many_ids_survive_reopening(tmp_path: Path):
    ids = [f"item-{number * 7919}".encode() for number in range(300_000)]
    IdMap.build(tmp_path, iter(ids))
    opened = IdMap.open(tmp_path)
    sample = np.random.default_rng(0).integers(0, len(ids), 2000)
    assert opened.ids(sample) == [ids[row] for row in sample]
    assert np.array_equal(opened.rows([ids[row] for row in sample]), sample)


@pytest.mark.parametrize("digest", [constant, two_chains])
def test_a_duplicate_is_refused_with_its_rows(tmp_path: Path, digest):
    with pytest.raises(DataError, match=r"'b' is there twice, in rows 1 and 3"):
        IdMap.build(tmp_path, [b"a", b"b", b"c", b"b"], digest)


@pytest.mark.parametrize("in_memory", [0, 100])
@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_that_is_not_there_is_an_error(tmp_path: Path, row, in_memory: int):
    with pytest.raises(IndexError, match=f"row {row} of 2"):
        IdMap.build(tmp_path, [b"a", b"b"], in_memory=in_memory).ids(np.array([0, row]))


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path):
    IdMap.build(tmp_path, [b"a", b"b"])
    (tmp_path / "blob.bin").write_bytes(b"abc")
    with pytest.raises(BundleError, match="do not belong together"):
        IdMap.open(tmp_path)
    with pytest.raises(BundleError, match="not an id map"):
        IdMap.open(tmp_path / "none")
