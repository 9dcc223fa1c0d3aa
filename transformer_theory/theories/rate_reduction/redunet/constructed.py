"""What both constructed networks read off their layers: the rate reduction by layer, and the class of new samples.

Source: :cite:t:`chan2022redunet`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Constructed(ABC):
    """A network whose last layer judges samples that went through the others.

    Attributes:
        layers: L + 1 of them, each with ``shares`` γ_j.
        sharpness: λ.
        rates: R and R^c of the training features before each layer and at the end, ``[L + 1, 2]`` nats.
    """

    layers: Sequence[Any]
    sharpness: float
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
