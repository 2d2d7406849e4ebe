"""Rerank: a small correction of fine's score that sees the list as a whole, and the embeddings for diversity."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from recgraph.bundle import Bundle, IdMap
from recgraph.features.assembly import LOG_FEATURES, RERANK_ITEM_FEATURES, RERANK_USER_FEATURES
from recgraph.models.base import Tensors, text_list
from recgraph.models.nn import (
    Normalizer,
    check_features,
    finite,
    load_config,
    load_weights,
    save,
    tower,
)
from recgraph.models.passes import Affine, Floats, Standard, Tower, probability

STAGE = "rerank"
LIST_FEATURES = (
    "fine_logit",
    "coarse_logit",
    "place_log",
    "fine_z",
    "coarse_z",
    "category_in_list",
    "category_above",
    "clicks_12h_z",
    "clicks_3d_z",
    "clicks_30d_z",
)
"""What depends on the other candidates of the list."""
_EPSILON = 1e-6


class RerankConfig(msgspec.Struct, frozen=True):
    """Shape of the network, and what it was trained on."""

    indicators: int
    hidden: tuple[int, ...] = (32, 16)
    dropout: float = 0.1
    item_features: tuple[str, ...] = RERANK_ITEM_FEATURES
    user_features: tuple[str, ...] = RERANK_USER_FEATURES
    list_features: tuple[str, ...] = LIST_FEATURES


class RerankNetwork(nn.Module):
    """Logits of R lists with N candidates each: fine's logit and a correction that starts at nothing.

    `share` says how much of the correction counts; training sets it by what held-out lists gain from it, 0 for nothing.
    `scale` and `offset` make the logit's sigmoid a probability.
    """

    scale: Tensor
    offset: Tensor
    share: Tensor

    def __init__(self, config: RerankConfig, dense: Normalizer | None = None) -> None:
        super().__init__()
        features = len(config.item_features) + len(config.user_features) + len(config.list_features)
        self.dense = dense or Normalizer(features, config.indicators)
        self.tower = tower(self.dense.width, config.hidden, config.dropout)
        self.out = nn.Linear(config.hidden[-1], 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.register_buffer("share", torch.ones(()))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("offset", torch.zeros(()))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """item_dense f32[R, N, I], list_dense f32[R, N, len(LIST_FEATURES)], user_dense f32[R, 1, U] -> f32[R, N]."""
        rows = batch["item_dense"].shape[1]
        user = batch["user_dense"].expand(-1, rows, -1)
        dense = self.dense(torch.cat([batch["item_dense"], user, batch["list_dense"]], dim=-1))
        logits: Tensor = batch["list_dense"][..., 0] + self.share * self.out(self.tower(dense)).squeeze(-1)
        return logits


class RerankPass:
    """`RerankNetwork` for one list in numpy."""

    def __init__(self, network: RerankNetwork) -> None:
        self._dense, self._tower, self._out = Standard(network.dense), Tower(network.tower), Affine(network.out)
        self._share, self._scale, self._offset = float(network.share), float(network.scale), float(network.offset)

    def __call__(self, item_dense: Floats, user_dense: Floats, list_dense: Floats) -> Floats:
        """Probabilities of a click f32[N] of the arrays that `encode` makes."""
        user = np.broadcast_to(user_dense, (len(item_dense), user_dense.shape[1]))
        dense = self._dense(np.concatenate([item_dense, user, list_dense], axis=1))
        correction = self._out(self._tower(dense))[:, 0]
        return probability(list_dense[:, 0] + self._share * correction, self._scale, self._offset)


def log_mask() -> npt.NDArray[np.bool_]:
    """Which columns of the network's dense input are heavy-tailed."""
    names = (*RERANK_ITEM_FEATURES, *RERANK_USER_FEATURES)
    return np.array([*(name in LOG_FEATURES for name in names), *([False] * len(LIST_FEATURES))])


def encode(inputs: Tensors) -> Tensors:
    """Arrays of one list, whatever its order: `list_dense` float32[N, len(LIST_FEATURES)] and the dense values."""
    fine, coarse = _logit(inputs["fine_score"]), _logit(inputs["coarse_score"])
    order = np.argsort(-fine, kind="stable")
    place = np.empty(len(fine), np.int64)
    place[order] = np.arange(len(fine))
    total, above = _categories(inputs["category"], order)
    columns = [fine, coarse, np.log1p(place), _z(fine), _z(coarse), total / max(len(fine), 1), np.log1p(above)]
    for window in ("12h", "3d", "30d"):
        counts = inputs["item_dense"][:, RERANK_ITEM_FEATURES.index(f"clicks_{window}")]
        columns.append(_z(np.log1p(np.maximum(np.nan_to_num(counts, posinf=0.0), 0.0))))
    return {
        "item_dense": inputs["item_dense"],
        "user_dense": inputs["user_dense"],
        "list_dense": np.stack(columns, axis=1).astype(np.float32),
    }


def _categories(
    categories: npt.NDArray[np.object_], order: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """How many of the list have a candidate's category, and how many of those stand above it."""
    codes = np.unique(np.array(text_list(categories), dtype=bytes), return_inverse=True)[1]
    counts = np.bincount(codes)
    sorted_codes = codes[order]
    grouped = np.argsort(sorted_codes, kind="stable")
    firsts = np.cumsum(counts) - counts
    above = np.empty(len(codes), np.int64)
    above[order[grouped]] = np.arange(len(codes)) - firsts[sorted_codes[grouped]]
    return counts[codes], above


def _logit(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Log-odds of scores; NaN (a stage before fell back without scores) is even odds."""
    clean = np.clip(np.nan_to_num(scores.astype(np.float64), nan=0.5), _EPSILON, 1.0 - _EPSILON)
    odds: npt.NDArray[np.float64] = np.log(clean / (1.0 - clean))
    return odds


def _z(values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Standard scores within the list; zero where all are equal."""
    centred: npt.NDArray[np.float64] = values.astype(np.float64) - values.mean()
    deviation = float(centred.std())
    return centred / deviation if deviation > _EPSILON else np.zeros_like(centred)


class RerankModel:
    """The rerank stage's model: `score` float32[N], finite, and `embedding` float32[N, D] of unit length."""

    def __init__(
        self, network: RerankNetwork, items: IdMap, embeddings: npt.NDArray[np.float32], bundle_version: str
    ) -> None:
        self.bundle_version = bundle_version
        self._pass = RerankPass(network)
        self._items = items
        self._embeddings = embeddings

    def predict(self, inputs: Tensors) -> Tensors:
        """One forward pass over what `assembly.rerank_inputs` makes. Thread-safe."""
        ids = text_list(inputs["item_id"])
        if not ids:
            width = self._embeddings.shape[1]
            return {"score": np.empty(0, np.float32), "embedding": np.empty((0, width), np.float32)}
        return {"score": finite(self._pass(**encode(inputs))), "embedding": self._vectors(ids)}

    def _vectors(self, ids: list[bytes]) -> npt.NDArray[np.float32]:
        """Item embeddings of unit length, zero where unknown."""
        rows = self._items.rows(ids)
        vectors = np.zeros((len(rows), self._embeddings.shape[1]), np.float32)
        known = np.flatnonzero(rows >= 0)
        vectors[known] = np.take(self._embeddings, rows[known], axis=0)
        norms = np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))
        norms[norms <= _EPSILON] = 1.0
        vectors /= norms
        return vectors


def write(folder: Path, network: RerankNetwork, config: RerankConfig) -> None:
    """Write the network."""
    save(folder, network, config)


def load(bundle: Bundle, *, threads: int) -> RerankModel:
    """The rerank model of a bundle. Raises BundleError when it is damaged or made for other features.

    `threads` is recall's, whose FAISS heeds them: a pass in numpy takes those of its BLAS.
    """
    vectors = np.asarray(np.load(bundle.stage_dir("recall") / "vectors.npy", mmap_mode="r"))
    return load_folder(bundle.stage_dir(STAGE), bundle.item_ids, vectors, bundle.version)


def load_folder(folder: Path, items: IdMap, embeddings: npt.NDArray[np.float32], version: str) -> RerankModel:
    """As `load`, from the stage's folder and the item embeddings float32[items, D], before the bundle is complete."""
    config = load_config(folder, RerankConfig)
    check_features(folder, "item_features", config.item_features, RERANK_ITEM_FEATURES)
    check_features(folder, "user_features", config.user_features, RERANK_USER_FEATURES)
    check_features(folder, "list_features", config.list_features, LIST_FEATURES)
    network = RerankNetwork(config)
    load_weights(folder, network)
    return RerankModel(network, items, embeddings, version)
