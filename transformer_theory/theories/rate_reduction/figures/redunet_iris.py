"""ReduNet on Fisher's iris: the rate reduction by layer, and accuracy on unseen samples, over random splits.

Source: :cite:t:`chan2022redunet`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ....core.experiment import setting
from ....metrics.coding import unit_norm
from ..problem import REDUNET
from .redunet_digits import ReduNetOnSplits


@dataclass(frozen=True)
class ReduNetIris(ReduNetOnSplits):
    """ReduNet on Fisher's iris: four measurements of each of 150 flowers, as directions. η = 0.1 as
    published; a random fifth is unseen.
    """

    training: int = setting(120, ge=30, help="training samples of 150; the rest are unseen")
    layers: int = setting(4000, ge=1, help="gradient steps")
    step: float = setting(0.1, gt=0, le=1e3, help="step size η")
    rank: int = setting(1, ge=1, help="dimension of the nearest subspaces")

    name = "rate_reduction.redunet_iris"
    sources = (REDUNET,)

    @classmethod
    def quick(cls) -> "ReduNetIris":
        """Returns a small version: two splits and 100 layers."""
        return cls(splits=2, layers=100)

    def data(self) -> tuple[Float[Tensor, "n d"], Int[Tensor, " n"]]:
        """Returns features ``[150, 4]`` of norm 1 and labels ``[150]``."""
        from sklearn.datasets import load_iris

        measurements, species = load_iris(return_X_y=True)
        return unit_norm(torch.from_numpy(measurements).double()), torch.from_numpy(species).long()
