"""Layers that the ranking models share, and how their weights are kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from recgraph.errors import BundleError

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
CLIP = 5.0
T = TypeVar("T")


class Normalizer(nn.Module):
    """Standardised features and, for each that is ever missing in training, an indicator.

    Heavy-tailed features are taken as sign(x) * log(1 + |x|) first. What is not finite counts as missing and becomes
    the mean; everything is clipped at 5 standard deviations: so no input can make a score that is not finite.
    """

    mean: Tensor
    std: Tensor
    log: Tensor
    indicated: Tensor

    def __init__(self, features: int, indicators: int) -> None:
        super().__init__()
        self.width = features + indicators
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("std", torch.ones(features))
        self.register_buffer("log", torch.zeros(features, dtype=torch.bool))
        self.register_buffer("indicated", torch.zeros(indicators, dtype=torch.int64))

    @classmethod
    def fit(cls, values: npt.NDArray[np.float32], log: npt.NDArray[np.bool_]) -> Normalizer:
        """Statistics of `values`, float32[rows, features]; `log` says which features are heavy-tailed."""
        known = np.isfinite(values)
        indicated = np.flatnonzero(~known.all(axis=0))
        made = cls(values.shape[1], len(indicated))
        scaled = np.where(known, values, np.nan).astype(np.float64)
        scaled[:, log] = np.sign(scaled[:, log]) * np.log1p(np.abs(scaled[:, log]))
        counts = np.maximum(known.sum(axis=0), 1)
        mean = np.nansum(scaled, axis=0) / counts
        std = np.sqrt(np.nansum(np.square(scaled - mean), axis=0) / counts)
        made.mean.copy_(torch.from_numpy(mean))
        made.std.copy_(torch.from_numpy(np.where(std > 1e-6, std, 1.0)))
        made.log.copy_(torch.from_numpy(log))
        made.indicated.copy_(torch.from_numpy(indicated))
        return made

    def forward(self, values: Tensor) -> Tensor:
        """float32[..., features] -> float32[..., features + indicators]."""
        known = torch.isfinite(values)
        scaled = torch.where(self.log, torch.sign(values) * torch.log1p(values.abs()), values)
        standard = ((scaled - self.mean) / self.std).clamp(-CLIP, CLIP)
        standard = torch.where(known, standard, torch.zeros_like(standard))
        return torch.cat([standard, (~known[..., self.indicated]).to(values.dtype)], dim=-1)


class CrossNetwork(nn.Module):
    """DCN-v2's cross network with full matrices: x[l+1] = x0 * (W x[l] + b) + x[l] (Wang et al., 2021, eq. 1)."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        matrices = [nn.Linear(width, width) for _ in range(layers)]
        for layer in matrices:
            # Products of unclipped depth explode early in training; small matrices start near the identity.
            nn.init.normal_(layer.weight, std=0.1 / math.sqrt(width))
            nn.init.zeros_(layer.bias)
        self.layers = nn.ModuleList(matrices)

    def forward(self, start: Tensor) -> Tensor:
        """float32[..., width] -> the same shape."""
        value = start
        for layer in self.layers:
            value = start * layer(value) + value
        return value


class ClickAttention(nn.Module):
    """DIN's attention of a candidate over the recent clicks (Zhou et al., 2018), with how related each pair is.

    The hidden layer sees query, key, their product, the pair's affinity and the click's age. Its first matrix is split
    by these parts, so that only the product costs a multiplication per pair. Weights are a softmax over the clicks.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, hidden)
        self.key = nn.Linear(width, hidden, bias=False)
        self.product = nn.Linear(width, hidden, bias=False)
        self.affinity = nn.Linear(1, hidden, bias=False)
        self.age = nn.Linear(1, hidden, bias=False)
        self.out = nn.Linear(hidden, 1)

    def forward(self, query: Tensor, key: Tensor, affinity: Tensor, age: Tensor, mask: Tensor) -> Tensor:
        """query [R, N, W], key [R, L, W], affinity [R, N, L], age [R, L] (about 0 to 1), mask [R, L] -> [R, N, W].

        Zero for a request without clicks.
        """
        fixed = (self.key(key) + self.age(age.unsqueeze(-1))).unsqueeze(1)
        pairs = self.product(query.unsqueeze(2) * key.unsqueeze(1))
        hidden = self.query(query).unsqueeze(2) + fixed + pairs + self.affinity(affinity.unsqueeze(-1))
        logits = self.out(nn.functional.relu(hidden)).squeeze(-1)
        logits = logits.masked_fill(~mask.unsqueeze(1), -1e4)
        weights = torch.softmax(logits, dim=-1) * mask.unsqueeze(1)
        return weights @ key


class IdEmbedding(nn.Module):
    """Embeddings of row numbers, where -1 is unknown.

    In training an id is hidden with probability `dropout`, so that the model does not lean on ids and the vector of the
    unknown is trained too.
    """

    def __init__(self, rows: int, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.table = nn.Embedding(rows + 1, width)
        nn.init.normal_(self.table.weight, std=0.05)

    def forward(self, rows: Tensor) -> Tensor:
        """int64[...] -> float32[..., width]."""
        index = rows + 1
        if self.training and self.dropout > 0:
            index = index * (torch.rand(index.shape) >= self.dropout)
        vectors: Tensor = self.table(index)
        return vectors


def tower(width: int, hidden: Sequence[int], dropout: float) -> nn.Sequential:
    """Fully connected layers with SiLU."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, size), nn.SiLU(), nn.Dropout(dropout)]
        width = size
    return nn.Sequential(*layers)


def save(folder: Path, network: nn.Module, config: Any) -> None:
    """Write weights and configuration. Equal weights give equal bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    save_file(state, folder / WEIGHTS)
    (folder / CONFIG).write_bytes(msgspec.json.format(msgspec.json.encode(config, order="sorted"), indent=1))


def load_config(folder: Path, kind: type[T]) -> T:
    """The configuration of a model. Raises BundleError that names the file."""
    path = folder / CONFIG
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise BundleError(f"{path}: {error}") from error


def load_weights(folder: Path, network: nn.Module) -> None:
    """Fill a network with the weights of a folder and make it ready to predict. Raises BundleError when they do not fit
    it or are not finite."""
    path = folder / WEIGHTS
    try:
        state = load_file(path)
        network.load_state_dict(state)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise BundleError(f"{path}: {error}") from error
    for name, tensor in state.items():
        if not bool(torch.isfinite(tensor).all()):
            raise BundleError(f"{path}: the weights {name!r} are not all finite")
    network.eval()
    network.requires_grad_(False)


def check_features(folder: Path, name: str, stored: Sequence[str], expected: Sequence[str]) -> None:
    """Raises BundleError unless the model was trained on the features that this code makes, in their order."""
    if tuple(stored) != tuple(expected):
        raise BundleError(f"{folder / CONFIG}: {name} is {list(stored)}, this version makes {list(expected)}")


def finite(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The scores, checked: inputs are clipped and weights checked at loading, so a score that is not finite is a fault.

    Raises FloatingPointError, which the predictor answers as an error and the stage with its fallback.
    """
    if not bool(np.isfinite(scores).all()):
        raise FloatingPointError(f"{int((~np.isfinite(scores)).sum())} of {scores.size} scores are not finite")
    return scores
