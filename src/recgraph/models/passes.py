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

from recgraph.models.nn import CLIP, ClickAttention, CrossNetwork, IdEmbedding, Normalizer

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
        self.plain = np.flatnonzero(~normalizer.log.numpy())
        self.indicated: npt.NDArray[np.int64] = normalizer.indicated.numpy()
        self.width = normalizer.width

    def __call__(self, values: Floats) -> Floats:
        """float32[N, features] -> float32[N, features + indicators]."""
        scaled = np.log1p(np.abs(values))
        np.copysign(scaled, values, out=scaled)
        scaled[:, self.plain] = values[:, self.plain]
        scaled -= self.mean
        scaled /= self.std
        np.maximum(scaled, -CLIP, out=scaled)
        np.minimum(scaled, CLIP, out=scaled)
        missing = ~np.isfinite(values)
        scaled.ravel()[np.flatnonzero(missing)] = 0.0  # a tenth of the time of a masked copy
        return np.concatenate([scaled, missing[:, self.indicated]], axis=1, dtype=np.float32)


class Lookup:
    """`nn.IdEmbedding` in evaluation."""

    def __init__(self, embedding: IdEmbedding) -> None:
        self.table: Floats = embedding.table.weight.detach().numpy()

    def __call__(self, rows: npt.NDArray[np.int64]) -> Floats:
        """int64[N], -1 for the unknown -> float32[N, width]."""
        return np.take(self.table, rows + 1, axis=0)


class Cross:
    """`nn.CrossNetwork`."""

    def __init__(self, network: CrossNetwork) -> None:
        self.layers = [Affine(layer) for layer in network.layers if isinstance(layer, nn.Linear)]

    def __call__(self, start: Floats) -> Floats:
        """float32[N, width] -> the same shape."""
        value = start
        for layer in self.layers:
            product = layer(value)
            product *= start
            product += value
            value = product
        return value


class Attention:
    """`nn.ClickAttention` of one request, all of whose clicks are there."""

    def __init__(self, attention: ClickAttention) -> None:
        self.query, self.key = Affine(attention.query), Affine(attention.key)
        self.product: Floats = attention.product.weight.detach().numpy()
        self.affinity: Floats = attention.affinity.weight.detach().numpy()[:, 0]
        self.age: Floats = attention.age.weight.detach().numpy()[:, 0]
        self.out: Floats = attention.out.weight.detach().numpy()[0]

    def __call__(self, query: Floats, key: Floats, affinity: Floats, age: Floats) -> Floats:
        """query f32[N, W], key f32[L, W], affinity f32[N, L], age f32[L] -> f32[N, W]."""
        if not len(key):
            return np.zeros_like(query)
        hidden = self._hidden(query, key, age)
        # Few pairs are related: most of the affinities are zero.
        related = np.flatnonzero(affinity)
        hidden[related] += affinity.ravel()[related, None] * self.affinity
        np.maximum(hidden, 0.0, out=hidden)
        # The output's bias is the same for all clicks: a softmax does not see it.
        weights: Floats = softmax((hidden @ self.out).reshape(affinity.shape), axis=1)
        return weights @ key

    def _hidden(self, query: Floats, key: Floats, age: Floats) -> Floats:
        """What the hidden layer has of query, key, product and age, f32[N * L, hidden].

        The matrices of the query and of its product with a click are summed into one for that click, so that there is
        one multiplication per candidate and click, and no products of their vectors in memory.
        """
        matrices = self.product * key[:, None, :]
        matrices += self.query.matrix.T
        fixed = self.key(key) + age[:, None] * self.age + self.query.bias
        hidden = query @ matrices.reshape(-1, key.shape[1]).T
        hidden += fixed.ravel()
        return hidden.reshape(-1, len(self.out))


def silu(values: Floats) -> Floats:
    """x * sigmoid(x) = h + h * tanh(h) with h = x / 2, which cannot overflow. Writes over its argument."""
    values *= np.float32(0.5)
    out = np.tanh(values)
    out += np.float32(1.0)
    out *= values
    return out


def probability(logits: Floats, scale: float, offset: float) -> Floats:
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
