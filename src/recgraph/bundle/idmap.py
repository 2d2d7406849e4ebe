"""Ids and row numbers, without a Python object per id.

A folder of three memory-mapped files: the ids' bytes one after another (`blob.bin`), where each starts
(`offsets.npy`, int64, n + 1), and an open-addressing hash table (`slots.npy`, uint64, a power of two, at most half
full). A slot is 0 when empty, else the upper half of the id's xxh3_64 in its upper half and row + 1 in its lower.
Collisions go to the next slot. A hit counts only when the bytes are equal, so the map is exact whatever the hash does.
Ten million ids take about 500 MB on disk, shared between the processes through the page cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from recgraph.errors import BundleError, DataError

Digest = Callable[[bytes], int]
Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

_BLOCK = 1 << 18
_MAX_ROWS = (1 << 32) - 1
_LOW = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(0xFFFFFFFF00000000)


class IdMap:
    """A read-only map between ids (bytes of UTF-8) and row numbers. Thread-safe."""

    def __init__(
        self,
        blob: npt.NDArray[np.uint8],
        offsets: Ints,
        slots: Hashes,
        digest: Digest = xxhash.xxh3_64_intdigest,
    ) -> None:
        self._blob = blob
        self._view = memoryview(blob.data)
        self._offsets = offsets
        self._slots = slots
        self._digest = digest

    @classmethod
    def build(cls, folder: str | Path, ids: Iterable[bytes], digest: Digest = xxhash.xxh3_64_intdigest) -> IdMap:
        """Write a map of `ids`, whose rows are 0, 1, ... in their order, into `folder` and open it.

        Needs about 40 bytes of memory per id, whatever the ids' lengths. Raises DataError for an id given twice.
        """
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        hashes, offsets = _write_blob(path / "blob.bin", ids, digest)
        blob = _open_blob(path / "blob.bin")
        slots = _fill_slots(hashes, blob, offsets)
        np.save(path / "offsets.npy", offsets)
        np.save(path / "slots.npy", slots)
        return cls.open(path, digest)

    @classmethod
    def open(cls, folder: str | Path, digest: Digest = xxhash.xxh3_64_intdigest) -> IdMap:
        """Map the files of a folder into memory. Raises BundleError when one is missing or they do not fit."""
        path = Path(folder)
        try:
            offsets = np.asarray(np.load(path / "offsets.npy", mmap_mode="r"))
            slots = np.asarray(np.load(path / "slots.npy", mmap_mode="r"))
            blob = _open_blob(path / "blob.bin")
        except (OSError, ValueError) as error:
            raise BundleError(f"{path}: not an id map: {error}") from error
        if offsets.size == 0 or offsets[-1] != blob.size or slots.size & (slots.size - 1):
            raise BundleError(f"{path}: the files of this id map do not belong together")
        return cls(blob, offsets, slots, digest)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def rows(self, ids: Sequence[bytes]) -> Ints:
        """Row numbers, int64[len(ids)], -1 where an id is unknown. About a millisecond for 2,000 ids."""
        found = np.full(len(ids), -1, dtype=np.int64)
        if not ids:
            return found
        text, starts = _joined(ids)
        hashes = _hashes(ids, self._digest)
        tags = hashes & _HIGH
        mask = np.uint64(self._slots.size - 1)
        pending = np.arange(len(ids))
        position = hashes & mask
        while pending.size:
            slots = self._slots[position]
            hit = np.flatnonzero((slots != 0) & ((slots & _HIGH) == tags[pending]))
            done = slots == 0
            if hit.size:
                rows = (slots[hit] & _LOW).astype(np.int64) - 1
                equal = self._equal(rows, text, starts, pending[hit])
                found[pending[hit[equal]]] = rows[equal]
                done[hit[equal]] = True
            pending = pending[~done]
            position = (position[~done] + np.uint64(1)) & mask
        return found

    def ids(self, rows: npt.NDArray[np.integer]) -> list[bytes]:
        """The ids of row numbers. Raises IndexError for a row that is not there, -1 included."""
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"row {rows.min() if rows.min() < 0 else rows.max()} of {len(self)}")
        starts, ends = self._offsets[rows].tolist(), self._offsets[rows + 1].tolist()
        view = self._view
        return [bytes(view[start:end]) for start, end in zip(starts, ends, strict=True)]

    def _equal(self, rows: Ints, text: npt.NDArray[np.uint8], starts: Ints, which: Ints) -> npt.NDArray[np.bool_]:
        """Whether the ids of `rows` are the queries `which`, byte by byte."""
        return _same_bytes(
            self._blob, self._offsets[rows], self._offsets[rows + 1], text, starts[which], starts[which + 1]
        )


def _same_bytes(
    left: npt.NDArray[np.uint8],
    left_start: Ints,
    left_end: Ints,
    right: npt.NDArray[np.uint8],
    right_start: Ints,
    right_end: Ints,
) -> npt.NDArray[np.bool_]:
    lengths = left_end - left_start
    equal: npt.NDArray[np.bool_] = lengths == right_end - right_start
    candidates = np.flatnonzero(equal & (lengths > 0))
    if candidates.size == 0:
        return equal
    sizes = lengths[candidates]
    firsts = np.cumsum(sizes) - sizes
    within = np.arange(sizes.sum()) - np.repeat(firsts, sizes)
    same = (
        left[np.repeat(left_start[candidates], sizes) + within]
        == right[np.repeat(right_start[candidates], sizes) + within]
    )
    equal[candidates] = np.logical_and.reduceat(same, firsts)
    return equal


def _hashes(ids: Sequence[bytes], digest: Digest) -> Hashes:
    return np.fromiter(map(digest, ids), dtype=np.uint64, count=len(ids))


def _joined(ids: Sequence[bytes]) -> tuple[npt.NDArray[np.uint8], Ints]:
    """The ids' bytes in one array, and where each starts (n + 1)."""
    starts = np.zeros(len(ids) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, ids), dtype=np.int64, count=len(ids)), out=starts[1:])
    return np.frombuffer(b"".join(ids), dtype=np.uint8), starts


def _blocks(ids: Iterable[bytes]) -> Iterator[list[bytes]]:
    iterator = iter(ids)
    while block := list(islice(iterator, _BLOCK)):
        yield block


def _write_blob(path: Path, ids: Iterable[bytes], digest: Digest) -> tuple[Hashes, Ints]:
    hashes: list[Hashes] = []
    lengths: list[Ints] = []
    with path.open("wb") as stream:
        for block in _blocks(ids):
            stream.write(b"".join(block))
            hashes.append(_hashes(block, digest))
            lengths.append(np.fromiter(map(len, block), dtype=np.int64, count=len(block)))
    total = sum(map(len, hashes))
    if total > _MAX_ROWS:
        raise DataError(f"{path}: {total} ids, an id map holds {_MAX_ROWS}")
    offsets = np.zeros(total + 1, dtype=np.int64)
    if total:
        np.cumsum(np.concatenate(lengths), out=offsets[1:])
    return (np.concatenate(hashes) if hashes else np.empty(0, dtype=np.uint64)), offsets


def _open_blob(path: Path) -> npt.NDArray[np.uint8]:
    if path.stat().st_size == 0:
        return np.empty(0, dtype=np.uint8)
    return np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))


def _fill_slots(hashes: Hashes, blob: npt.NDArray[np.uint8], offsets: Ints) -> Hashes:
    """The hash table: in every round each unplaced id tries its slot, and those who find it taken move on by one."""
    slots = np.zeros(max(8, 1 << (2 * len(hashes) - 1).bit_length() if len(hashes) else 8), dtype=np.uint64)
    mask = np.uint64(slots.size - 1)
    entries = (hashes & _HIGH) | np.arange(1, len(hashes) + 1, dtype=np.uint64)
    position = hashes & mask
    while entries.size:
        empty = slots[position] == 0
        slots[position[empty]] = entries[empty]
        lost = slots[position] != entries
        entries, position = entries[lost], position[lost]
        _refuse_duplicates(entries, slots[position], blob, offsets)
        position = (position + np.uint64(1)) & mask
    return slots


def _refuse_duplicates(entries: Hashes, others: Hashes, blob: npt.NDArray[np.uint8], offsets: Ints) -> None:
    same_tag = (entries & _HIGH) == (others & _HIGH)
    mine = (entries[same_tag] & _LOW).astype(np.int64) - 1
    other = (others[same_tag] & _LOW).astype(np.int64) - 1
    equal = _same_bytes(blob, offsets[mine], offsets[mine + 1], blob, offsets[other], offsets[other + 1])
    if equal.any():
        row, again = sorted((int(mine[equal][0]), int(other[equal][0])))
        text = blob[offsets[row] : offsets[row + 1]].tobytes()
        raise DataError(f"id {text.decode(errors='replace')!r} is there twice, in rows {row} and {again}")
