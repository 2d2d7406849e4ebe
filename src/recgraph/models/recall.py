"""Recall: from a user's clicks and values to candidates, by nearest vectors and by item-to-item neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from recgraph.bundle import Bundle, IdMap
from recgraph.models.base import StageModel, Tensors, text_list
from recgraph.models.index import ItemIndex
from recgraph.models.item_to_item import ItemToItem
from recgraph.models.towers import Towers, UserPass

Floats = npt.NDArray[np.float32]

VECTORS = "vectors.npy"
BASES = "bases.npy"


def item_vectors(bundle: Bundle) -> Floats:
    """Unit vectors of all items by row, f32[N, D], memory-mapped; zero rows do not occur."""
    return np.asarray(np.load(bundle.stage_dir("recall") / VECTORS, mmap_mode="r"))


@dataclass(frozen=True)
class RecallModel:
    """Everything recall needs of a bundle. `bases` f32[N, E] stand for items in a user's history."""

    bundle_version: str
    ids: IdMap
    towers: Towers
    bases: Floats
    index: ItemIndex
    item_to_item: ItemToItem

    @classmethod
    def open(cls, folder: Path, ids: IdMap, version: str, threads: int) -> RecallModel:
        """Load from the `recall` folder of a bundle, also of one that is still being built."""
        vectors = np.asarray(np.load(folder / VECTORS, mmap_mode="r"))
        return cls(
            bundle_version=version,
            ids=ids,
            towers=Towers.load(folder),
            bases=np.asarray(np.load(folder / BASES, mmap_mode="r")),
            index=ItemIndex.load(folder, vectors, threads=threads),
            item_to_item=ItemToItem.load(folder),
        )

    def predict(self, inputs: Tensors) -> Tensors:
        """Candidates of one user, best first.

        In: `clicks_id` object[L] newest first, `clicks_age_s` f32[L], `user_dense` f32[1, U], `ann_k` and `i2i_k`
        int32[1]. Out: `ann_id` object[K], `ann_score` f32[K], `i2i_id`, `i2i_score`, `user_embedding` f32[1, D].
        Clicks of unknown items count for nothing.
        """
        history = self.ids.rows(text_list(inputs["clicks_id"]))
        ages = inputs["clicks_age_s"].astype(np.float32, copy=False)
        user = self.embed(history, ages, inputs["user_dense"])
        ann_scores, ann_rows = self._nearest(user, int(inputs["ann_k"][0]))
        i2i_rows, i2i_scores = self.item_to_item.recall(history, ages, int(inputs["i2i_k"][0]))
        return {
            "ann_id": self.ids.texts(ann_rows),
            "ann_score": ann_scores,
            "i2i_id": self.ids.texts(i2i_rows),
            "i2i_score": i2i_scores,
            "user_embedding": user,
        }

    @cached_property
    def _user(self) -> UserPass:
        return UserPass(self.towers.user)

    def embed(self, history: npt.NDArray[np.int64], ages_s: Floats, user_dense: Floats) -> Floats:
        """The user's unit vector, f32[1, D]; `history` holds item rows, -1 for unknown ones."""
        known = history >= 0
        return self._user(np.take(self.bases, history[known], axis=0), ages_s[known], user_dense)

    def _nearest(self, user: Floats, k: int) -> tuple[Floats, npt.NDArray[np.int64]]:
        if k <= 0:
            return np.zeros(0, np.float32), np.zeros(0, np.int64)
        scores, rows = self.index.search(user, k)
        return scores[0], rows[0]


def load(bundle: Bundle, *, threads: int) -> StageModel:
    """The recall model of a bundle; `threads` are FAISS's in one search."""
    return RecallModel.open(bundle.stage_dir("recall"), bundle.item_ids, bundle.version, threads)
