r"""How good the Neumann series behind attention is, in closed form.

The exact compression needs (I + A)^-1 with A = beta W_k W_k^T; the papers put the first terms of sum_j (-A)^j in its place, I - A. With
M terms beyond the identity what is missing is, for every eigenvalue x of A, (-x)^(M+1) / (1 + x), so that with the spectral radius rho

    || (I + A)^-1 - sum_{j <= M} (-A)^j ||_2 = rho^(M+1) / (1 + rho).

It tends to zero with M if rho < 1 and grows without bound if rho > 1: there more terms make it worse, and one term is off by nearly rho,
where the inverse itself is at most 1. Layer-normalised tokens have rho of hundreds and more: the softmax is motivated by the series, not
an approximation by it.

Source: :cite:t:`yu2023white` (the series); the error is the geometric series. Notation: docs/notation.md.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ...models.crate.subspace_attention import Bases, Tokens, coordinates, expansion


def neumann_error(radius: float, *, terms: int = 1) -> float:
    r"""Closed form :math:`\rho^{M+1} / (1 + \rho)` of the spectral norm of the error, no unit.

    Args:
        radius: rho, the spectral radius of A.
        terms: M, those beyond the identity; 1 in the papers.
    Raises:
        ValueError: a negative radius or number of terms. Source: textbook (geometric series).
    """
    if not (radius >= 0 and terms >= 0):
        raise ValueError(f"radius and terms must be >= 0, got {radius} and {terms}")
    return radius ** (terms + 1) / (1 + radius)


def neumann_sum(A: Float[Tensor, "*batch n n"], *, terms: int = 1) -> Float[Tensor, "*batch n n"]:
    r"""The first terms :math:`\sum_{j \le M} (-A)^j` of the series of (I + A)^-1, ``[*batch, n, n]``. Source: textbook."""
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    total = eye.expand_as(A)
    for _ in range(terms):
        total = eye - A @ total
    return total


def gradient_error(tokens: Tokens, bases: Bases, *, eps: float, terms: int = 1) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    r"""Relative error of the gradient of R^c with the series in place of the inverse, and the spectral radius, each ``[*batch]``.

    The error is that of the heads' products :math:`(I + A_k)^{-1} W_k`, in the Frobenius norm over all heads. A direction of
    eigenvalue x is off by :math:`x^{M+1}` of itself, so the whole by at most :math:`\rho^{M+1}`.

    Args:
        tokens: Z, ``[*batch, n, d]``.
        bases: U_k, [K, d, p].
        eps: distortion (squared inside).
        terms: M.
    Raises:
        ValueError: shapes or dtypes do not fit, or ``eps`` is not positive and finite. Source: :cite:t:`yu2023white`.
    """
    coords = coordinates(tokens, bases)
    A = expansion(bases, n=tokens.shape[-2], eps=eps) * coords @ coords.mT
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    exact = torch.linalg.solve(eye + A, coords)
    error = neumann_sum(A, terms=terms) @ coords - exact
    relative = error.square().sum((-3, -2, -1)).sqrt() / exact.square().sum((-3, -2, -1)).sqrt()
    return relative, torch.linalg.matrix_norm(A, 2).amax(-1)
