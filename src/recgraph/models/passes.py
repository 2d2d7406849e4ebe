"""Forward passes in numpy: what serving and evaluation run of the networks that torch trains.

A request is small, and a process that answers now and then finds neither its data nor its code in the CPU's caches. An
operation of torch then costs about 30 us before it computes anything, one of numpy a few. The passes read the weights
of the trained modules and give their numbers within the rounding of float32, which the tests hold. Threads are those
of numpy's BLAS (OMP_NUM_THREADS, set by whoever starts the process).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import nn

from recgraph.models.nn import CLIP, Normalizer

Floats = npt.NDArray[np.float32]


class Affine:
    """nn.Linear."""

    def __init__(self, layer: nn.Linear) -> None:
        self.matrix: Floats = layer.weight.detach().numpy().T
        self.bias: Floats | None = None if layer.bias is None else layer.bias.detach().numpy()

    def __call__(self, values: Floats) -> Floats:
        """float32[N, in] -> float32[N, out]."""
        out: Floats = values @ self.matrix
        if self.bias is not None:
            out += self.bias
        return out


class Tower:
    """`nn.tower` in evaluation: affine layers, each with SiLU."""

    def __init__(self, layers: nn.Sequential) -> None:
        self.layers = [Affine(layer) for layer in layers if isinstance(layer, nn.Linear)]

    def __call__(self, values: Floats) -> Floats:
        """float32[N, in] -> float32[N, out]."""
        for layer in self.layers:
            values = silu(layer(values))
        return values


class Standard:
    """`nn.Normalizer`."""

    def __init__(self, normalizer: Normalizer) -> None:
        self.mean: Floats = normalizer.mean.numpy()
        self.std: Floats = normalizer.std.numpy()
        self.log: npt.NDArray[np.bool_] = normalizer.log.numpy()
        self.indicated: npt.NDArray[np.int64] = normalizer.indicated.numpy()
        self.width = normalizer.width

    def __call__(self, *parts: Floats) -> Floats:
        """The features float32[N or 1, ...] of the parts side by side -> float32[N, features + indicators]."""
        out = np.empty((max(map(len, parts)), self.width), np.float32)
        scaled, at = out[:, : len(self.mean)], 0
        for part in parts:
            scaled[:, at : at + part.shape[1]] = part
            at += part.shape[1]
        known = np.isfinite(scaled)
        out[:, at:] = ~known[:, self.indicated]
        np.copyto(scaled, np.copysign(np.log1p(np.abs(scaled)), scaled), where=self.log)
        scaled -= self.mean
        scaled /= self.std
        np.maximum(scaled, -CLIP, out=scaled)
        np.minimum(scaled, CLIP, out=scaled)
        np.copyto(scaled, np.float32(0.0), where=~known)
        return out


def silu(values: Floats) -> Floats:
    """x * sigmoid(x); writes over nothing."""
    with np.errstate(over="ignore"):  # exp of a large number is inf, and x / inf the 0 that is meant
        below = np.exp(-values)
    below += np.float32(1.0)
    return np.divide(values, below, out=below)


def probability(logits: Floats, scale: Floats, offset: Floats) -> Floats:
    """sigmoid(scale * logits + offset)."""
    with np.errstate(over="ignore"):
        scores: Floats = np.float32(1.0) / (np.float32(1.0) + np.exp(-(scale * logits + offset)))
    return scores


def softmax(logits: Floats, axis: int) -> Floats:
    """Softmax, in the place of the logits. There is at least one."""
    logits -= logits.max(axis=axis, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=axis, keepdims=True)
    return logits
