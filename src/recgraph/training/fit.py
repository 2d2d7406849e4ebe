"""Fitting a ranking network on whole lists, the same way on every run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from recgraph.training.samples import Samples

AtLeast1 = Annotated[int, msgspec.Meta(ge=1)]
AtLeast0 = Annotated[int, msgspec.Meta(ge=0)]
Above0 = Annotated[float, msgspec.Meta(gt=0.0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0.0)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
"""Types of what can be configured: `read_config` refuses what is outside."""

_HIDDEN = -1e4
_NEWTON_STEPS = 50


@dataclass(frozen=True)
class FitConfig:
    """How long and how fast to learn. `batch` is in requests."""

    epochs: AtLeast1 = 6
    batch: AtLeast1 = 64
    learning_rate: Above0 = 4e-3
    weight_decay: NotNegative = 1e-2
    clip: Above0 = 1.0


@contextmanager
def reproducible(seed: int, threads: int) -> Iterator[None]:
    """Equal results for an equal seed and an equal number of threads; torch's settings are put back afterwards."""
    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.set_num_threads(before[1])


def fit(network: nn.Module, samples: Samples, config: FitConfig, *, clicks: dict[str, int], seed: int) -> None:
    """Learn to put the clicked candidates of every list first, then fit scale and offset to probabilities.

    `network` gives logits of [R, N] candidates, whose sigmoid after its `scale` and `offset` is a probability.
    The loss is the softmax cross-entropy over a request's candidates, every request counting the same; each negative
    stands for as many as its chance to be chosen says (log-Q correction). `clicks` is `SampleBuilder.click_axes`.
    """
    useful = np.flatnonzero((samples.label > 0).any(axis=1))
    rng = np.random.default_rng(seed)
    steps = config.epochs * -(-len(useful) // config.batch)
    optimizer = torch.optim.AdamW(network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, config.learning_rate, total_steps=max(steps, 2))
    network.train()
    for _ in range(config.epochs):
        for rows in _batches(useful, samples, config.batch, rng):
            loss = _loss(network(batch_of(samples, rows, clicks)), samples, rows)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), config.clip)
            optimizer.step()
            schedule.step()
    network.eval()
    calibrate(network, samples, config.batch, clicks)


def batch_of(samples: Samples, rows: npt.NDArray[np.int64], clicks: dict[str, int]) -> dict[str, Tensor]:
    """The arrays of some requests as tensors, with the click dimension cut to the longest among them."""
    longest = int(samples.arrays["click_mask"][rows].sum(axis=1).max()) if "click_mask" in samples.arrays else 0
    batch = {}
    for name, values in samples.arrays.items():
        part = values[rows]
        axis = clicks.get(name)
        if axis is not None:
            part = part[:, :longest] if axis == 0 else part[:, :, :longest]
        batch[name] = torch.from_numpy(np.ascontiguousarray(part))
    return batch


def calibrate(network: Any, samples: Samples, batch: int, clicks: dict[str, int]) -> None:
    """Platt scaling: the weighted logistic regression of the labels on the logits, by Newton's method.

    The order is kept: a slope that is not positive (a model that learned nothing) leaves the logits as they are.
    """
    rows = np.arange(len(samples))
    with torch.inference_mode():
        parts = [network(batch_of(samples, part, clicks)) for part in np.array_split(rows, -(-len(rows) // batch))]
    logits = torch.cat(parts).numpy().astype(np.float64)
    valid = np.isfinite(samples.log_weight)
    slope, offset = logistic(logits[valid], samples.label[valid], np.exp(samples.log_weight[valid].astype(np.float64)))
    if slope > 0:
        network.scale.fill_(slope)
        network.offset.fill_(offset)


def logistic(
    value: npt.NDArray[np.float64], label: npt.NDArray[np.float32], weight: npt.NDArray[np.float64]
) -> tuple[float, float]:
    """Slope and offset of the weighted logistic regression with one input, with a slight pull towards 0."""
    design = np.stack([value, np.ones_like(value)], axis=1)
    beta = np.zeros(2)
    for _ in range(_NEWTON_STEPS):
        chance = 1.0 / (1.0 + np.exp(-np.clip(design @ beta, -30.0, 30.0)))
        gradient = design.T @ (weight * (chance - label)) + 1e-3 * beta
        curvature = (design * (weight * chance * (1.0 - chance))[:, None]).T @ design + 1e-3 * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        beta -= np.clip(step, -2.0, 2.0)
        if float(np.abs(step).max()) < 1e-8:
            break
    return float(beta[0]), float(beta[1])


def _batches(
    rows: npt.NDArray[np.int64], samples: Samples, batch: int, rng: np.random.Generator
) -> Iterator[npt.NDArray[np.int64]]:
    """Random batches of requests with click sequences of about equal length, so that little is padding."""
    shuffled = rng.permutation(rows)
    mask = samples.arrays.get("click_mask")
    if mask is not None:
        lengths = mask.sum(axis=1)
        pieces = [
            piece[np.argsort(lengths[piece], kind="stable")]
            for piece in np.array_split(shuffled, max(1, len(shuffled) // (8 * batch)))
        ]
        shuffled = np.concatenate(pieces)
    starts = np.arange(0, len(shuffled), batch)
    for start in rng.permutation(starts).tolist():
        yield shuffled[start : start + batch]


def _loss(logits: Tensor, samples: Samples, rows: npt.NDArray[np.int64]) -> Tensor:
    weight = torch.from_numpy(samples.log_weight[rows])
    label = torch.from_numpy(samples.label[rows])
    corrected = torch.where(torch.isfinite(weight), logits + weight, torch.full_like(logits, _HIDDEN))
    each = -(torch.log_softmax(corrected, dim=1) * label).sum(dim=1) / label.sum(dim=1)
    return each.mean()
