r"""What both constructed networks share: how they grow layer by layer, and what is read off their layers.

A layer is made of the features that reach it. The features move along :math:`xE - \gamma_j xC_j`, j the class of x, and back to norm 1.

Source: :cite:t:`chan2022redunet`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Inexact, Int
from torch import Tensor

from .operators import operators


@dataclass(frozen=True)
class Growth:
    """What :func:`grow` leaves.

    Attributes:
        operators: E in front of the C_j of each layer, L + 1 of ``[k + 1, *frequencies, d, d]``.
        shares: γ_j = n_j / n, ``[k]``.
        rates: R and R^c before each step and at the end, ``[L + 1, 2]`` nats.
        rows: the features after the last step.
    """

    operators: tuple[Inexact[Tensor, "one_more *frequencies d d"], ...]
    shares: Float[Tensor, " k"]
    rates: Float[Tensor, "depth 2"]
    rows: Inexact[Tensor, "*frequencies n d"]


def grow(
    rows: Inexact[Tensor, "*frequencies n d"],
    sizes: Int[Tensor, " k"],
    *,
    steps: int,
    eps: float,
    step: float,
    unit_norm: Callable[[Tensor], Tensor],
    total: Callable[[Tensor], Tensor],
) -> Growth:
    r"""Makes the operators of the features, moves these along the gradient of ΔR, and again; the last operators move nothing.

    Args:
        rows: features of norm 1, sorted by class.
        sizes: n_j, each >= 1, ``[k]``.
        steps: L >= 0.
        eps: distortion ε; squared inside.
        step: η.
        unit_norm: takes features back to norm 1.
        total: rates of all frequencies together, from ``[k + 1, *frequencies]`` to ``[k + 1]``.
    Raises:
        ValueError: eps is so small that adding the identity is lost to rounding.
    Source: :cite:t:`chan2022redunet`. Training samples use their labels.
    """
    lengths = sizes.tolist()
    made, rates = _operators(rows, sizes, lengths, eps)
    shares = sizes.to(rates.dtype) / sum(lengths)
    shape = (-1, *[1] * (made.ndim - 1))
    built, curve = [made], [rates]
    for _ in range(steps):
        moves = made[0] - shares.view(shape) * made[1:]  # x E - γ_j x C_j is one product
        rows = unit_norm(rows + step * torch.cat([own @ move for own, move in zip(rows.split(lengths, -2), moves)], -2))
        made, rates = _operators(rows, sizes, lengths, eps)
        built.append(made)
        curve.append(rates)
    totals = torch.stack([total(each) for each in curve])
    return Growth(tuple(built), shares, torch.stack([totals[:, 0], totals[:, 1:] @ shares], 1), rows)


def _operators(rows: Tensor, sizes: Tensor, lengths: list[int], eps: float) -> tuple[Tensor, Tensor]:
    return operators(torch.stack([own.mH @ own for own in rows.split(lengths, -2)]), sizes, eps=eps)


@dataclass(frozen=True)
class Constructed(ABC):
    """A constructed network, whose last layer judges samples that went through the others.

    Attributes:
        layers: L + 1 of them, each with ``shares`` γ_j; the last one belongs to the final features and serves :meth:`predict` only.
        eps, step, sharpness: ε, η, λ.
        features: the training features after the last step, in the order they came, of norm 1.
        rates: R and R^c of the training features before each layer and at the end, ``[L + 1, 2]`` nats; ΔR is their difference. Where
            shifts count as samples, of all shifts.
    """

    layers: tuple[Any, ...]
    eps: float
    step: float
    sharpness: float
    features: Float[Tensor, "n *sample"]
    rates: Float[Tensor, "depth 2"]

    @abstractmethod
    def distances(self, transformed: Float[Tensor, "n *sample"]) -> Float[Tensor, "n k"]:
        """``||x C_j||`` of samples that went through the layers, by the last one."""

    @property
    def reductions(self) -> Float[Tensor, " depth"]:
        """ΔR before each layer and at the end, nats per sample (shifted sample, where shifts count as samples)."""
        return self.rates[:, 0] - self.rates[:, 1]

    def predict(self, transformed: Float[Tensor, "n *sample"]) -> Int[Tensor, " n"]:
        """Class of samples that went through the layers: the smallest ``||x C_j||`` of the last one."""
        return self.distances(transformed).argmin(-1)

    def predict_balanced(self, transformed: Float[Tensor, "n *sample"]) -> Int[Tensor, " n"]:
        """Class by the smallest ``γ_j ||x C_j||``, the same scale α for each class. The published rule of :meth:`predict` has the scale
        α / γ_j, which favours large classes where samples lie in no class's span: on few samples that can decide everything."""
        return (self.layers[-1].shares * self.distances(transformed)).argmin(-1)

    def probabilities(self, transformed: Float[Tensor, "n *sample"]) -> Float[Tensor, "n k"]:
        """The soft form of :meth:`predict`: ``softmax_j(-λ ||x C_j||)`` of the last layer."""
        return torch.softmax(-self.sharpness * self.distances(transformed), dim=-1)
