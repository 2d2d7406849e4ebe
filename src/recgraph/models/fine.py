"""Fine rank: a deep CTR model over ids, dense features and the recent clicks; one forward pass for all candidates.

DCN-v2's cross network and a tower side by side over the same input: the normalised dense features, the embeddings of
item, category and creator, how often the candidate was clicked by those who clicked what this user clicked, and DIN's
attention over the click sequence.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from recgraph.bundle import Bundle, IdMap
from recgraph.features.assembly import ITEM_FEATURES, LOG_FEATURES, MAX_CLICKS, USER_FEATURES
from recgraph.models.base import Tensors, text_list
from recgraph.models.nn import (
    ClickAttention,
    CrossNetwork,
    IdEmbedding,
    Normalizer,
    check_features,
    finite,
    load_config,
    load_weights,
    save,
    tower,
)
from recgraph.models.pairs import PAIR_FEATURES, PairTable
from recgraph.models.passes import Affine, Attention, Cross, Floats, Lookup, Standard, Tower, probability

STAGE = "fine"
CLICK_AXES = {"click": 0, "click_category": 0, "click_age": 0, "click_mask": 0, "affinity": 1}
"""Encoded arrays with a dimension of the user's clicks, and which one it is."""
_AGE_SCALE = 1.0 / np.log1p(90 * 86400.0)
"""Brings log(1 + seconds) of a click's age to about 0..1."""


class FineConfig(msgspec.Struct, frozen=True):
    """Shape of the network, and what it was trained on. Sizes of vocabularies are numbers of rows."""

    items: int
    categories: int
    creators: int
    indicators: int
    embedding: int = 16
    cross_layers: int = 3
    hidden: tuple[int, ...] = (256, 128, 64)
    attention_hidden: int = 16
    dropout: float = 0.1
    id_dropout: float = 0.95
    """High, since ids mostly remember what was popular in the training period. NDCG@20 on MovieTweetings: 0.166 with
    0.3, 0.177 without ids, 0.178 with 0.95 (live popularity 0.168)."""
    item_features: tuple[str, ...] = ITEM_FEATURES
    user_features: tuple[str, ...] = USER_FEATURES
    pair_features: tuple[str, ...] = PAIR_FEATURES


class FineNetwork(nn.Module):
    """Logits of R requests with N candidates each. `scale` and `offset` make the logit's sigmoid a probability."""

    scale: Tensor
    offset: Tensor

    def __init__(self, config: FineConfig, dense: Normalizer | None = None) -> None:
        super().__init__()
        width = config.embedding
        features = len(config.item_features) + len(config.user_features) + len(config.pair_features)
        self.dense = dense or Normalizer(features, config.indicators)
        self.item = IdEmbedding(config.items, width, config.id_dropout)
        self.category = IdEmbedding(config.categories, width, 0.0)
        self.creator = IdEmbedding(config.creators, width, config.id_dropout)
        self.attention = ClickAttention(2 * width, config.attention_hidden)
        total = self.dense.width + 7 * width
        self.cross = CrossNetwork(total, config.cross_layers)
        self.tower = tower(total, config.hidden, config.dropout)
        self.out = nn.Linear(total + config.hidden[-1], 1)
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("offset", torch.zeros(()))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Tensors as `FineEncoder.encode` makes them, with a leading dimension R -> float32[R, N]."""
        item, category = self.item(batch["item"]), self.category(batch["category"])
        query = torch.cat([item, category], dim=-1)
        key = torch.cat([self.item(batch["click"]), self.category(batch["click_category"])], dim=-1)
        interest = self.attention(query, key, batch["affinity"], batch["click_age"], batch["click_mask"])
        user = batch["user_dense"].expand(-1, item.shape[1], -1)
        dense = self.dense(torch.cat([batch["item_dense"], user, batch["pair_dense"]], dim=-1))
        start = torch.cat([dense, query, self.creator(batch["creator"]), interest, interest * query], dim=-1)
        logits: Tensor = self.out(torch.cat([self.cross(start), self.tower(start)], dim=-1))
        return logits.squeeze(-1)


class FinePass:
    """`FineNetwork` for one request in numpy."""

    def __init__(self, network: FineNetwork) -> None:
        self._dense, self._attention = Standard(network.dense), Attention(network.attention)
        self._item, self._category, self._creator = map(Lookup, (network.item, network.category, network.creator))
        self._cross, self._tower, self._out = Cross(network.cross), Tower(network.tower), Affine(network.out)
        self._scale, self._offset = float(network.scale), float(network.offset)

    def __call__(self, one: Tensors) -> Floats:
        """Probabilities of a click f32[N] of the arrays that `FineEncoder.encode` makes."""
        query = np.concatenate([self._item(one["item"]), self._category(one["category"])], axis=1)
        key = np.concatenate([self._item(one["click"]), self._category(one["click_category"])], axis=1)
        interest = self._attention(query, key, one["affinity"], one["click_age"])
        user = np.broadcast_to(one["user_dense"], (len(query), one["user_dense"].shape[1]))
        dense = self._dense(np.concatenate([one["item_dense"], user, one["pair_dense"]], axis=1))
        start = np.concatenate([dense, query, self._creator(one["creator"]), interest, interest * query], axis=1)
        logits = self._out(np.concatenate([self._cross(start), self._tower(start)], axis=1))[:, 0]
        return probability(logits, self._scale, self._offset)


def log_mask() -> npt.NDArray[np.bool_]:
    """Which columns of the network's dense input are heavy-tailed."""
    names = (*ITEM_FEATURES, *USER_FEATURES, *PAIR_FEATURES)
    return np.array([name in LOG_FEATURES for name in names])


class FineEncoder:
    """From the stage's tensors to row numbers and pair features: everything but the network."""

    def __init__(self, items: IdMap, categories: IdMap, creators: IdMap, pairs: PairTable) -> None:
        self._items = items
        self._categories = categories
        self._creators = creators
        self._pairs = pairs

    def encode(self, inputs: Tensors, pairs: PairTable | None = None) -> Tensors:
        """Arrays of one request: rows int64[N] or [L], dense float32, of the clicks at most MAX_CLICKS.

        `pairs` stands in for the table of the bundle where a past moment is asked for.
        """
        item = self._items.rows(text_list(inputs["item_id"]))
        click = self._items.rows(text_list(inputs["clicks_id"][:MAX_CLICKS]))
        pair_dense, affinity = (pairs or self._pairs).features(item, click)
        ages = np.nan_to_num(np.maximum(inputs["clicks_age_s"][:MAX_CLICKS], 0.0), posinf=0.0)
        return {
            "item": item,
            "category": self._categories.rows(text_list(inputs["category"])),
            "creator": self._creators.rows(text_list(inputs["creator"])),
            "item_dense": inputs["item_dense"],
            "user_dense": inputs["user_dense"],
            "pair_dense": pair_dense,
            "affinity": affinity,
            "click": click,
            "click_category": self._categories.rows(text_list(inputs["clicks_category"][:MAX_CLICKS])),
            "click_age": (np.log1p(ages) * _AGE_SCALE).astype(np.float32),
            "click_mask": np.ones(len(click), bool),
        }


class FineModel:
    """The fine stage's model: `score` is the probability of a click, float32[N], always finite."""

    def __init__(self, encoder: FineEncoder, network: FineNetwork, bundle_version: str) -> None:
        self.bundle_version = bundle_version
        self._encoder = encoder
        self._pass = FinePass(network)

    def predict(self, inputs: Tensors) -> Tensors:
        """One forward pass over what `assembly.fine_inputs` makes. Thread-safe."""
        if len(inputs["item_id"]) == 0:
            return {"score": np.empty(0, np.float32)}
        return {"score": finite(self.score(self.encode(inputs)))}

    def encode(self, inputs: Tensors) -> Tensors:
        """The part before the network: ids to rows, and the pairs."""
        return self._encoder.encode(inputs)

    def score(self, encoded: Tensors) -> Floats:
        """Probabilities of one encoded request, float32[N]."""
        return self._pass(encoded)


def write(folder: Path, network: FineNetwork, config: FineConfig, pairs: PairTable) -> None:
    """Write network and table of pairs. The vocabularies `categories` and `creators` are there already."""
    save(folder, network, config)
    pairs.save(folder / "pairs")


def load(bundle: Bundle, *, threads: int) -> FineModel:
    """The fine model of a bundle. Raises BundleError when it is damaged or made for other features.

    `threads` is recall's, whose FAISS heeds them: a pass in numpy takes those of its BLAS.
    """
    return load_folder(bundle.stage_dir(STAGE), bundle.item_ids, bundle.version)


def load_folder(folder: Path, items: IdMap, version: str) -> FineModel:
    """As `load`, from the stage's folder, also before the bundle is complete."""
    config = load_config(folder, FineConfig)
    check_features(folder, "item_features", config.item_features, ITEM_FEATURES)
    check_features(folder, "user_features", config.user_features, USER_FEATURES)
    check_features(folder, "pair_features", config.pair_features, PAIR_FEATURES)
    network = FineNetwork(config)
    load_weights(folder, network)
    encoder = FineEncoder(
        items, IdMap.open(folder / "categories"), IdMap.open(folder / "creators"), PairTable.load(folder / "pairs")
    )
    return FineModel(encoder, network, version)
