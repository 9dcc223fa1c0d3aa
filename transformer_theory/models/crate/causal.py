r"""Compression of sequences: what token i becomes depends on tokens 1 ... i alone.

The rate of a sequence is the sum of what each token adds to the rate of those before it,

    R^c(Z; U_[K]) = sum_i r_i,     r_i = 1/2 sum_k log(1 + beta w_i^T (I_p + beta S_{i-1})^-1 w_i),     S_i = sum_{j <= i} w_j w_j^T,

with w_i = U_k^T z_i. The causal exact step lets each token descend its own term, whose gradient needs only a prefix sum:

    grad_{z_i} r_i = beta sum_k U_k (I_p + beta S_i)^-1 w_i,      z_i+ = z_i - kappa grad_{z_i} r_i.

The causal paper form masks the softmax, sum_{j <= i}. In both beta = p / (N eps^2) counts N = ``context`` tokens, the longest sequence
there will be, and not the length of this one, on which the past must not depend. The last of N tokens moves as in the usual exact step.
The causal :math:`\mathrm{TSSA}` stands in :mod:`.tssa`; sparsification is token by token and needs no causal form.

Source: :cite:t:`yu2023white` (the rate); the chain rule of the log-determinant is derived here. Notation: docs/notation.md.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from .checks import positive, same_kind
from .subspace_attention import Bases, Tokens, coordinates, expansion, factor, resolved, subspace_attention


def added_rates(tokens: Tokens, bases: Bases, *, eps: float, context: int) -> Float[Tensor, "*batch n"]:
    r"""r_i, what each token adds to the rate of the tokens before it, nats, ``[*batch, n]``; they sum to R^c if ``context`` is n.

    Args:
        tokens: Z, ``[*batch, n, d]``.
        bases: U_k, [K, d, p].
        eps: distortion (squared inside).
        context: N, the tokens that beta counts.
    Raises:
        ValueError: shapes or dtypes do not fit, the sequence exceeds the context, or ``eps`` is not positive and finite.
            Source: :cite:t:`yu2023white`.
    """
    check_length(tokens, context)
    same_kind(tokens=tokens, bases=bases)
    beta = expansion(bases, n=context, eps=eps)
    prefix = factor(_prefixes(coordinates(tokens.double(), bases.double()), beta))  # what late tokens add is a difference of long sums
    rates = prefix.diagonal(dim1=-2, dim2=-1).log().sum(-1).sum(-2)  # [*batch, n]: halves of the log-determinants, over the heads
    return torch.cat([rates[..., :1], rates.diff(dim=-1)], dim=-1).to(tokens.dtype)


def causal_rate_gradient(tokens: Tokens, bases: Bases, *, eps: float, context: int) -> Tokens:
    r"""Gradient of every token's own term r_i with respect to that token, ``[*batch, n, d]``; n p x p Cholesky factors a head.

    Arguments and errors as in :func:`added_rates`.

    Raises:
        ValueError: see there, or tokens are so large that adding the identity is lost to rounding. Source: :cite:t:`yu2023white`.
    """
    check_length(tokens, context)
    beta = expansion(bases, n=context, eps=eps)
    with torch.autocast(tokens.device.type, enabled=False):
        coords, frames = resolved(tokens, bases, beta=beta)
        solved = torch.cholesky_solve(coords.unsqueeze(-1), factor(_prefixes(coords, beta))).squeeze(-1)
        return (beta * (solved @ frames.mT).sum(-3)).to(tokens.dtype)


def causal_exact_step(tokens: Tokens, bases: Bases, *, kappa: float, eps: float, context: int) -> Tokens:
    r"""Every token descends what it adds to the rate, :math:`z_i - \kappa \nabla_{z_i} r_i`, ``[*batch, n, d]``.

    Raises:
        ValueError: as :func:`causal_rate_gradient`, or ``kappa`` is not positive and finite. Source: :cite:t:`yu2023white`.
    """
    positive(kappa=kappa)
    return tokens - kappa * causal_rate_gradient(tokens, bases, eps=eps, context=context)


def causal_paper_step(tokens: Tokens, bases: Bases, *, kappa: float, eps: float, context: int) -> Tokens:
    r"""The paper's step with a causal mask, :math:`(1 - \kappa\beta) Z + \kappa\beta\,\mathrm{MSSA}(Z)`, ``[*batch, n, d]``.

    Raises:
        ValueError: as :func:`added_rates`, or ``kappa`` is not positive and finite. Source: :cite:t:`yu2023white`.
    """
    positive(kappa=kappa)
    check_length(tokens, context)
    beta = expansion(bases, n=context, eps=eps)
    heads = subspace_attention(coordinates(tokens, bases), scale=1.0, is_causal=True)
    return (1 - kappa * beta) * tokens + kappa * beta**2 * (heads @ bases.mT).sum(-3)


def causal_released_step(tokens: Tokens, bases: Bases, output: Float[Tensor, "K p d"], bias: Float[Tensor, " d"] | float = 0.0) -> Tokens:
    r"""The released form with a causal mask, :math:`Z + \sum_k \mathrm{softmax}(W_k W_k^\top / \sqrt p) W_k V_k + b`, ``[*batch, n, d]``.

    Raises:
        ValueError: shapes or dtypes do not fit. Source: :cite:t:`yu2023white`, released code (the language model, not the classifiers).
    """
    heads = subspace_attention(coordinates(tokens, bases), scale=bases.shape[-1] ** -0.5, is_causal=True)
    return tokens + (heads @ output).sum(-3) + bias


def _prefixes(coords: Tensor, beta: float) -> Float[Tensor, "*batch K n p p"]:
    """I + beta S_i of every head and token."""
    sums = (coords.unsqueeze(-1) * coords.unsqueeze(-2)).cumsum(-3)
    return torch.eye(coords.shape[-1], dtype=coords.dtype, device=coords.device) + beta * sums


def check_length(tokens: Tokens, context: int) -> None:
    """A sequence ``[*batch, n, d]`` must not be longer than what beta counts. Source: textbook.

    Raises:
        ValueError: it is.
    """
    if tokens.shape[-2] > context:
        raise ValueError(f"context must count at least the tokens of a sequence, {tokens.shape[-2]}, got {context}; pass a longer one")
