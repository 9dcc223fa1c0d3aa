"""The instance that the claims on compression draw: the model of :cite:t:`yu2023white`, tokens aside."""

import torch
from torch import Tensor

from ....metrics.coding import unit_norm
from ..problem import random_subspaces

N, D, K, P = 20, 24, 4, 6  # tokens, dimension, subspaces, their dimension; K P = D: complete
ROUNDING = 1e-9


def complete_instance(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens of norm one, and complete orthonormal subspaces."""
    bases = random_subspaces(K, D, P, generator=generator)
    return unit_norm(torch.randn(N, D, generator=generator, dtype=torch.float64)), bases
