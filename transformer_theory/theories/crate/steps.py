r"""Compression as steps on tokens: exact, paper, released and token statistics, each with a causal form, and
the rates that they lower.

Z is n x d (rows are tokens), U_k is d x p, W_k = Z U_k, and beta = p / (n eps^2). Compression lowers

    R^c(Z; U_[K]) = 1/2 sum_k logdet(I_n + beta W_k W_k^T),
        grad R^c = beta sum_k (I_n + beta W_k W_k^T)^-1 W_k U_k^T.

The papers replace the inverse by the first terms of its Neumann series, I - beta W_k W_k^T, then sum_k U_k
U_k^T by I, and the Gram matrix by its softmax. The result is attention with one matrix for query, key and
value:

    SSA_k(Z) = softmax(W_k W_k^T) W_k,      MSSA(Z) = beta sum_k SSA_k(Z) U_k^T,
    exact form        Z+ = Z - kappa grad R^c(Z)
    paper form        Z+ = (1 - kappa beta) Z + kappa beta MSSA(Z)
    released form     Z+ = Z + [SSA_1 ... SSA_K] V + b,  scores divided by sqrt(p), V free
    token statistics  Z+ = Z - kappa grad B(Z; U, Pi),  B an upper bound of the rate at soft memberships Pi

The Neumann series converges only if beta ||W_k||_2^2 < 1. For layer-normalised tokens this number is larger
by orders of magnitude, so the paper form is motivated by the gradient but does not approximate it. The causal
forms and the formulas of the gradients and of B are in :mod:`transformer_theory.models.crate.compression`.

Sources: :cite:t:`yu2023white` and its released code, :cite:t:`wu2025token`. Notation: docs/notation.md.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.validation import converted, in_range, integers, positive, same_dtype
from ...maths.linalg import logdet_identity_plus
from ...metrics.coding.memberships import ordinary_scale
from ...models.attention import tied_attention
from ...models.crate.compression import (
    Bases,
    Memberships,
    Temperature,
    Tokens,
    causal_rate_gradient,
    check_length,
    cholesky,
    coordinates,
    expansion,
    group_sizes,
    memberships,
    prefix_matrices,
    rate_gradient,
    shrinkage,
)

Output = Float[Tensor, "K p d"]


def _check_factor(name: str, factor: float, tokens: Tensor) -> None:
    """Checks that a factor of tokens is a normal number in their precision.

    Raises:
        ValueError: the factor is not positive, or would become zero or infinite.
    """
    limits = torch.finfo(tokens.dtype)
    if not limits.tiny <= factor <= limits.max:
        raise ValueError(
            f"{name} must be positive and in the range of {str(tokens.dtype).removeprefix('torch.')}, got "
            f"{factor:.3g}; rescale the tokens, or pass float64"
        )


@in_range
@converted(floats=("bases",))
def lipschitz(bases: Bases, *, n: int, eps: float) -> float:
    r"""Returns L = beta ||sum_k U_k U_k^T||_2, a Lipschitz constant of the gradient of R^c (no unit).

    The function :math:`\tfrac12 \log(1 + \beta\sigma^2)` has the slope :math:`\beta\sigma/(1+\beta\sigma^2)`
    and a second derivative in :math:`[-\beta/8, \beta]`, so a spectral function of it has a
    :math:`\beta`-Lipschitz gradient. Composition with :math:`U_k^\top` and the sum over k give L. Hence a
    step of kappa lowers R^c by at least :math:`\kappa (1 - \kappa L / 2) \|\nabla R^c\|^2`.

    Raises:
        ValueError: n is below 1, or ``eps`` is not positive and finite.
    """
    integers(n=n)
    # sum_k U_k U_k^T = U U^T with U = [U_1 ... U_K], d x Kp, and ||U U^T|| = ||U||^2.
    concatenated = bases.transpose(0, 1).flatten(1)
    return expansion(bases, n=n, eps=eps) * float(torch.linalg.matrix_norm(concatenated, 2)) ** 2


@in_range
@converted(floats=("tokens", "bases"))
def exact_step(tokens: Tokens, bases: Bases, *, kappa: float, eps: float) -> Tokens:
    r"""Takes a gradient step on the rate, :math:`Z - \kappa \nabla R^c(Z; U_{[K]})`, ``[*batch, n, d]``.

    It lowers R^c for every :math:`0 < \kappa < 2 / L`, see :func:`lipschitz`.

    Args:
        tokens: Z, ``[*batch, n, d]``.
        bases: U_k, [K, d, p].
        kappa: step size.
        eps: distortion (squared inside).
    Raises:
        ValueError: shapes or dtypes do not fit, or ``kappa`` or ``eps`` is not positive and finite.
    """
    positive(kappa=kappa)
    _check_factor("kappa", kappa, tokens)
    return tokens - kappa * rate_gradient(tokens, bases, eps=eps)


@in_range
@converted(floats=("tokens", "bases"))
def mssa(tokens: Tokens, bases: Bases, *, eps: float, scale: float = 1.0) -> Tokens:
    r"""Returns MSSA(Z) = beta sum_k softmax(scale W_k W_k^T) W_k U_k^T, including the factor beta, ``[*batch,
    n, d]``.

    Args:
        tokens, bases, eps: as in :func:`exact_step`.
        scale: factor of the scores: 1 in the paper, 1/sqrt(p) in the released code.
    Raises:
        ValueError: shapes or dtypes do not fit, or ``eps`` is not positive and finite.
    """
    heads = tied_attention(coordinates(tokens, bases), scale=scale)
    beta = expansion(bases, n=tokens.shape[-2], eps=eps)
    _check_factor("beta = p / (n eps^2)", beta, tokens)
    return beta * (heads @ bases.mT).sum(-3)


@in_range
@converted(floats=("tokens", "bases"))
def paper_step(tokens: Tokens, bases: Bases, *, kappa: float, eps: float) -> Tokens:
    r"""Takes the paper's compression step, :math:`(1 - \kappa\beta) Z + \kappa\beta\,\mathrm{MSSA}(Z)`,
    ``[*batch, n, d]``.

    Raises:
        ValueError: shapes or dtypes do not fit, or ``kappa`` or ``eps`` is not positive and finite.
    """
    positive(kappa=kappa)
    share = kappa * expansion(bases, n=tokens.shape[-2], eps=eps)
    _check_factor("kappa beta", share, tokens)
    return (1 - share) * tokens + share * mssa(tokens, bases, eps=eps)


@in_range
@converted(floats=("tokens", "bases", "output"))
def released_step(
    tokens: Tokens, bases: Bases, output: Output, bias: Float[Tensor, " d"] | float = 0.0
) -> Tokens:
    r"""Takes the released code's step, :math:`Z + \sum_k \mathrm{softmax}(W_k W_k^\top / \sqrt p) W_k V_k +
    b`, ``[*batch, n, d]``.

    Args:
        tokens, bases: as in :func:`exact_step`.
        output: V_k, [K, p, d]; with U_k^T, as in the theory, the step *raises* R^c (:cite:t:`hu2024indepth`)
            for orthonormal, mutually orthogonal U_k and tokens of norm one, in every instance tried.
        bias: b.
    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    heads = tied_attention(coordinates(tokens, bases), scale=bases.shape[-1] ** -0.5)
    return tokens + (heads @ output).sum(-3) + bias


# token statistics


@converted(floats=("tokens", "bases", "pi"))
def tssa_gradient(tokens: Tokens, bases: Bases, pi: Memberships, *, eps: float) -> Tokens:
    r"""Returns the gradient of B(Z; U, Pi) with respect to Z at fixed memberships, ``[*batch, n, d]``, nats
    per unit of Z.

    Args:
        tokens, bases, eps: as in :func:`exact_step`.
        pi: memberships, ``[*batch, K, n]``.
    Raises:
        ValueError: shapes or dtypes do not fit, or ``eps`` is not positive and finite.
    """
    return _tssa_gradient(tokens, bases, pi, eps=eps)


def _tssa_gradient(
    tokens: Tokens, bases: Bases, pi: Memberships, *, eps: float, kappa: float = 1.0
) -> Tokens:
    """Returns ``kappa`` times :func:`tssa_gradient`. Squares of scaled tokens are in range."""
    positive(eps=eps)
    scaled, distortion, c = ordinary_scale(tokens, eps)
    heads = shrinkage(coordinates(scaled, bases), pi, eps=distortion)
    factor = kappa * expansion(bases, n=tokens.shape[-2], eps=eps) * c
    _check_factor("kappa beta |Z|", factor, tokens)
    return factor * (heads @ bases.mT).sum(-3)


@in_range
@converted(floats=("tokens", "bases"))
def tssa_step(
    tokens: Tokens, bases: Bases, *, kappa: float, eps: float, temperature: Temperature = 1.0
) -> Tokens:
    r"""Compresses at a cost linear in n, :math:`Z - \kappa \nabla B(Z; U, \Pi)` with the memberships of Z,
    ``[*batch, n, d]``.

    Raises:
        ValueError: shapes or dtypes do not fit, or ``kappa`` or ``eps`` is not positive and finite.
    """
    positive(kappa=kappa)
    positive(kappa=kappa, eps=eps)
    scaled = ordinary_scale(tokens, eps)[0]
    pi = memberships(coordinates(scaled, bases), temperature=temperature)
    return tokens - _tssa_gradient(tokens, bases, pi, eps=eps, kappa=kappa)


@converted(floats=("tokens", "bases", "pi"))
def variational_rate(tokens: Tokens, bases: Bases, pi: Memberships, *, eps: float) -> Float[Tensor, "*batch"]:
    r"""Returns B(Z; U, Pi), the upper bound that :func:`tssa_step` lowers, nats, ``[*batch]``. Arguments as
    in :func:`tssa_gradient`.

    Raises:
        ValueError: shapes or dtypes do not fit, or ``eps`` is not positive and finite.
    """
    positive(eps=eps)
    coords = coordinates(tokens, bases)
    sizes = group_sizes(pi)
    moments = (pi.unsqueeze(-1) * coords.square()).sum(-2) / sizes.unsqueeze(-1)
    logs = torch.log1p(coords.shape[-1] / eps**2 * moments).sum(-1)
    return 0.5 * (sizes / tokens.shape[-2] * logs).sum(-1)


@converted(floats=("tokens", "bases", "pi"))
def membership_rate(tokens: Tokens, bases: Bases, pi: Memberships, *, eps: float) -> Float[Tensor, "*batch"]:
    r"""Returns R^c(Z; U, Pi), the rate of tokens in their subspaces, nats, ``[*batch]``. Arguments as in
    :func:`tssa_gradient`.

    If all memberships are one (instead of a distribution over subspaces), it equals R^c(Z; U_[K]).

    Raises:
        ValueError: shapes or dtypes do not fit, or ``eps`` is not positive and finite.
    """
    positive(eps=eps)
    coords = coordinates(tokens, bases)
    sizes = group_sizes(pi)
    logs = logdet_identity_plus(pi.sqrt().unsqueeze(-1) * coords, coords.shape[-1] / (sizes * eps**2))
    return 0.5 * (sizes / tokens.shape[-2] * logs).sum(-1)


# causal forms


@converted(floats=("tokens", "bases"))
def added_rates(tokens: Tokens, bases: Bases, *, eps: float, context: int) -> Float[Tensor, "*batch n"]:
    r"""Returns r_i, the increase of the rate when token i joins the tokens before it, nats, ``[*batch, n]``.

    The sum of the r_i is R^c if ``context`` is n.

    Args:
        tokens, bases, eps: as in :func:`exact_step`.
        context: N in beta = p / (N eps^2).
    Raises:
        ValueError: shapes or dtypes do not fit, the sequence exceeds the context, or ``eps`` is not positive
            and finite.
    """
    check_length(tokens, context)
    same_dtype(tokens=tokens, bases=bases)
    beta = expansion(bases, n=context, eps=eps)
    # In float64, because the terms of late tokens are differences of nearly equal sums.
    lower = cholesky(prefix_matrices(coordinates(tokens.double(), bases.double()), beta))
    # [*batch, n]: half the log-determinants, summed over the heads
    rates = lower.diagonal(dim1=-2, dim2=-1).log().sum(-1).sum(-2)
    return torch.cat([rates[..., :1], rates.diff(dim=-1)], dim=-1).to(tokens.dtype)


@in_range
@converted(floats=("tokens", "bases"))
def causal_exact_step(tokens: Tokens, bases: Bases, *, kappa: float, eps: float, context: int) -> Tokens:
    r"""Moves every token down the gradient of its own term r_i of the rate, :math:`z_i - \kappa \nabla_{z_i}
    r_i`, ``[*batch, n, d]``.

    Raises:
        ValueError: as in :func:`added_rates`, or ``kappa`` is not positive and finite.
    """
    positive(kappa=kappa)
    _check_factor("kappa", kappa, tokens)
    return tokens - kappa * causal_rate_gradient(tokens, bases, eps=eps, context=context)


@converted(floats=("tokens", "bases"))
def causal_paper_step(tokens: Tokens, bases: Bases, *, kappa: float, eps: float, context: int) -> Tokens:
    r"""Takes the paper's step with a causal mask, :math:`(1 - \kappa\beta) Z +
    \kappa\beta\,\mathrm{MSSA}(Z)`, ``[*batch, n, d]``.

    Raises:
        ValueError: as in :func:`added_rates`, or ``kappa`` is not positive and finite.
    """
    positive(kappa=kappa)
    check_length(tokens, context)
    beta = expansion(bases, n=context, eps=eps)
    heads = tied_attention(coordinates(tokens, bases), scale=1.0, is_causal=True)
    return (1 - kappa * beta) * tokens + kappa * beta**2 * (heads @ bases.mT).sum(-3)


@converted(floats=("tokens", "bases", "output"))
def causal_released_step(
    tokens: Tokens, bases: Bases, output: Output, bias: Float[Tensor, " d"] | float = 0.0
) -> Tokens:
    r"""Takes the released step with a causal mask, as in the released language model, ``[*batch, n, d]``; see
    :func:`released_step`.

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    heads = tied_attention(coordinates(tokens, bases), scale=bases.shape[-1] ** -0.5, is_causal=True)
    return tokens + (heads @ output).sum(-3) + bias
