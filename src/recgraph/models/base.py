"""What every predictor runs: tensors in, tensors out."""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt

Tensors = dict[str, npt.NDArray[Any]]
"""Tensors by name: float32, int64, int32, or object arrays of bytes (ids and text in UTF-8)."""


class StageModel(Protocol):
    """The model of one stage, as a predictor holds it. `predict` may be called from several threads at once."""

    @property
    def bundle_version(self) -> str:
        """The version of the bundle that the model came with."""
        ...

    def predict(self, inputs: Tensors) -> Tensors:
        """One forward pass for the whole batch."""
        ...


def text_list(values: npt.NDArray[Any]) -> list[bytes]:
    """An object array of ids as a list of bytes; str is encoded, so that plain numpy callers work too."""
    texts: list[bytes] = values.tolist()
    if set(map(type, texts)) <= {bytes}:
        return texts
    return [value if isinstance(value, bytes) else str(value).encode() for value in texts]
