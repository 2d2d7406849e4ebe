"""Nearest items of a user vector: a FAISS index whose kind follows the number of items.

| kind  | items         | what                                                                                   |
|-------|---------------|----------------------------------------------------------------------------------------|
| flat  | to 20,000     | exact                                                                                  |
| hnsw  | to 60,000     | graph                                                                                  |
| ivf   | to 3,000,000  | inverted lists of 8-bit vectors                                                        |
| ivfpq | above         | inverted lists of 4-bit product codes (fast scan), refined exactly with mapped vectors |

Why these bounds: docs/adr/0011. Vectors have unit length and the score is the inner product. A flat index is stored as
FAISS's, like the others, but not read again: a product with the bundle's vectors in numpy takes 0.57 ms for k near 1000
of 20,000 items, FAISS 1.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import faiss as _faiss
import msgspec
import numpy as np
import numpy.typing as npt

from recgraph.errors import BundleError

faiss: Any = _faiss  # its type stubs lag behind its classes
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Kind = Literal["flat", "hnsw", "ivf", "ivfpq"]

TARGET_RECALL = 0.95
K_TUNED = 1000
_ERRORS = 2.0
"""Standard errors of the mean by which tuning stays above the target: the held-out queries are a sample."""
_BOUNDS: tuple[tuple[int, Kind], ...] = ((20_000, "flat"), (60_000, "hnsw"), (3_000_000, "ivf"))
_FEWEST = 64
_TRAIN_PER_LIST = 64
_KMEANS_ROUNDS = 8
_HNSW_LINKS = 32
_EF_CONSTRUCTION = 100
_PROBES = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_EF_SEARCH = (1000, 1200, 1500, 2000, 3000, 4000, 8000)
_REFINE = (1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)


class IndexParameters(msgspec.Struct, frozen=True):
    """Content of index.json: the kind, its search parameters, and what they were tuned to."""

    kind: Kind
    items: int
    dim: int
    nlist: int = 0
    nprobe: int = 0
    ef_search: int = 0
    refine_factor: float = 0.0
    recall: float = 1.0
    """recall@k (1000 unless told otherwise) against exact search on the queries it was tuned on."""
    queries: int = 0


def choose_kind(items: int) -> Kind:
    """The kind for a number of items."""
    for bound, kind in _BOUNDS:
        if items <= bound:
            return kind
    return "ivfpq"


def list_count(items: int) -> int:
    """Inverted lists: a power of two near 2 sqrt(n), which balances finding lists against scanning them."""
    return max(16, min(16_384, 1 << round(math.log2(2 * math.sqrt(items)))))


@dataclass(frozen=True)
class ItemIndex:
    """An index with tuned parameters. `search` may be called from several threads at once."""

    index: Any
    """FAISS's; None of a flat one that was loaded."""
    vectors: Floats
    """All item vectors by row (memory-mapped in serving), for refinement and for rows that a graph cannot reach."""
    parameters: IndexParameters
    threads: int = 1

    @classmethod
    def build(
        cls,
        vectors: Floats,
        queries: Floats,
        *,
        kind: Kind | None = None,
        seed: int = 0,
        threads: int = 1,
        k: int = K_TUNED,
    ) -> ItemIndex:
        """Build over unit vectors f32[N, D] and tune recall@k on user vectors f32[Q, D] that were held out.

        The result depends on the arguments alone: parameters are chosen by recall and by a count of the work, not by
        the clock. With fewer than 64 items there is nothing to train on, and every kind is flat.
        """
        if kind is None or len(vectors) < _FEWEST:
            kind = choose_kind(len(vectors))
        faiss.omp_set_num_threads(threads)
        index = _made(kind, vectors, seed)
        nlist = int(_inverted(index).nlist) if kind.startswith("ivf") else 0
        parameters = IndexParameters(kind=kind, items=len(vectors), dim=vectors.shape[1], nlist=nlist)
        return cls(index, vectors, parameters, threads).tuned(queries, k)

    @classmethod
    def load(cls, folder: Path, vectors: Floats, *, threads: int) -> ItemIndex:
        """Read index.json and what its kind needs of index.faiss. Raises BundleError if they do not fit."""
        parameters = msgspec.json.decode((folder / "index.json").read_bytes(), type=IndexParameters)
        _check_shape(folder / "index.json", (parameters.items, parameters.dim), vectors)
        index = None if parameters.kind == "flat" else _read(folder / "index.faiss", vectors)
        return cls(index, vectors, parameters, threads)

    def save(self, folder: Path) -> None:
        """Write index.faiss and index.json; the vectors are the bundle's own."""
        faiss.write_index(self.index, str(folder / "index.faiss"))
        (folder / "index.json").write_bytes(msgspec.json.encode(self.parameters))

    def search(self, queries: Floats, k: int) -> tuple[Floats, Ints]:
        """The best items: scores f32[Q, K] and rows int64[Q, K], best first, with K = min(k, items).

        Every row is a valid one: FAISS's -1 never appears.
        """
        return self._search(np.ascontiguousarray(queries, np.float32), min(k, len(self.vectors)), self.parameters)

    def tuned(self, queries: Floats, k: int = K_TUNED) -> ItemIndex:
        """The same index with the cheapest parameters that surely reach TARGET_RECALL, as far as the queries tell,
        or the last tried.
        """
        if self.parameters.kind == "flat":
            return self
        k = min(k, len(self.vectors))
        _, truth = exact(self.vectors, queries, k)
        best = self.parameters
        for candidate in self._candidates(k):
            found = self._search(queries, k, candidate)[1]
            shares = recalls(found, truth)
            reached, error = float(shares.mean()), float(shares.std()) / math.sqrt(len(shares))
            best = msgspec.structs.replace(candidate, recall=round(reached, 4), queries=len(queries))
            if reached - _ERRORS * error >= TARGET_RECALL:
                break
        return ItemIndex(self.index, self.vectors, best, self.threads)

    def _candidates(self, k: int) -> list[IndexParameters]:
        """Parameters to try, cheapest first."""
        base = self.parameters
        change = msgspec.structs.replace
        if base.kind == "hnsw":
            return [change(base, ef_search=max(ef, k)) for ef in _EF_SEARCH]
        probes = [probes for probes in _PROBES if probes < base.nlist] + [base.nlist]
        if base.kind == "ivf":
            return [change(base, nprobe=number) for number in probes]
        per_list = base.items / base.nlist
        # A refined candidate is a random read of a whole vector; measured, it costs about 40 scanned codes.
        both = [(number * per_list + factor * k * 40, number, factor) for number in probes for factor in _REFINE]
        return [change(base, nprobe=number, refine_factor=factor) for _, number, factor in sorted(both)]

    def _search(self, queries: Floats, k: int, parameters: IndexParameters) -> tuple[Floats, Ints]:
        # The setting belongs to the calling thread, so it is made on every call.
        faiss.omp_set_num_threads(self.threads)
        if parameters.kind == "flat":
            return _stacked([_ranked(self.vectors @ query, k) for query in queries])
        if parameters.kind == "hnsw":
            return self._graph(queries, k, parameters)
        return self._lists(queries, k, parameters)

    def _graph(self, queries: Floats, k: int, parameters: IndexParameters) -> tuple[Floats, Ints]:
        options = faiss.SearchParametersHNSW(efSearch=max(parameters.ef_search, k))
        scores, rows = self.index.search(queries, k, params=options)
        short = np.flatnonzero((rows < 0).any(axis=1))
        if short.size:
            scores[short], rows[short] = exact(self.vectors, queries[short], k)
        return scores, rows

    def _lists(self, queries: Floats, k: int, parameters: IndexParameters) -> tuple[Floats, Ints]:
        refined = parameters.kind == "ivfpq"
        wide = min(int(k * parameters.refine_factor), parameters.items) if refined else k
        nprobe = parameters.nprobe
        while True:
            options = faiss.SearchParametersIVF(nprobe=nprobe)
            scores, rows = self.index.search(queries, wide, params=options)
            # Lists near a query may hold fewer than k items: look into more of them, in the end into all.
            if (rows[:, :k] >= 0).all() or nprobe >= parameters.nlist:
                break
            nprobe = min(2 * nprobe, parameters.nlist)
        return self._refined(queries, rows, k) if refined else (scores, rows)

    def _refined(self, queries: Floats, rows: Ints, k: int) -> tuple[Floats, Ints]:
        found = []
        for query, all_rows in zip(queries, rows, strict=True):
            candidates = all_rows[all_rows >= 0]
            # Not vectors[candidates]: taking whole rows is four times as fast.
            scores, places = _ranked(np.take(self.vectors, candidates, axis=0) @ query, k)
            found.append((scores, candidates[places]))
        return _stacked(found)


def exact(vectors: Floats, queries: Floats, k: int) -> tuple[Floats, Ints]:
    """Exact search by inner product: scores f32[Q, k] and rows int64[Q, k]."""
    scores, rows = faiss.knn(queries, vectors, k, metric=faiss.METRIC_INNER_PRODUCT)
    return scores, rows


def best(scores: npt.NDArray[np.floating], k: int) -> Ints:
    """Places of the k highest scores (all, if there are fewer), best first; among equal ones the lower place."""
    if k >= len(scores):
        return np.argsort(-scores, kind="stable")
    places = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
    return places[np.argsort(-scores[places], kind="stable")[:k]]


def _ranked(scores: Floats, k: int) -> tuple[Floats, Ints]:
    places = best(scores, k)
    return scores[places], places


def _stacked(found: list[tuple[Floats, Ints]]) -> tuple[Floats, Ints]:
    return np.stack([scores for scores, _ in found]), np.stack([rows for _, rows in found])


def recalls(found: Ints, truth: Ints) -> npt.NDArray[np.float64]:
    """The share of each row of `truth` that the same row of `found` holds, float64[Q]."""
    return np.array([np.isin(wanted, got).mean() for got, wanted in zip(found, truth, strict=True)])


def recall(found: Ints, truth: Ints) -> float:
    """The mean of `recalls`."""
    return float(recalls(found, truth).mean())


def _made(kind: Kind, vectors: Floats, seed: int) -> Any:
    items, dim = vectors.shape
    if kind == "flat":
        index = faiss.IndexFlatIP(dim)
    elif kind == "hnsw":
        index = faiss.IndexHNSWFlat(dim, _HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = _EF_CONSTRUCTION
    else:
        index = _trained_lists(kind, vectors, seed)
    for begin in range(0, items, 1 << 18):
        index.add(np.ascontiguousarray(vectors[begin : begin + (1 << 18)]))
    return index


def _trained_lists(kind: Kind, vectors: Floats, seed: int) -> Any:
    items, dim = vectors.shape
    nlist = min(list_count(items), max(1, items // 4))
    # One 4-bit code per dimension: twice as fast a scan as 8 bits, and its order is nearly right.
    code = "SQ8" if kind == "ivf" else f"PQ{dim}x4fs"
    index = faiss.index_factory(dim, f"IVF{nlist},{code}", faiss.METRIC_INNER_PRODUCT)
    index.cp.niter, index.cp.seed = _KMEANS_ROUNDS, seed + 1
    index.cp.max_points_per_centroid, index.cp.min_points_per_centroid = _TRAIN_PER_LIST, 1
    sample = np.random.default_rng(seed).permutation(items)[: nlist * _TRAIN_PER_LIST]
    index.train(np.ascontiguousarray(vectors[np.sort(sample)]))
    return index


def _read(path: Path, vectors: Floats) -> Any:
    """FAISS's index, mapped where its kind allows."""
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise BundleError(f"{path}: FAISS cannot read it: {error}") from error
    _check_shape(path, (index.ntotal, index.d), vectors)
    return index


def _check_shape(path: Path, shape: tuple[int, int], vectors: Floats) -> None:
    if shape != vectors.shape:
        raise BundleError(f"{path}: made for vectors {shape}, but the bundle's are {vectors.shape}")


def _inverted(index: Any) -> Any:
    return faiss.extract_index_ivf(index)
