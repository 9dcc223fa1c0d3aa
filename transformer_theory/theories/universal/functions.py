r"""Random smooth sequence-to-sequence functions, the targets of claims and figures.

.. math:: f(x)_j = \tfrac{1}{\sqrt M} \sum_m a_m \sin\big(b_m^\top x_j + c_m^\top \textstyle\sum_i w_i x_i +
    \phi_m + \psi_{mj}\big)

Every value depends on the whole sequence. With equal weights w_i and without the phases :math:`\psi_{mj}` the
function is permutation-equivariant. The theorem: :cite:t:`yun2020transformers`.
"""

import math

import torch

from ...core.validation import integers
from .approximator import Function

FEATURES = 6  # M
FREQUENCY = 3.0  # standard deviation of the entries of b and c


def random_function(generator: torch.Generator, *, n: int, d: int = 1, equivariant: bool = False) -> Function:
    """Draws a smooth function ``[points, n, d] -> [points, n, d]``.

    Args:
        generator: draws its coefficients.
        n, d: number and dimension of the tokens.
        equivariant: whether the function commutes with permutations of the tokens.
    Raises:
        ValueError: a size is below 1.
        TypeError: ``generator`` is none.
    """
    integers(n=n, d=d)
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator must be a torch.Generator, got {type(generator).__name__}; pass "
            "torch.Generator().manual_seed(0)"
        )
    a, b, c = (torch.randn(FEATURES, d, generator=generator, dtype=torch.float64) for _ in range(3))
    phase = 2 * math.pi * torch.rand(FEATURES, generator=generator, dtype=torch.float64)
    weights = torch.ones(n, dtype=torch.float64)
    shifts = torch.zeros(FEATURES, n, dtype=torch.float64)
    if not equivariant:
        weights = 0.5 + torch.rand(n, generator=generator, dtype=torch.float64)
        shifts = 2 * math.pi * torch.rand(FEATURES, n, generator=generator, dtype=torch.float64)

    def f(x: torch.Tensor) -> torch.Tensor:
        total = (x * weights[:, None]).sum(-2, keepdim=True)  # [points, 1, d]
        angles = FREQUENCY * (x @ b.T + total @ c.T / n) + phase + shifts.T  # [points, n, features]
        return torch.sin(angles) @ a / math.sqrt(FEATURES)

    return f
