"""Inputs on which an intervention is measured, and the measures of their outputs.

A measure gives each sequence a number m: whether the class is right, its cross-entropy, the mean
cross-entropy of its next ids, how much lower it is late than early in the sequence, or the share of largest
outputs that stay.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from ..core.statistics import clopper_pearson, student_interval
from .passes import Inputs, count, selected

ACCURACY, LOSS, NEXT, AGREEMENT = "accuracy", "loss", "next-token loss", "agreement of outputs"
IN_CONTEXT = "in-context score"


@dataclass(frozen=True)
class Measure:
    """What an intervention changes: a number for each sequence.

    Attributes:
        name: name of the measure.
        of: ``(outputs, targets, largest unchanged outputs) -> [n]``.
        better: whether larger numbers are better (1) or smaller ones (-1).
        chance: mean of a constant output; None if there is no such number.
    """

    name: str
    of: Callable[[Tensor, Tensor | None, Tensor], Float[Tensor, " n"]]
    better: Literal[1, -1] = 1
    chance: float | None = None

    @property
    def is_share(self) -> bool:
        """Whether the mean is a share."""
        return self.name in (ACCURACY, AGREEMENT)


@dataclass(frozen=True)
class Sample:
    """Inputs on which an intervention is measured, with what their outputs are compared with.

    Attributes:
        inputs: tensors ``[n, ...]``.
        targets: class of each sequence, ``[n]``, or next id of each token, ``[n, seq]``; negative where none
            is scored. None: outputs are compared with those of the unchanged network.
        batch: number of sequences per forward pass.
        numbers: number of each sequence among all that are scored, ``[n]``. None: its place.
    """

    inputs: Inputs
    targets: Tensor | None
    batch: int
    numbers: Int[Tensor, " n"] | None = None

    def __len__(self) -> int:
        return count(self.inputs)

    def part(self, which: Int[Tensor, " chosen"]) -> "Sample":
        """Returns some of the sequences."""
        targets = None if self.targets is None else self.targets[which]
        numbers = None if self.numbers is None else self.numbers[which]
        return Sample(selected(self.inputs, which), targets, self.batch, numbers)

    def measures(self) -> tuple[Measure, ...]:
        """Returns the measures: accuracy and loss, next-token loss, with the in-context score where first and
        last quarters are scored, or the agreement of outputs.
        """
        if self.targets is None:
            return (Measure(AGREEMENT, _agreement),)
        known = self.targets[self.targets >= 0]
        shares = torch.bincount(known.flatten()).double() / max(1, known.numel())
        entropy = float(torch.special.entr(shares).sum())
        if self.targets.ndim > 1:
            following = Measure(NEXT, _next_loss, -1, entropy)
            scored = [(part >= 0).any(1).all() for part in _quarters(self.targets)]
            # without a difference between early and late ids nothing is learnt in context
            return (following, Measure(IN_CONTEXT, _in_context, -1, 0.0)) if all(scored) else (following,)
        return (
            Measure(ACCURACY, _right, 1, float(shares.max())),
            Measure(LOSS, _class_loss, -1, entropy),
        )


def _right(outputs: Tensor, targets: Tensor | None, unchanged: Tensor) -> Float[Tensor, " n"]:
    """Returns 1 for each sequence ``[n]`` whose largest output is its class, otherwise 0."""
    assert targets is not None
    return (outputs.argmax(-1) == targets).double()


def _class_loss(outputs: Tensor, targets: Tensor | None, unchanged: Tensor) -> Float[Tensor, " n"]:
    """Returns the cross-entropy of each sequence, in nats."""
    assert targets is not None
    return functional.cross_entropy(outputs.double(), targets, reduction="none")


def _next_loss(outputs: Tensor, targets: Tensor | None, unchanged: Tensor) -> Float[Tensor, " n"]:
    """Returns the mean cross-entropy of the scored next ids of each sequence, in nats."""
    assert targets is not None
    scored = targets >= 0
    losses = functional.cross_entropy(
        outputs.float().flatten(0, 1), targets.clamp_min(0).flatten(), reduction="none"
    ).view(targets.shape)
    return (losses.double() * scored).sum(1) / scored.sum(1).clamp_min(1)


def _quarters(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the first and the last quarter of sequences ``[n, seq, ...]``."""
    size = x.shape[1] // 4
    return x[:, :size], x[:, x.shape[1] - size :]


def _in_context(outputs: Tensor, targets: Tensor | None, unchanged: Tensor) -> Float[Tensor, " n"]:
    """Returns the mean cross-entropy in the last quarter of each sequence less that in the first, in nats."""
    assert targets is not None
    early, late = (_next_loss(*part, unchanged) for part in zip(_quarters(outputs), _quarters(targets)))
    return late - early


def _agreement(outputs: Tensor, targets: Tensor | None, unchanged: Tensor) -> Float[Tensor, " n"]:
    """Returns the share of the largest outputs of each sequence that stay."""
    same = outputs.argmax(-1) == unchanged
    return same.double().flatten(1).mean(1) if same.ndim > 1 else same.double()


def at_chance(measure: Measure, values: Float[Tensor, " n"]) -> bool:
    """Returns whether the mean of a measure of the unchanged network is not better than that of a constant
    output: whether its 95 % interval reaches the latter.
    """
    if measure.chance is None:
        return False
    if measure.name == ACCURACY:
        low, _ = clopper_pearson(int(values.sum()), len(values))
        return float(low) <= measure.chance
    interval = student_interval(values.tolist())
    return interval is None or interval[1] >= measure.chance
