"""Closed forms of the attention-SVM: instances whose max-margin solution is known exactly."""

import torch
from torch import Tensor

from transformer_theory.theories.attention_svm import Constraints, Instance


def two_tokens(generator: torch.Generator, dim: int = 5) -> tuple[Constraints, Tensor]:
    """One input of two tokens, x_a - x_t = u and query z: W = u z^T / (|u|^2 |z|^2), whatever the norm (it has rank one)."""
    u, z = torch.randn(2, dim, generator=generator, dtype=torch.float64)
    return Constraints(u[None], z[None]), torch.outer(u, z) / (u.square().sum() * z.square().sum())


def orthogonal_constraints(generator: torch.Generator, count: int = 4, dim: int = 6) -> tuple[Constraints, Tensor, Tensor]:
    """Orthonormal differences, and queries of any kind: the constraints are orthogonal and W = sum_c d_c z_c^T / |z_c|^2.

    Multipliers: 1 / |z_c|^2. All constraints are active.
    """
    d = torch.linalg.qr(torch.randn(dim, count, generator=generator, dtype=torch.float64))[0].T
    z = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    multipliers = 1 / z.square().sum(-1)
    return Constraints(d.contiguous(), z), (d * multipliers[:, None]).T @ z, multipliers


def published_picture(number: int) -> tuple[Instance, dict]:
    """The paper's two pictured examples in the plane (data as drawn there) with their solutions to the digits known.

    Norms of the Frobenius and nuclear solutions, the Frobenius solution, the tokens it selects, and the rank of the nuclear one.
    """
    generator = torch.Generator().manual_seed({1: 1, 2: 3}[number])
    torch.randn(2, generator=generator)  # the head is drawn first
    tokens = {1: 0.3, 2: 0.5}[number] * torch.randn(2, {1: 3, 2: 5}[number], 2, generator=generator)
    left = torch.tensor([-1.0, 0.0])
    if number == 1:
        tokens[0] += left
        tokens[1] -= left
        known = {"W": [[2.85369, -2.70294], [5.37124, 5.58053]], "frobenius": 8.68574, "nuclear": 9.754810, "rank": 1, "select": [0, 2]}
    else:
        tokens += left
        tokens[0, 0], tokens[1, 0] = torch.tensor([1.0, 0.5]), torch.tensor([1.0, -0.5])
        known = {
            "W": [[0.792552, -1.086473], [-0.633028, -0.347115]],
            "frobenius": 1.526360,
            "nuclear": 1.872604,
            "rank": 2,
            "select": [0, 0],
        }
    query = torch.nn.functional.normalize(torch.randn(2, 2, generator=generator), dim=-1)
    scores = torch.nn.functional.one_hot(torch.tensor(known["select"]), tokens.shape[1]).double()
    return Instance(tokens.double(), query.double(), scores), known
