r"""Two derivations of attention: a truncated Neumann series of the gradient, and the best denoiser of a
mixture of subspaces.

**Neumann series.** Exact compression needs (I + A)^-1 with A = beta W_k W_k^T; the papers truncate the series
sum_j (-A)^j to I - A. With M terms after the identity the error is (-x)^(M+1) / (1 + x) for every eigenvalue
x of A, so with the spectral radius rho

    || (I + A)^-1 - sum_{j <= M} (-A)^j ||_2 = rho^(M+1) / (1 + rho).

It tends to zero as M grows if rho < 1 and diverges if rho > 1. For layer-normalised tokens rho is in the
hundreds and more, so the series motivates the softmax, but softmax attention does not approximate the
gradient there.

**Denoising.** A clean token is z_0 ~ N(0, U_k U_k^T) for one of K equally likely subspaces with orthonormal
bases; the observed token is z = z_0 + sigma w, w ~ N(0, I). The estimate of least mean squared error is

    E[z_0 | z] = 1/(1 + sigma^2) sum_k a_k U_k U_k^T z,
        a = softmax_k( ||U_k^T z||^2 / (2 sigma^2 (1 + sigma^2)) ),

which by Tweedie's formula equals z + sigma^2 grad log p(z). Its softmax runs over *subspaces*, for each token
separately; the softmax of self-attention runs over tokens, in each subspace separately.

Source: :cite:t:`yu2023white`; the error is that of the geometric series. Notation: docs/notation.md.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.validation import converted, in_range, integers, positive
from ...metrics.coding.memberships import check_eps, ordinary_scale
from ...models.crate.compression import Bases, Tokens, coordinates, expansion


@in_range
def neumann_error(radius: float, *, terms: int = 1) -> float:
    r"""Returns :math:`\rho^{M+1} / (1 + \rho)`, the spectral norm of the error (no unit).

    Args:
        radius: rho, the spectral radius of A.
        terms: M, number of terms after the identity; 1 in the papers.
    Raises:
        ValueError: the radius is negative or not finite, or the number of terms is negative; or the power
            exceeds the largest number.
    """
    integers(minimum=0, terms=terms)
    if not 0 <= radius < math.inf:
        raise ValueError(f"radius must be a finite number >= 0, got {radius}")
    return radius ** (terms + 1) / (1 + radius)


@converted(floats=("A",))
def neumann_sum(A: Float[Tensor, "*batch n n"], *, terms: int = 1) -> Float[Tensor, "*batch n n"]:
    r"""Returns the partial sum :math:`\sum_{j \le M} (-A)^j` of the series of (I + A)^-1, ``[*batch,
    n, n]``.
    """
    integers(minimum=0, terms=terms)
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    total = eye.expand_as(A)
    for _ in range(terms):
        total = eye - A @ total  # Horner's scheme: I - A (I - A (...)), one product per term
    return total


@converted(floats=("tokens", "bases"))
def spectral_radii(tokens: Tokens, bases: Bases, *, eps: float) -> Float[Tensor, "*batch"]:
    r"""Returns the largest eigenvalue of :math:`\beta W_k W_k^\top` over the heads, ``[*batch]``; below 1 the
    Neumann series converges.

    Args:
        tokens: Z, ``[*batch, n, d]``.
        bases: U_k, [K, d, p].
        eps: distortion (squared inside).
    Raises:
        ValueError: shapes or dtypes do not fit, or ``eps`` is not positive and finite.
    """
    positive(eps=eps)
    tokens, eps, _ = ordinary_scale(tokens, eps)
    beta = expansion(bases, n=tokens.shape[-2], eps=eps)
    # The eigenvalues of W_k W_k^T are the squared singular values of W_k.
    return beta * torch.linalg.matrix_norm(coordinates(tokens, bases), 2).amax(-1) ** 2


@in_range
@converted(floats=("tokens", "bases"))
def gradient_error(
    tokens: Tokens, bases: Bases, *, eps: float, terms: int = 1
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    r"""Returns the relative error of the gradient of R^c if the series replaces the inverse, and the spectral
    radius, each ``[*batch]``.

    The error of the products :math:`(I + A_k)^{-1} W_k` is measured in the Frobenius norm over all heads,
    from the singular values of W_k: the error of the series is :math:`(-A)^{M+1} (I + A)^{-1}`.
    Along an eigenvector of eigenvalue x the relative error is :math:`x^{M+1}`, so in total it is at most
    :math:`\rho^{M+1}`.

    Args:
        tokens: Z, ``[*batch, n, d]``.
        bases: U_k, [K, d, p].
        eps: distortion (squared inside).
        terms: M, number of terms after the identity.
    Raises:
        ValueError: shapes or dtypes do not fit, ``eps`` is not positive and finite, or a sequence is zero or
            not finite.
    """
    positive(eps=eps)
    check_eps(eps)
    integers(minimum=0, terms=terms)
    radius = spectral_radii(tokens, bases, eps=eps)
    scaled, distortion, _ = ordinary_scale(tokens, eps)
    # Squares of small and large eigenvalues leave the range of float32.
    singular = torch.linalg.svdvals(coordinates(scaled.double(), bases.double()))
    x = expansion(bases, n=tokens.shape[-2], eps=distortion) * singular.square()
    exact = singular / (1 + x)
    error = x ** (terms + 1) * exact
    relative = (error.square().sum((-2, -1)) / exact.square().sum((-2, -1))).sqrt()
    return relative.to(tokens.dtype), radius


@converted(floats=("tokens", "bases"))
def denoise(tokens: Tokens, bases: Bases, *, sigma: float) -> Tokens:
    r"""Returns E[z_0 | z] of every token, ``[*batch, n, d]``.

    Args:
        tokens: z as rows, ``[*batch, n, d]``.
        bases: orthonormal U_k, [K, d, p].
        sigma: standard deviation of the noise in every direction.
    Raises:
        ValueError: shapes or dtypes do not fit, or ``sigma`` is not positive and finite.
    """
    positive(sigma=sigma)
    coords = coordinates(tokens, bases)
    # over the subspaces, for each token
    weights = (coords.square().sum(-1) / (2 * sigma**2 * (1 + sigma**2))).softmax(-2)
    return (weights.unsqueeze(-1) * coords @ bases.mT).sum(-3) / (1 + sigma**2)


@converted(floats=("tokens", "bases"))
def log_density(tokens: Tokens, bases: Bases, *, sigma: float) -> Float[Tensor, "*batch n"]:
    r"""Returns log p(z) of noisy tokens, nats, ``[*batch, n]``, for a mixture of N(0, U_k U_k^T + sigma^2 I)
    with equal weights.

    Raises:
        ValueError: as in :func:`denoise`.
    """
    positive(sigma=sigma)
    # The covariance has the eigenvalue 1 + sigma^2 inside the subspace and sigma^2 outside, so ||z||^2 and
    # ||U_k^T z||^2 are enough: z^T (U U^T + sigma^2 I)^-1 z = (||z||^2 - ||U^T z||^2 / (1 + sigma^2)) /
    # sigma^2.
    K, d, p = bases.shape
    inside = coordinates(tokens, bases).square().sum(-1)
    exponent = -0.5 * (tokens.square().sum(-1).unsqueeze(-2) - inside / (1 + sigma**2)) / sigma**2
    constant = -0.5 * (
        d * math.log(2 * math.pi) + 2 * (d - p) * math.log(sigma) + p * math.log(1 + sigma**2)
    ) - math.log(K)
    return torch.logsumexp(exponent, dim=-2) + constant
