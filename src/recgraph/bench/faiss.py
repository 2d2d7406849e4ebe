"""How long nearest-item search takes at a size, at recall@k >= 0.95, against exact search in the same run."""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recgraph.data.progress import Progress, silent
from recgraph.models.index import TARGET_RECALL, ItemIndex, Kind, exact, recall

Floats = npt.NDArray[np.float32]
Vectors = Callable[[np.random.Generator, int, int, int], tuple[Floats, Floats]]

_TUNED_ON = 300  # as many as training tunes on
_TIMED = 200
_BLOCK = 1 << 18


def clustered(rng: np.random.Generator, items: int, queries: int, dim: int) -> tuple[Floats, Floats]:
    """Unit vectors as towers make them: items f32[N, D] in clusters with long-tailed sizes (one per 1,000 items, more
    variance in some directions than in others), users f32[Q, D] between the clusters they click."""
    clusters = max(32, items // 1000)
    centres = _unit(rng.standard_normal((clusters, dim), np.float32) * np.arange(1, dim + 1, dtype=np.float32) ** -0.35)
    size = np.arange(1, clusters + 1) ** -0.8
    size /= size.sum()
    vectors = np.empty((items, dim), np.float32)
    for begin in range(0, items, _BLOCK):
        own = rng.choice(clusters, min(_BLOCK, items - begin), p=size)
        vectors[begin : begin + len(own)] = _unit(centres[own] + _noise(rng, len(own), dim, 0.7))
    shares = rng.dirichlet(np.ones(3), queries).astype(np.float32)
    liked = rng.choice(clusters, (queries, 3), p=size)
    users = _unit(np.einsum("qc,qcd->qd", shares, centres[liked]))
    return vectors, _unit(users + _noise(rng, queries, dim, 0.5))


def gaussian(rng: np.random.Generator, items: int, queries: int, dim: int) -> tuple[Floats, Floats]:
    """The worst case: no structure that an index could use."""
    return _unit(rng.standard_normal((items, dim), np.float32)), _unit(rng.standard_normal((queries, dim), np.float32))


VECTORS: dict[str, Vectors] = {"clustered": clustered, "gaussian": gaussian}


def bench_faiss(
    items: int,
    dim: int,
    k: int,
    *,
    kind: Kind | None = None,
    data: tuple[str, ...] = tuple(VECTORS),
    seed: int = 0,
    threads: int = 1,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Search times of one query at a time, in ms, for each kind of data.

    The index is tuned on some queries and timed on others; what is reported as recall was measured on the latter.
    """
    report: dict[str, Any] = {"items": items, "dim": dim, "k": k, "threads": threads, "target_recall": TARGET_RECALL}
    for name in data:
        progress(f"make {name} vectors", 0.0)
        vectors, queries = VECTORS[name](np.random.default_rng(seed), items, _TUNED_ON + _TIMED, dim)
        report[name] = _measure(vectors, queries, min(k, items), kind, seed, threads, progress)
    report["peak_memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return report


def _measure(
    vectors: Floats, queries: Floats, k: int, kind: Kind | None, seed: int, threads: int, progress: Progress
) -> dict[str, Any]:
    tuning, timed = queries[:_TUNED_ON], queries[_TUNED_ON:]
    progress("build and tune the index", 0.0)
    begun = time.perf_counter()
    index = ItemIndex.build(vectors, tuning, kind=kind, seed=seed, threads=threads, k=k)
    built = time.perf_counter() - begun
    progress("search", 0.0)
    times, found = _timed(lambda query: index.search(query, k)[1], timed)
    exact_times, truth = _timed(lambda query: exact(vectors, query, k)[1], timed)
    parameters = index.parameters
    return {
        "kind": parameters.kind,
        "nlist": parameters.nlist,
        "nprobe": parameters.nprobe,
        "ef_search": parameters.ef_search,
        "refine_factor": parameters.refine_factor,
        "recall": round(recall(found, truth), 4),
        "p50_ms": _percentile(times, 50),
        "p99_ms": _percentile(times, 99),
        "exact_p50_ms": _percentile(exact_times, 50),
        "exact_p99_ms": _percentile(exact_times, 99),
        "build_s": round(built, 1),
        "index_mb": round(_stored_size(index) / 1e6, 1),
        "vectors_mb": round(vectors.nbytes / 1e6, 1),
    }


def _timed(
    search: Callable[[Floats], npt.NDArray[np.int64]], queries: Floats
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    search(queries[:1])
    times, found = [], []
    for place in range(len(queries)):
        begun = time.perf_counter()
        rows = search(queries[place : place + 1])
        times.append((time.perf_counter() - begun) * 1e3)
        found.append(rows[0])
    return np.array(times), np.stack(found)


def _stored_size(index: ItemIndex) -> int:
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder))
        return (Path(folder) / "index.faiss").stat().st_size


def _percentile(times: npt.NDArray[np.float64], percent: float) -> float:
    return round(float(np.percentile(times, percent)), 3)


def _noise(rng: np.random.Generator, count: int, dim: int, size: float) -> Floats:
    noise: Floats = rng.standard_normal((count, dim), np.float32) * np.float32(size / np.sqrt(dim))
    return noise


def _unit(vectors: Floats) -> Floats:
    unit: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit
