"""Ids and row numbers; for many ids without a Python object per id.

A folder of three memory-mapped files: the ids' bytes one after another (`blob.bin`), where each starts
(`offsets.npy`, int64, n + 1), and an open-addressing hash table (`slots.npy`, uint64, a power of two, at most half
full). A slot is 0 when empty, else the upper half of the id's xxh3_64 in its upper half and row + 1 in its lower.
Collisions go to the next slot. A hit counts only when the bytes are equal, so the map is exact whatever the hash does.
Ten million ids take about 500 MB on disk, shared between the processes through the page cache.

A map of few ids is also kept as a dict: the table is read in a dozen passes of numpy, whose code a process that
answers now and then finds outside its caches (300 ids: 0.5 ms, with a dict 0.06 ms).
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from recgraph.errors import BundleError, DataError

Digest = Callable[[bytes], int]
Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

IN_MEMORY = 1 << 16
"""Ids of a map that is kept as a dict too; that many take about 10 MB and 30 ms at loading."""
_BLOCK = 1 << 18
_MAX_ROWS = (1 << 32) - 1
_LOW = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(0xFFFFFFFF00000000)


class IdMap:
    """A read-only map between ids (bytes of UTF-8) and row numbers. Thread-safe."""

    def __init__(
        self,
        blob: bytes | mmap.mmap,
        offsets: Ints,
        slots: Hashes,
        digest: Digest = xxhash.xxh3_64_intdigest,
        in_memory: int = IN_MEMORY,
    ) -> None:
        self._blob = blob
        self._offsets = offsets
        self._slots = slots
        self._digest = digest
        self._texts: npt.NDArray[np.object_] | None = None
        self._rows: dict[bytes, int] | None = None
        if len(self) <= in_memory:
            self._texts = self.texts(np.arange(len(self)))
            self._rows = {text: row for row, text in enumerate(self._texts.tolist())}

    @classmethod
    def build(
        cls,
        folder: str | Path,
        ids: Iterable[bytes],
        digest: Digest = xxhash.xxh3_64_intdigest,
        in_memory: int = IN_MEMORY,
    ) -> IdMap:
        """Write a map of `ids`, whose rows are 0, 1, ... in their order, into `folder` and open it.

        Needs about 40 bytes of memory per id, whatever the ids' lengths. Raises DataError for an id given twice.
        """
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        hashes, offsets = _write_blob(path / "blob.bin", ids, digest)
        slots = _fill_slots(hashes, np.frombuffer(_open_blob(path / "blob.bin"), np.uint8), offsets)
        np.save(path / "offsets.npy", offsets)
        np.save(path / "slots.npy", slots)
        return cls.open(path, digest, in_memory)

    @classmethod
    def open(cls, folder: str | Path, digest: Digest = xxhash.xxh3_64_intdigest, in_memory: int = IN_MEMORY) -> IdMap:
        """Map the files of a folder into memory, and keep at most `in_memory` ids as a dict.

        Raises BundleError when a file is missing or they do not fit.
        """
        path = Path(folder)
        try:
            offsets = np.asarray(np.load(path / "offsets.npy", mmap_mode="r"))
            slots = np.asarray(np.load(path / "slots.npy", mmap_mode="r"))
            blob = _open_blob(path / "blob.bin")
        except (OSError, ValueError) as error:
            raise BundleError(f"{path}: not an id map: {error}") from error
        if offsets.size == 0 or offsets[-1] != len(blob) or slots.size & (slots.size - 1):
            raise BundleError(f"{path}: the files of this id map do not belong together")
        return cls(blob, offsets, slots, digest, in_memory)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def rows(self, ids: Sequence[bytes]) -> Ints:
        """Row numbers, int64[len(ids)], -1 where an id is unknown."""
        if self._rows is not None:
            return np.fromiter(map(self._rows.get, ids, repeat(-1)), np.int64, len(ids))
        return self._looked_up(ids)

    def ids(self, rows: npt.NDArray[np.integer]) -> list[bytes]:
        """The ids of row numbers. Raises IndexError for a row that is not there, -1 included."""
        found: list[bytes] = self.texts(rows).tolist()
        return found

    def texts(self, rows: npt.NDArray[np.integer]) -> npt.NDArray[np.object_]:
        """As `ids`, an object array."""
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"row {rows.min() if rows.min() < 0 else rows.max()} of {len(self)}")
        if self._texts is not None:
            known: npt.NDArray[np.object_] = self._texts[rows]
            return known
        texts = np.empty(len(rows), object)
        texts[:] = self._stored(rows)
        return texts

    def _stored(self, rows: npt.NDArray[np.integer]) -> list[bytes]:
        spans = map(slice, self._offsets[rows].tolist(), self._offsets[rows + 1].tolist())
        return list(map(self._blob.__getitem__, spans))

    def _looked_up(self, ids: Sequence[bytes]) -> Ints:
        """Row numbers by the table: in every round each id that is still sought looks at its next slot."""
        found = np.full(len(ids), -1, dtype=np.int64)
        mask = np.uint64(self._slots.size - 1)
        hashes = _hashes(ids, self._digest)
        pending, tags, position = np.arange(len(ids)), hashes & _HIGH, hashes & mask
        while pending.size:
            slots = self._slots[position]
            seeking = slots != 0
            hit = np.flatnonzero(seeking & ((slots & _HIGH) == tags))
            rows = (slots[hit] & _LOW).astype(np.int64) - 1
            asked = [ids[place] for place in pending[hit].tolist()]
            equal = np.fromiter(map(bytes.__eq__, asked, self._stored(rows)), bool, len(asked))
            found[pending[hit[equal]]] = rows[equal]
            seeking[hit[equal]] = False
            pending, tags, position = pending[seeking], tags[seeking], (position[seeking] + np.uint64(1)) & mask
        return found


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


def _open_blob(path: Path) -> bytes | mmap.mmap:
    if path.stat().st_size == 0:
        return b""  # an empty file cannot be mapped
    with path.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


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
