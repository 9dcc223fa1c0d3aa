r"""Attention and MLP trained together on a hierarchy of latents, and what happens inside: recovery, stable rank, entropy.

One class is one sequence, so a batch of B draws is the C sequences with the numbers of their draws as weights: the same gradient in
distribution at the cost of C sequences. Adam with the decay added to the gradient, constant learning rate, no clipping.
Source: :cite:t:`tian2024joma`, Table 1 (and its released code, for the settings).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from ...metrics.geometry import stable_rank
from ...models.embedding import build
from ...training.descent import descend, within
from .hierarchy import Hierarchy
from .recovery import recovery
from .stack import Stack

Curves = Float[Tensor, "t layers"]
FASTEST = 1e6  # learning rate: beyond it Adam's own arithmetic may overflow


@dataclass(frozen=True, eq=False)
class Learning:
    """A training and what was read of it; layers from the lowest, as many as there are latent layers and one for the classes.

    Attributes:
        model: at the end.
        steps: of the readings, the first is 0.
        loss: cross-entropy over all classes, nats, ``[t]``.
        recovered: of the latents of each layer by the units of the same layer, ``[t, layers]``.
        rank: stable rank of each MLP's lower layer, ``[t, layers]``.
        entropy: of the attention of the last position, mean over classes, nats, ``[t, layers]``.
        before, after: largest activation over positions, of each layer, ``[classes, width]``, before training and after.
    """

    model: Stack
    steps: tuple[int, ...]
    loss: Float[Tensor, " t"]
    recovered: Curves
    rank: Curves
    entropy: Curves
    before: tuple[Float[Tensor, "classes width"], ...]
    after: tuple[Float[Tensor, "classes width"], ...]


def learn(
    hierarchy: Hierarchy,
    generator: torch.Generator,
    *,
    steps: int,
    rate: float,
    length: int = 30,
    batch: int = 128,
    decay: float = 1e-4,
    dim: int = 1024,
    width: int = 400,
    at: Iterable[int] = (),
) -> Learning:
    """Trains a stack with a layer for each layer of latents and one for the classes.

    Args:
        hierarchy: what the sequences are made from.
        generator: initial weights and batches.
        steps, rate, batch, decay: of Adam.
        length: L of the sequences.
        dim, width: of the stack.
        at: steps to read after; 0 and the last are always read.
    Raises:
        ValueError: a class is longer than ``length``, ``at`` lies outside the run, or a setting is out of range.
        NotConverged: the loss, or a weight at the end, is not finite.
    Source: :cite:t:`tian2024joma`, Table 1.
    """
    stops = within(at, steps)
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    if not 0 < rate <= FASTEST:
        raise ValueError(f"rate must lie in (0, {FASTEST:.0e}], got {rate:g}; 1e-3 is a usual one")
    ids, latents, C = hierarchy.sequences(length), hierarchy.activity()[1:], hierarchy.classes
    sizes = {"vocabulary": hierarchy.vocabulary, "classes": C, "dim": dim, "width": width, "depth": len(latents)}
    model = build(lambda: Stack(**sizes), generator)
    assert isinstance(model, Stack)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=decay)
    marks, readings, seen = sorted({0, steps} | stops), [], {}

    def read(step: int) -> None:
        if step not in marks:
            return
        readings.append(_read(model, ids, latents))
        seen["before" if step == 0 else "after"] = readings[-1].activations

    def loss_of(shares: Tensor) -> Tensor:
        return shares @ functional.cross_entropy(model(ids), torch.arange(C), reduction="none")

    constant = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1.0)
    descend(
        model, loss_of, _batches(C, batch, generator), steps=steps, optimiser=optimiser, schedule=constant, generator=generator, after=read
    )
    loss, recovered, rank, entropy = (
        torch.stack([getattr(reading, name) for reading in readings]) for name in ("loss", "recovered", "rank", "entropy")
    )
    return Learning(model, tuple(marks), loss, recovered, rank, entropy, seen["before"], seen["after"])


@dataclass(frozen=True, eq=False)
class _Reading:
    loss: Tensor
    recovered: Tensor
    rank: Tensor
    entropy: Tensor
    activations: tuple[Tensor, ...]


@torch.no_grad()
def _read(model: Stack, ids: Tensor, latents: tuple[Bool[Tensor, "classes _"], ...]) -> _Reading:
    logits, inside = model.look_inside(ids)
    activations = tuple(layer.hidden.amax(1) for layer in inside)
    return _Reading(
        functional.cross_entropy(logits, torch.arange(len(ids))),
        torch.stack([recovery(h, active) for h, active in zip(activations, latents)]),
        torch.stack([stable_rank(layer.lower.weight.double()) for layer in model.layers]),  # pyright: ignore
        torch.stack([layer.entropy.mean() for layer in inside]),
        activations,
    )


def _batches(classes: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Shares of the classes among ``size`` draws, for ever."""
    while True:
        yield torch.bincount(torch.randint(classes, (size,), generator=generator), minlength=classes) / size
