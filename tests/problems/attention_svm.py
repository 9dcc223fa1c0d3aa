"""Closed forms of the attention-SVM: instances whose max-margin solution is known exactly."""

import torch
from torch import Tensor

from transformer_theory.theories.attention_svm import Constraints, Instance, published


def two_tokens(generator: torch.Generator, dim: int = 5) -> tuple[Constraints, Tensor]:
    """One input of two tokens, x_a - x_t = u and query z: W = u z^T / (|u|^2 |z|^2), whatever the norm (it
    has rank one).
    """
    u, z = torch.randn(2, dim, generator=generator, dtype=torch.float64)
    return Constraints(u[None], z[None]), torch.outer(u, z) / (u.square().sum() * z.square().sum())


def orthogonal_constraints(
    generator: torch.Generator, count: int = 4, dim: int = 6
) -> tuple[Constraints, Tensor, Tensor]:
    """Orthonormal differences, and arbitrary queries: the constraints are orthogonal and W = sum_c d_c z_c^T
    / |z_c|^2.

    Multipliers: 1 / |z_c|^2. All constraints are active.
    """
    d = torch.linalg.qr(torch.randn(dim, count, generator=generator, dtype=torch.float64))[0].T
    z = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    multipliers = 1 / z.square().sum(-1)
    return Constraints(d.contiguous(), z), (d * multipliers[:, None]).T @ z, multipliers


# The paper's two pictured examples, to the digits known: the Frobenius solution, norms of the Frobenius and
# nuclear solutions, the rank of the latter, the selected tokens, and the cosine of W to the Frobenius
# solution after 2,000 steps of normalised descent from W = 0.
PICTURES = {
    1: {
        "W": [[2.85369, -2.70294], [5.37124, 5.58053]],
        "frobenius": 8.68574,
        "nuclear": 9.754810,
        "rank": 1,
        "select": [0, 2],
        "cosine": 0.99968,
    },
    2: {
        "W": [[0.792552, -1.086473], [-0.633028, -0.347115]],
        "frobenius": 1.526360,
        "nuclear": 1.872604,
        "rank": 2,
        "select": [0, 0],
        "cosine": 0.99995,
    },
}


def published_picture(number: int) -> tuple[Instance, dict]:
    """One of the pictured examples with the numbers known of it."""
    return published.published_picture(number), PICTURES[number]
