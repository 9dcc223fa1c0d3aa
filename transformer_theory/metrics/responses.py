"""Metrics that compare the outputs of a network with targets; for :func:`~transformer_theory.probes.respond.respond`.

The outputs are those of the whole network, ``[n, ...]``; the targets come from the caller. Each metric draws its own null by giving each
sequence the targets of another one.
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
    r"""Distance of the outputs y from the targets t, relative to the targets: :math:`\|y - t\| / \|t\|` over all sequences.

    0 if the network returns the targets: with the outputs on the original tokens as targets, 0 means that the change of the inputs does
    not matter. The null pairs each sequence with the target of the next one in its batch.
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
            raise ValueError(f"targets must have the shape of the outputs, {list(outputs.shape)}, got {list(targets.shape)}")
        y, t = outputs.double(), targets.double()
        parts = [(y - t).square().sum(), t.square().sum(), (y - t.roll(1, 0)).square().sum()]
        self.add((0,), torch.stack(parts).cpu())

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """One row."""
        if (0,) not in self.sums:
            return []
        distance, size, null = self.sums[(0,)].tolist()
        value, chance = ((x / size) ** 0.5 if size > 0 else float("nan") for x in (distance, null))
        row = network_row(CHANGE, value, "", reason="the targets are zero", side="<=")
        return [row if row.value is None else _with_null(row, chance)]


class PositionLoss(Metric):
    """Cross-entropy (nats) of the targets at each position, mean over sequences; the column ``head`` is empty, ``setting`` the position.

    Outputs ``[n, seq, vocabulary]``, targets ``[n, seq]`` of ids; negative targets are left out. The null pairs each sequence with the
    targets of the next one in its batch.

    Args:
        blocks: number of equal parts over whose positions the loss is averaged; None for every position.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("outputs",)

    def __init__(self, *, blocks: int | None = None):
        super().__init__()
        self.blocks = blocks

    def update(self, activations: Activations) -> None:
        """Adds one forward pass; passes without targets are skipped.

        Raises:
            ValueError: outputs are not ``[n, seq, vocabulary]`` of the targets ``[n, seq]``, or blocks do not divide the positions.
        """
        outputs, targets = activations.outputs, activations.targets
        if outputs is None or targets is None:
            return
        if outputs.ndim != 3 or targets.shape != outputs.shape[:2]:
            raise ValueError(
                f"outputs must be [n, seq, vocabulary] of targets [n, seq], got {list(outputs.shape)} and {list(targets.shape)}"
            )
        seq = targets.shape[1]
        if self.blocks is not None and seq % self.blocks:
            raise ValueError(f"blocks must divide the {seq} positions, got {self.blocks}")
        sums = [part for shift in (0, 1) for part in _losses(outputs, targets.roll(shift, 0), self.blocks or seq)]
        self.add((0,), torch.stack(sums).cpu())

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """One row per position or block."""
        if (0,) not in self.sums:
            return []
        loss, count, null, null_count = self.sums[(0,)]
        kind, rows = "position" if self.blocks is None else "block", []
        for number, (value, chance) in enumerate(zip((loss / count).tolist(), (null / null_count).tolist())):
            row = network_row(LOSS, value, "nats", reason="no target here", setting=f"{kind} {number}", side="<=")
            rows.append(row if row.value is None else _with_null(row, chance))
        return rows


def _losses(outputs: Tensor, targets: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
    """Sum of the losses and number of targets, ``[blocks]`` each."""
    valid = targets >= 0
    losses = cross_entropy(outputs.double().mT, targets.clamp(min=0).long(), reduction="none") * valid
    return losses.sum(0).view(blocks, -1).sum(1), valid.double().sum(0).view(blocks, -1).sum(1)


def _with_null(row: Measurement, chance: float) -> Measurement:
    return replace(row, null=Null(OTHERS, (chance,)))
