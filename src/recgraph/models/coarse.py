"""Coarse rank: a small network and two small towers over few features; scores thousands in milliseconds."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from recgraph.bundle import Bundle
from recgraph.features.assembly import COARSE_ITEM_FEATURES, LOG_FEATURES, USER_FEATURES
from recgraph.models.base import Tensors
from recgraph.models.nn import (
    Normalizer,
    check_features,
    finite,
    load_config,
    load_weights,
    save,
    tower,
)
from recgraph.models.passes import Affine, Floats, Standard, Tower, probability, silu

STAGE = "coarse"


class CoarseConfig(msgspec.Struct, frozen=True):
    """Shape of the network, and what it was trained on."""

    item_indicators: int
    user_indicators: int
    embedding: int = 16
    hidden: tuple[int, ...] = (64, 32)
    dropout: float = 0.05
    item_features: tuple[str, ...] = COARSE_ITEM_FEATURES
    user_features: tuple[str, ...] = USER_FEATURES


class CoarseNetwork(nn.Module):
    """Logits of R requests with N candidates each: a small network plus user tower times item tower.

    There are no ids in it. With ids, it learned which items had been popular in the training period, and ranked worse
    than popularity afterwards (MovieTweetings: NDCG@20 0.146 with, 0.168 for live popularity). The sigmoid of a logit,
    after `scale` and `offset`, is the probability of a click among what recall passes on.
    """

    scale: Tensor
    offset: Tensor

    def __init__(
        self, config: CoarseConfig, item_dense: Normalizer | None = None, user_dense: Normalizer | None = None
    ) -> None:
        super().__init__()
        self.item_dense = item_dense or Normalizer(len(config.item_features), config.item_indicators)
        self.user_dense = user_dense or Normalizer(len(config.user_features), config.user_indicators)
        items, users = self.item_dense.width, self.user_dense.width
        self.item = nn.Sequential(nn.Linear(items, config.embedding), nn.Tanh())
        self.user = nn.Sequential(
            nn.Linear(users, config.embedding), nn.Tanh(), nn.Linear(config.embedding, config.embedding)
        )
        # The user's part of the first layer is computed once per request, not once per candidate.
        self.first_item = nn.Linear(items, config.hidden[0])
        self.first_user = nn.Linear(users, config.hidden[0], bias=False)
        self.rest = tower(config.hidden[0], config.hidden[1:], config.dropout)
        self.out = nn.Linear(config.hidden[-1], 1)
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("offset", torch.zeros(()))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """item_dense f32[R, N, I], user_dense f32[R, 1, U] -> float32[R, N]."""
        user, item = self.user_dense(batch["user_dense"]), self.item_dense(batch["item_dense"])
        hidden = self.first_item(item) + self.first_user(user)
        network = self.out(self.rest(nn.functional.silu(hidden))).squeeze(-1)
        logits: Tensor = network + (self.item(item) * self.user(user)).sum(dim=-1)
        return logits


class CoarsePass:
    """`CoarseNetwork` for one request in numpy."""

    def __init__(self, network: CoarseNetwork) -> None:
        self._item_dense, self._user_dense = Standard(network.item_dense), Standard(network.user_dense)
        self._item = [Affine(layer) for layer in network.item if isinstance(layer, nn.Linear)]
        self._user = [Affine(layer) for layer in network.user if isinstance(layer, nn.Linear)]
        self._first_item, self._first_user = Affine(network.first_item), Affine(network.first_user)
        self._rest, self._out = Tower(network.rest), Affine(network.out)
        self._scale, self._offset = float(network.scale), float(network.offset)

    def __call__(self, item_dense: Floats, user_dense: Floats) -> Floats:
        """Probabilities of a click f32[N] of `item_dense` f32[N, I] and `user_dense` f32[1, U]."""
        user, item = self._user_dense(user_dense), self._item_dense(item_dense)
        hidden = self._first_item(item)
        hidden += self._first_user(user)
        logits = self._out(self._rest(silu(hidden)))[:, 0]
        vector = self._user[1](np.tanh(self._user[0](user)))[0]
        logits += np.tanh(self._item[0](item)) @ vector
        return probability(logits, self._scale, self._offset)


def log_masks() -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which features of items and of users are heavy-tailed."""
    item = np.array([name in LOG_FEATURES for name in COARSE_ITEM_FEATURES])
    return item, np.array([name in LOG_FEATURES for name in USER_FEATURES])


def encode(inputs: Tensors) -> Tensors:
    """The arrays of one request that the network reads."""
    return {name: inputs[name] for name in ("item_dense", "user_dense")}


class CoarseModel:
    """The coarse stage's model: `score` float32[N], always finite."""

    def __init__(self, network: CoarseNetwork, bundle_version: str) -> None:
        self.bundle_version = bundle_version
        self._pass = CoarsePass(network)

    def predict(self, inputs: Tensors) -> Tensors:
        """One forward pass over what `assembly.coarse_inputs` makes. Thread-safe."""
        if len(inputs["item_dense"]) == 0:
            return {"score": np.empty(0, np.float32)}
        return {"score": finite(self._pass(inputs["item_dense"], inputs["user_dense"]))}


def write(folder: Path, network: CoarseNetwork, config: CoarseConfig) -> None:
    """Write the network."""
    save(folder, network, config)


def load(bundle: Bundle, *, threads: int) -> CoarseModel:
    """The coarse model of a bundle. Raises BundleError when it is damaged or made for other features.

    `threads` is recall's, whose FAISS heeds them: a pass in numpy takes those of its BLAS.
    """
    return load_folder(bundle.stage_dir(STAGE), bundle.version)


def load_folder(folder: Path, version: str) -> CoarseModel:
    """As `load`, from the stage's folder, also before the bundle is complete."""
    config = load_config(folder, CoarseConfig)
    check_features(folder, "item_features", config.item_features, COARSE_ITEM_FEATURES)
    check_features(folder, "user_features", config.user_features, USER_FEATURES)
    network = CoarseNetwork(config)
    load_weights(folder, network)
    return CoarseModel(network, version)
