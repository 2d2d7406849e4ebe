"""Coarse rank: a small network over few features, and two towers of id embeddings; scores thousands in milliseconds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from recgraph.bundle import Bundle, IdMap
from recgraph.features.assembly import COARSE_ITEM_FEATURES, LOG_FEATURES, MAX_CLICKS, USER_FEATURES
from recgraph.models.base import Tensors, text_list
from recgraph.models.nn import (
    IdEmbedding,
    Normalizer,
    check_features,
    finite,
    load_config,
    load_weights,
    save,
    set_threads,
    tower,
)

STAGE = "coarse"
CLICK_AXES = {"click": 0, "click_mask": 0}
"""Encoded arrays with a dimension of the user's clicks, and which one it is."""


class CoarseConfig(msgspec.Struct, frozen=True):
    """Shape of the network, and what it was trained on."""

    items: int
    item_indicators: int
    user_indicators: int
    embedding: int = 16
    hidden: tuple[int, ...] = (64, 32)
    dropout: float = 0.05
    id_dropout: float = 0.3
    item_features: tuple[str, ...] = COARSE_ITEM_FEATURES
    user_features: tuple[str, ...] = USER_FEATURES


class CoarseNetwork(nn.Module):
    """Logits of R requests with N candidates each: a small network plus user tower times item tower."""

    scale: Tensor
    offset: Tensor

    def __init__(
        self, config: CoarseConfig, item_dense: Normalizer | None = None, user_dense: Normalizer | None = None
    ) -> None:
        super().__init__()
        self.item_dense = item_dense or Normalizer(len(config.item_features), config.item_indicators)
        self.user_dense = user_dense or Normalizer(len(config.user_features), config.user_indicators)
        self.item = IdEmbedding(config.items, config.embedding, config.id_dropout)
        self.user = nn.Linear(config.embedding + self.user_dense.width, config.embedding)
        # The user's part of the first layer is computed once per request, not once per candidate.
        self.first_item = nn.Linear(self.item_dense.width, config.hidden[0])
        self.first_user = nn.Linear(self.user_dense.width, config.hidden[0], bias=False)
        self.rest = tower(config.hidden[0], config.hidden[1:], config.dropout)
        self.out = nn.Linear(config.hidden[-1], 1)
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("offset", torch.zeros(()))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """item int64[R, N], click int64[R, L], click_mask bool[R, L], item_dense f32[R, N, I], user_dense f32[R, 1, U]
        -> float32[R, N]."""
        user = self.user_dense(batch["user_dense"])
        hidden = self.first_item(self.item_dense(batch["item_dense"])) + self.first_user(user)
        network = self.out(self.rest(nn.functional.silu(hidden))).squeeze(-1)
        mask = batch["click_mask"].unsqueeze(-1).to(user.dtype)
        clicks = (self.item(batch["click"]) * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)
        interest = self.user(torch.cat([clicks, user.squeeze(1)], dim=-1))
        logits: Tensor = network + (self.item(batch["item"]) @ interest.unsqueeze(-1)).squeeze(-1)
        return logits

    def probability(self, logits: Tensor) -> Tensor:
        """Probability of a click among what recall passes on."""
        return torch.sigmoid(self.scale * logits + self.offset)


def log_masks() -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which features of items and of users are heavy-tailed."""
    item = np.array([name in LOG_FEATURES for name in COARSE_ITEM_FEATURES])
    return item, np.array([name in LOG_FEATURES for name in USER_FEATURES])


class CoarseEncoder:
    """From the stage's tensors to row numbers."""

    def __init__(self, items: IdMap) -> None:
        self._items = items

    def encode(self, inputs: Tensors) -> Tensors:
        """Arrays of one request: rows int64[N] and [L], dense float32."""
        click = self._items.rows(text_list(inputs["clicks_id"][:MAX_CLICKS]))
        return {
            "item": self._items.rows(text_list(inputs["item_id"])),
            "item_dense": inputs["item_dense"],
            "user_dense": inputs["user_dense"],
            "click": click,
            "click_mask": np.ones(len(click), bool),
        }


class CoarseModel:
    """The coarse stage's model: `score` float32[N], always finite."""

    def __init__(self, encoder: CoarseEncoder, network: CoarseNetwork, bundle_version: str) -> None:
        self.bundle_version = bundle_version
        self._encoder = encoder
        self._network = network

    def predict(self, inputs: Tensors) -> Tensors:
        """One forward pass over what `assembly.coarse_inputs` makes. Thread-safe."""
        if len(inputs["item_id"]) == 0:
            return {"score": np.empty(0, np.float32)}
        encoded = self._encoder.encode(inputs)
        batch = {name: torch.from_numpy(np.ascontiguousarray(value)).unsqueeze(0) for name, value in encoded.items()}
        with torch.inference_mode():
            score = self._network.probability(self._network(batch))[0].numpy()
        return {"score": finite(score)}


def write(folder: Path, network: CoarseNetwork, config: CoarseConfig) -> None:
    """Write the network."""
    save(folder, network, config)


def load(bundle: Bundle, *, threads: int) -> CoarseModel:
    """The coarse model of a bundle. Raises BundleError when it is damaged or made for other features."""
    set_threads(threads)
    return load_folder(bundle.stage_dir(STAGE), bundle.item_ids, bundle.version)


def load_folder(folder: Path, items: IdMap, version: str) -> CoarseModel:
    """As `load`, from the stage's folder, also before the bundle is complete."""
    config = load_config(folder, CoarseConfig)
    check_features(folder, "item_features", config.item_features, COARSE_ITEM_FEATURES)
    check_features(folder, "user_features", config.user_features, USER_FEATURES)
    network = CoarseNetwork(config)
    load_weights(folder, network)
    return CoarseModel(CoarseEncoder(items), network, version)
