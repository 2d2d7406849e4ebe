"""Fitting: it learns the order, corrects for sampling, calibrates, and gives the same bytes again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recgraph.training.fit import FitConfig, fit, logistic, reproducible
from recgraph.training.samples import Samples

CONFIG = FitConfig(epochs=10, batch=32, learning_rate=0.1)


class Linear(nn.Module):
    """The smallest ranking network."""

    scale: Tensor
    offset: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("offset", torch.zeros(()))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Logits [R, N]."""
        logits: Tensor = self.layer(self.dropout(batch["values"])).squeeze(-1)
        return logits


def samples(requests: int = 300, width: int = 12) -> Samples:
    """The first value decides, the second is noise; the last third of every list is padding."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(requests, width, 3)).astype(np.float32)
    real = width * 2 // 3
    label = np.zeros((requests, width), np.float32)
    label[np.arange(requests), values[:, :real, 0].argmax(axis=1)] = 1.0
    weight = np.zeros((requests, width), np.float32)
    weight[:, real:] = -np.inf
    values[:, real:, 0] = 50.0
    return Samples({"values": values}, label, weight)


def trained(seed: int) -> Linear:
    with reproducible(seed, 1):
        network = Linear()
        fit(network, samples(), CONFIG, clicks={}, seed=seed)
    return network


def test_it_learns_the_order_and_ignores_padding() -> None:
    weight = trained(0).layer.weight[0].detach()
    assert float(weight[0]) > 1.0
    assert float(weight[0]) > 5 * float(weight[1:].abs().max())


def test_the_same_seed_gives_the_same_weights() -> None:
    first, second, other = trained(0), trained(0), trained(1)
    assert torch.equal(first.layer.weight, second.layer.weight)
    assert float(first.scale) == float(second.scale)
    assert not torch.equal(first.layer.weight, other.layer.weight)


def test_probabilities_have_the_right_mean() -> None:
    network, data = trained(0), samples()
    logits = network({"values": torch.from_numpy(data.arrays["values"])})
    chance = torch.sigmoid(network.scale * logits + network.offset).detach().numpy()
    real = np.isfinite(data.log_weight)
    assert float(chance[real].mean()) == pytest.approx(float(data.label[real].mean()), rel=0.02)


def test_logistic_regression_finds_the_true_line() -> None:
    rng = np.random.default_rng(0)
    value = rng.normal(size=20_000)
    label = (rng.random(20_000) < 1 / (1 + np.exp(-(1.5 * value - 3.0)))).astype(np.float32)
    slope, offset = logistic(value, label, np.ones(20_000))
    assert slope == pytest.approx(1.5, abs=0.1)
    assert offset == pytest.approx(-3.0, abs=0.1)


def test_a_sampled_negative_counts_for_those_it_stands_for() -> None:
    rng = np.random.default_rng(0)
    value = rng.normal(size=20_000)
    label = (rng.random(20_000) < 1 / (1 + np.exp(-(value - 2.0)))).astype(np.float32)
    kept = (label > 0) | (rng.random(20_000) < 0.25)
    weight = np.where(label > 0, 1.0, 4.0)[kept]
    _, offset = logistic(value[kept], label[kept], weight)
    assert offset == pytest.approx(-2.0, abs=0.15)


def test_torch_is_left_as_it_was() -> None:
    threads = torch.get_num_threads()
    with reproducible(0, threads + 1):
        assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
