r"""The best denoiser of tokens that come from a mixture of subspaces, which looks like attention but is not attention over tokens.

A clean token is z_0 ~ N(0, U_k U_k^T) for one of K subspaces with orthonormal bases, all equally likely; observed is
z = z_0 + sigma w, w ~ N(0, I). The mean of z_0 given z, the best estimate in mean square, is

    E[z_0 | z] = 1/(1 + sigma^2) sum_k a_k U_k U_k^T z,      a = softmax_k( ||U_k^T z||^2 / (2 sigma^2 (1 + sigma^2)) ).

By Tweedie's formula it equals z + sigma^2 grad log p(z), p the density of z. The softmax runs over *subspaces*, for each token by itself;
in self-attention it runs over tokens, in each subspace by itself.

Source: :cite:t:`yu2023white` (attention as denoising). Notation: docs/notation.md.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ...models.crate.checks import positive
from ...models.crate.subspace_attention import Bases, Tokens, coordinates


def denoise(tokens: Tokens, bases: Bases, *, sigma: float) -> Tokens:
    r"""E[z_0 | z] of every token, ``[*batch, n, d]``.

    Args:
        tokens: z as rows, ``[*batch, n, d]``.
        bases: orthonormal U_k, [K, d, p].
        sigma: standard deviation of the noise in every direction.
    Raises:
        ValueError: shapes or dtypes do not fit, or ``sigma`` is not positive and finite. Source: :cite:t:`yu2023white`.
    """
    positive(sigma=sigma)
    coords = coordinates(tokens, bases)
    share = (coords.square().sum(-1) / (2 * sigma**2 * (1 + sigma**2))).softmax(-2)  # over the subspaces
    return (share.unsqueeze(-1) * coords @ bases.mT).sum(-3) / (1 + sigma**2)


def log_density(tokens: Tokens, bases: Bases, *, sigma: float) -> Float[Tensor, "*batch n"]:
    r"""log p(z) of noisy tokens, nats, ``[*batch, n]``: a mixture of N(0, U_k U_k^T + sigma^2 I) with equal weights.

    Arguments and errors as in :func:`denoise`.

    Raises:
        ValueError: see there. Source: textbook (Gaussian mixture).
    """
    positive(sigma=sigma)
    K, d, p = bases.shape
    inside = coordinates(tokens, bases).square().sum(-1)
    exponent = -0.5 * (tokens.square().sum(-1).unsqueeze(-2) - inside / (1 + sigma**2)) / sigma**2
    constant = -0.5 * (d * math.log(2 * math.pi) + 2 * (d - p) * math.log(sigma) + p * math.log(1 + sigma**2)) - math.log(K)
    return torch.logsumexp(exponent, dim=-2) + constant
