"""User and item towers: both end in unit vectors, whose inner product is the relevance.

An item is the sum of an id embedding and of what its content says (categories, creator, age). The id part is left out
at random in training, so that an item that nobody has clicked yet can be embedded from its content alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from recgraph.errors import BundleError
from recgraph.features.assembly import LOG_FEATURES, USER_FEATURES
from recgraph.models.passes import Affine, softmax

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

_BLOCK = 65_536
_CLIP = 5.0


class TowerSizes(msgspec.Struct, frozen=True):
    """Shapes of both towers. Row 0 of `ids` and of `creators` is the unknown one, row 0 of `categories` none."""

    ids: int
    categories: int
    creators: int
    embedding: int = 32
    hidden: int = 128
    output: int = 64


@dataclass(frozen=True)
class ItemContent:
    """What the item tower is given, by item row.

    `id_row`, `creator` int64[N] (0 unknown); `categories` int64[M] with `offsets` int64[N + 1]; `age_days` f32[N] at
    the end of the training events, 0 for what was published later.
    """

    id_row: Ints
    creator: Ints
    categories: Ints
    offsets: Ints
    age_days: Floats

    def __len__(self) -> int:
        return len(self.id_row)

    def take(self, rows: Ints) -> ItemContent:
        """The content of some items."""
        lengths = self.offsets[rows + 1] - self.offsets[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        categories = self.categories[np.repeat(self.offsets[rows], lengths) + within]
        return ItemContent(self.id_row[rows], self.creator[rows], categories, offsets, self.age_days[rows])


class ItemTower(nn.Module):
    """Content and id to a unit vector."""

    def __init__(self, sizes: TowerSizes, id_dropout: float = 0.2) -> None:
        super().__init__()
        self.ids = nn.Embedding(sizes.ids, sizes.embedding, padding_idx=0)
        self.creators = nn.Embedding(sizes.creators, sizes.embedding, padding_idx=0)
        self.categories = nn.EmbeddingBag(sizes.categories, sizes.embedding, mode="mean", padding_idx=0)
        self.age = nn.Linear(2, sizes.embedding)
        self.head = nn.Sequential(
            nn.Linear(sizes.embedding, sizes.hidden), nn.ReLU(), nn.Linear(sizes.hidden, sizes.output)
        )
        self.id_dropout = id_dropout
        for table in (self.ids, self.creators, self.categories):
            nn.init.normal_(table.weight, std=0.1)
            with torch.no_grad():
                table.weight[0] = 0.0

    def base(self, content: ItemContent, generator: torch.Generator | None = None) -> Tensor:
        """f32[N, embedding]: what stands for an item in a user's history. With a generator, ids are dropped out."""
        ids = torch.from_numpy(content.id_row)
        if generator is not None:
            ids = ids * (torch.rand(len(ids), generator=generator) >= self.id_dropout)
        age = torch.log1p(torch.from_numpy(content.age_days))[:, None]
        categories = self.categories(torch.from_numpy(content.categories), torch.from_numpy(content.offsets[:-1]))
        total: Tensor = self.ids(ids) + self.creators(torch.from_numpy(content.creator)) + categories
        total = total + self.age(torch.cat([age / 6.0, torch.exp(-age)], dim=1))
        return total

    def vectors(self, base: Tensor) -> Tensor:
        """f32[N, output], unit length."""
        return functional.normalize(self.head(base), dim=1)


class UserTower(nn.Module):
    """Recent clicks and the user's values to a unit vector; without clicks, the values alone decide."""

    mean: Tensor
    std: Tensor
    is_log: Tensor

    def __init__(self, sizes: TowerSizes) -> None:
        super().__init__()
        self.recency = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2))
        width = 2 * sizes.embedding + len(USER_FEATURES) + 1
        self.head = nn.Sequential(nn.Linear(width, sizes.hidden), nn.ReLU(), nn.Linear(sizes.hidden, sizes.output))
        self.register_buffer("mean", torch.zeros(len(USER_FEATURES)))
        self.register_buffer("std", torch.ones(len(USER_FEATURES)))
        self.register_buffer("is_log", torch.tensor([name in LOG_FEATURES for name in USER_FEATURES]))

    def fit_scale(self, dense: Floats) -> None:
        """Take mean and deviation of the user's values from training rows f32[N, len(USER_FEATURES)]."""
        values = self._compressed(torch.from_numpy(dense)).numpy().astype(np.float64)
        known = np.isfinite(values)
        count = np.maximum(known.sum(axis=0), 1)
        filled = np.where(known, values, 0.0)
        mean = filled.sum(axis=0) / count
        std = np.sqrt((np.where(known, values - mean, 0.0) ** 2).sum(axis=0) / count)
        self.mean = torch.from_numpy(mean.astype(np.float32))
        self.std = torch.from_numpy(np.where(std > 1e-6, std, 1.0).astype(np.float32))

    def forward(self, clicks: Tensor, ages_s: Tensor, mask: Tensor, dense: Tensor) -> Tensor:
        """Unit vectors f32[B, output].

        `clicks` f32[B, L, embedding] newest first, `ages_s` f32[B, L], `mask` bool[B, L] (True where there is a
        click), `dense` f32[B, len(USER_FEATURES)] raw.
        """
        days = torch.log1p(ages_s / 86_400.0)
        place = torch.arange(ages_s.shape[1], dtype=torch.float32).expand_as(days)
        weights = self.recency(torch.stack([days, torch.log1p(place)], dim=2))
        weights = weights.masked_fill(~mask[:, :, None], -1e9).softmax(dim=1) * mask[:, :, None]
        pooled = torch.einsum("blh,ble->bhe", weights, clicks).flatten(1)
        some = mask.any(dim=1, keepdim=True).float()
        return functional.normalize(self.head(torch.cat([pooled, some, self.scaled(dense)], dim=1)), dim=1)

    def scaled(self, dense: Tensor) -> Tensor:
        """Values around 0; what is not known is 0, the mean."""
        values = (self._compressed(dense) - self.mean) / self.std
        return torch.nan_to_num(values, nan=0.0, posinf=_CLIP, neginf=-_CLIP).clamp(-_CLIP, _CLIP)

    def _compressed(self, dense: Tensor) -> Tensor:
        return torch.where(self.is_log, torch.log1p(dense.clamp(min=0.0)), dense)


class UserPass:
    """`UserTower` for one user in numpy."""

    def __init__(self, tower: UserTower) -> None:
        self._recency = [Affine(layer) for layer in tower.recency if isinstance(layer, nn.Linear)]
        self._head = [Affine(layer) for layer in tower.head if isinstance(layer, nn.Linear)]
        self._mean: Floats = tower.mean.numpy()
        self._std: Floats = tower.std.numpy()
        self._is_log: npt.NDArray[np.bool_] = tower.is_log.numpy()

    def __call__(self, clicks: Floats, ages_s: Floats, dense: Floats) -> Floats:
        """Unit vector f32[1, output] of `clicks` f32[L, embedding], `ages_s` f32[L] and `dense` f32[1, U]."""
        some = np.full((1, 1), len(clicks) > 0, np.float32)
        vector = _perceptron(self._head, np.concatenate([self._pooled(clicks, ages_s), some, self._scaled(dense)], 1))
        vector /= max(float(np.sqrt(np.square(vector).sum())), 1e-12)
        return vector

    def _pooled(self, clicks: Floats, ages_s: Floats) -> Floats:
        if not len(clicks):
            return np.zeros((1, 2 * clicks.shape[1]), np.float32)
        when = np.empty((len(clicks), 2), np.float32)
        when[:, 0], when[:, 1] = ages_s / np.float32(86_400.0), np.arange(len(clicks))
        weights = softmax(_perceptron(self._recency, np.log1p(when)), axis=0)
        pooled: Floats = weights.T @ clicks
        return pooled.reshape(1, -1)

    def _scaled(self, dense: Floats) -> Floats:
        values = np.where(self._is_log, np.log1p(np.maximum(dense, 0.0)), dense)
        values = (values - self._mean) / self._std
        values[np.isnan(values)] = 0.0
        clipped: Floats = np.minimum(np.maximum(values, -_CLIP), _CLIP)
        return clipped


def _perceptron(layers: list[Affine], values: Floats) -> Floats:
    """Two affine layers with ReLU between."""
    hidden = layers[0](values)
    return layers[1](np.maximum(hidden, 0.0, out=hidden))


class Towers(nn.Module):
    """Both towers, as they are trained and stored together."""

    def __init__(self, sizes: TowerSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.item = ItemTower(sizes)
        self.user = UserTower(sizes)

    @torch.inference_mode()
    def embed_items(self, content: ItemContent) -> Iterator[tuple[Floats, Floats]]:
        """(base f32[B, embedding], unit vectors f32[B, output]) of all items, block by block in their order."""
        for begin in range(0, len(content), _BLOCK):
            rows = np.arange(begin, min(begin + _BLOCK, len(content)))
            base = self.item.base(content.take(rows))
            yield base.numpy(), self.item.vectors(base).numpy()

    def save(self, folder: Path) -> None:
        """towers.safetensors and towers.json."""
        save_file(self.state_dict(), folder / "towers.safetensors")
        (folder / "towers.json").write_bytes(
            msgspec.json.encode({"sizes": self.sizes, "user_features": USER_FEATURES}, order="sorted")
        )

    @classmethod
    def load(cls, folder: Path) -> Towers:
        """Raises BundleError for towers that were trained on other user features than this program computes."""
        meta: dict[str, Any] = msgspec.json.decode((folder / "towers.json").read_bytes())
        if tuple(meta["user_features"]) != USER_FEATURES:
            raise BundleError(f"{folder / 'towers.json'}: made for other user features than this program's")
        towers = cls(msgspec.convert(meta["sizes"], TowerSizes))
        towers.load_state_dict(load_file(folder / "towers.safetensors"))
        return towers.eval()
