"""Metrics that compare the outputs of a network with targets, for use with
:func:`~transformer_theory.probes.respond.respond`.

Outputs and targets are ``[n, ...]``, for n sequences; the caller supplies the targets. For the null, each
sequence is compared with the targets of another sequence, which is one draw.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..core.measurement import Measurement, Null
from ..core.metric import ActivationKind, Activations, Metric
from .networks import network_row

CHANGE, LOSS = "relative change of the outputs", "loss at a position"
OTHERS = "targets of another sequence"


class OutputChange(Metric):
    r"""Distance of the outputs y from the targets t, relative to the targets: :math:`\|y - t\| / \|t\|` over
    all sequences.

    The distance is 0 if the network returns the targets. If the targets are the outputs for the original
    tokens, 0 means that the change of the inputs does not affect the outputs. The null pairs each sequence
    with the target of the previous sequence in its batch.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("outputs",)

    def update(self, activations: Activations) -> None:
        """Adds one forward pass; passes without targets are skipped.

        Raises:
            ValueError: outputs and targets differ in shape.
        """
        outputs, targets = activations.outputs, activations.targets
        if outputs is None or targets is None:
            return
        if outputs.shape != targets.shape:
            raise ValueError(
                f"targets must have the shape of the outputs, {list(outputs.shape)}, got "
                f"{list(targets.shape)}"
            )
        y, t = outputs.double(), targets.double()
        parts = [(y - t).square().sum(), t.square().sum(), (y - t.roll(1, 0)).square().sum()]
        self.add((0,), torch.stack(parts).cpu())

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns one row; none without targets."""
        if (0,) not in self.sums:
            return []
        distance, size, null = self.sums[(0,)].tolist()
        value, chance = ((x / size) ** 0.5 if size > 0 else float("nan") for x in (distance, null))
        row = network_row(CHANGE, value, "", reason="the targets are zero", side="<=")
        return [row if row.value is None or not draws else _with_null(row, chance)]


class PositionLoss(Metric):
    """Mean cross-entropy of the targets over sequences, in nats, at each position. The column ``setting``
    names the position.

    Outputs are ``[n, seq, vocabulary]`` and targets ids ``[n, seq]``; negative ids are ignored. The null
    pairs each sequence with the targets of the previous sequence in its batch.

    Args:
        blocks: number of equal blocks into which the positions are divided; the loss is averaged over each.
            None: one row per position.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("outputs",)

    def __init__(self, *, blocks: int | None = None):
        super().__init__()
        self.blocks = blocks

    def update(self, activations: Activations) -> None:
        """Adds one forward pass; passes without targets are skipped.

        Raises:
            ValueError: outputs and targets do not have the shapes ``[n, seq, vocabulary]`` and ``[n, seq]``,
                or ``blocks`` does not divide the number of positions.
        """
        outputs, targets = activations.outputs, activations.targets
        if outputs is None or targets is None:
            return
        if outputs.ndim != 3 or targets.shape != outputs.shape[:2]:
            raise ValueError(
                f"outputs must be [n, seq, vocabulary] for targets [n, seq], got {list(outputs.shape)} and "
                f"{list(targets.shape)}"
            )
        seq = targets.shape[1]
        if self.blocks is not None and seq % self.blocks:
            raise ValueError(f"blocks must divide the {seq} positions, got {self.blocks}")
        # A shift of 1 pairs each sequence with the targets of the previous one.
        sums = [
            part for shift in (0, 1) for part in _losses(outputs, targets.roll(shift, 0), self.blocks or seq)
        ]
        self.add((0,), torch.stack(sums).cpu())

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns one row per position or block; none without targets."""
        if (0,) not in self.sums:
            return []
        loss, count, null, null_count = self.sums[(0,)]
        kind, rows = "position" if self.blocks is None else "block", []
        for index, (value, chance) in enumerate(zip((loss / count).tolist(), (null / null_count).tolist())):
            reason = "the loss is not finite" if float(count[index]) else f"no targets at this {kind}"
            row = network_row(LOSS, value, "nats", reason=reason, at={kind: index}, side="<=")
            rows.append(row if row.value is None or not draws else _with_null(row, chance))
        return rows


def _losses(outputs: Tensor, targets: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
    """Returns the sum of the losses and the number of targets in each block, ``[blocks]`` each."""
    valid = targets >= 0
    losses = cross_entropy(outputs.double().mT, targets.clamp(min=0).long(), reduction="none") * valid
    return losses.sum(0).view(blocks, -1).sum(1), valid.double().sum(0).view(blocks, -1).sum(1)


def _with_null(row: Measurement, chance: float) -> Measurement:
    """Adds a null of one draw to a row."""
    return replace(row, nulls=(Null(OTHERS, (chance,)),))
