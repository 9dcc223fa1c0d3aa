r"""Multi-head subspace self-attention: the compression half of a CRATE layer, in three forms.

A fourth, linear in tokens, is :mod:`.tssa`; causal forms are in :mod:`.causal`.

Tokens are rows, Z is n x d; U_k is d x p, W_k = Z U_k the tokens' coordinates in subspace k, and beta = p / (n eps^2). Compression lowers

    R^c(Z; U_[K]) = 1/2 sum_k logdet(I_n + beta W_k W_k^T).

Its gradient has a p x p form, exact and linear in n (push-through identity):

    grad R^c = beta sum_k (I_n + beta W_k W_k^T)^-1 W_k U_k^T = beta sum_k W_k (I_p + beta W_k^T W_k)^-1 U_k^T.

The papers replace the inverse by its first Neumann terms, I - beta W_k W_k^T, then sum_k U_k U_k^T by I and the Gram matrix by its
softmax. What remains is attention with one matrix for query, key and value:

    SSA_k(Z) = softmax(W_k W_k^T) W_k,      MSSA(Z) = beta sum_k SSA_k(Z) U_k^T,
    paper form      Z+ = (1 - kappa beta) Z + kappa beta MSSA(Z)
    released form   Z+ = Z + [SSA_1 ... SSA_K] V + b,  scores divided by sqrt(p), V free
    exact form      Z+ = Z - kappa grad R^c(Z)

The Neumann series converges only while beta ||W_k||_2^2 < 1; on layer-normalised tokens it is larger by orders of magnitude, so the
paper form is motivated by the gradient, not an approximation of it. The exact form costs one p x p Cholesky factor a head.

Source: :cite:t:`yu2023white`. Notation: docs/notation.md.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ...maths.linalg import LARGEST_FLOAT32_CONDITION
from ..attention import tied_attention
from .checks import positive, same_kind

Tokens = Float[Tensor, "*batch n d"]
Bases = Float[Tensor, "K d p"]


def expansion(bases: Bases, *, n: int, eps: float) -> float:
    r"""The factor :math:`\beta = p / (n \varepsilon^2)` of n tokens in subspaces of dimension p (no unit; ``eps`` is squared here).

    Raises:
        ValueError: ``eps`` is not positive and finite. Source: :cite:t:`yu2023white`.
    """
    positive(eps=eps)
    return bases.shape[-1] / (n * eps**2)


def coordinates(tokens: Tokens, bases: Bases) -> Float[Tensor, "*batch K n p"]:
    r"""W_k = Z U_k for every subspace: the tokens' coordinates, what a head reads. Source: :cite:t:`yu2023white`.

    Raises:
        ValueError: tokens and bases differ in dimension d or in dtype, or are float16 on a CPU.
    """
    same_kind(tokens=tokens, bases=bases)
    if tokens.shape[-1] != bases.shape[-2]:
        raise ValueError(f"tokens [..., n, d] and bases [K, d, p] must share d, got {list(tokens.shape)} and {list(bases.shape)}")
    return tokens.unsqueeze(-3) @ bases


def subspace_attention(coords: Float[Tensor, "*batch K n p"], *, scale: float, is_causal: bool = False) -> Float[Tensor, "*batch K n p"]:
    r"""SSA of every head: :math:`\mathrm{softmax}(\text{scale} \cdot W_k W_k^\top) W_k`, rows of the softmax sum to one.

    With ``is_causal`` token i attends to tokens 1 ... i. Source: :cite:t:`yu2023white`.
    """
    return tied_attention(coords, scale=scale, is_causal=is_causal)


def mssa(tokens: Tokens, bases: Bases, *, eps: float, scale: float = 1.0) -> Tokens:
    r"""MSSA(Z) = beta sum_k softmax(scale W_k W_k^T) W_k U_k^T, the factor beta included.

    Args:
        tokens: Z, ``[*batch, n, d]``.
        bases: U_k, [K, d, p], orthonormal columns in the theory, free in networks.
        eps: distortion (squared inside).
        scale: of the scores: 1 in the paper, 1/sqrt(p) in the released code.
    Returns:
        ``[*batch, n, d]``.
    Raises:
        ValueError: shapes or dtypes do not fit, or ``eps`` is not positive and finite. Source: :cite:t:`yu2023white`.
    """
    heads = subspace_attention(coordinates(tokens, bases), scale=scale)
    return expansion(bases, n=tokens.shape[-2], eps=eps) * (heads @ bases.mT).sum(-3)


def paper_step(tokens: Tokens, bases: Bases, *, kappa: float, eps: float) -> Tokens:
    r"""The paper's compression, :math:`(1 - \kappa\beta) Z + \kappa\beta\,\mathrm{MSSA}(Z)`, ``[*batch, n, d]``.

    Raises:
        ValueError: shapes or dtypes do not fit, or ``kappa`` or ``eps`` is not positive and finite. Source: :cite:t:`yu2023white`.
    """
    positive(kappa=kappa)
    share = kappa * expansion(bases, n=tokens.shape[-2], eps=eps)
    return (1 - share) * tokens + share * mssa(tokens, bases, eps=eps)


def released_step(tokens: Tokens, bases: Bases, output: Float[Tensor, "K p d"], bias: Float[Tensor, " d"] | float = 0.0) -> Tokens:
    r"""The released code's compression, :math:`Z + \sum_k \mathrm{softmax}(W_k W_k^\top / \sqrt p) W_k V_k + b`, ``[*batch, n, d]``.

    Args:
        output: V_k, a matrix of its own for each head; with the theory's U_k^T the step *raises* R^c (:cite:t:`hu2024indepth`).
        bias: b.

    Raises:
        ValueError: shapes do not fit. Source: :cite:t:`yu2023white`, released code.
    """
    heads = subspace_attention(coordinates(tokens, bases), scale=bases.shape[-1] ** -0.5)
    return tokens + (heads @ output).sum(-3) + bias


def rate_gradient(tokens: Tokens, bases: Bases, *, eps: float) -> Tokens:
    r"""Gradient of R^c(Z; U_[K]) with respect to Z by one p x p Cholesky factor a head, ``[*batch, n, d]``; exact, in nats per unit of Z.

    Autocast does not reach it: what is read in bfloat16 is computed in float32, and float32 in float64 where the identity would lose its
    digits beside beta W^T W, as in a network whose tokens collapse (:func:`resolved`).

    Raises:
        ValueError: shapes or dtypes do not fit, ``eps`` is not positive and finite, or tokens are so large that adding the identity is
            lost to rounding. Source: :cite:t:`yu2023white`.
    """
    beta = expansion(bases, n=tokens.shape[-2], eps=eps)
    with torch.autocast(tokens.device.type, enabled=False):
        coords, frames = resolved(tokens, bases, beta=beta)
        inner = beta * coords.mT @ coords + torch.eye(bases.shape[-1], dtype=coords.dtype, device=coords.device)
        solved = torch.cholesky_solve(coords.mT, factor(inner)).mT  # W_k (I + beta W_k^T W_k)^-1
        return (beta * (solved @ frames.mT).sum(-3)).to(tokens.dtype)


def resolved(tokens: Tokens, bases: Bases, *, beta: float) -> tuple[Float[Tensor, "*batch K n p"], Bases]:
    r"""Coordinates W_k and bases in a precision in which I + beta W_k^T W_k keeps three digits of the identity.

    That is their own, float32 for bfloat16, and float64 for float32 where :math:`\beta \|W_k\|_F^2` exceeds 1e4 in any head: the rule of
    :func:`~transformer_theory.maths.linalg.logdet_identity_plus`. The products are repeated in float64, since a step shrinks the leading
    directions until the rounding of the others shows.

    Args:
        tokens: Z, ``[*batch, n, d]``.
        bases: U_k, [K, d, p].
        beta: the factor before W^T W.
    Raises:
        ValueError: shapes or dtypes do not fit. Source: textbook (condition of I + beta W^T W).
    """
    read = tokens.to(bases.dtype) if tokens.dtype == torch.bfloat16 else tokens
    coords = coordinates(read, bases)
    with torch.no_grad():
        large = coords.dtype == torch.float32 and bool((beta * coords.square().sum((-2, -1)) > LARGEST_FLOAT32_CONDITION).any())
    return (coordinates(read.double(), bases.double()), bases.double()) if large else (coords, bases)


def factor(inner: Float[Tensor, "*batch p p"]) -> Float[Tensor, "*batch p p"]:
    r"""Cholesky factor of I + beta W^T W. Source: textbook.

    Raises:
        ValueError: it is not positive definite in this precision, or not finite.
    """
    lower, failed = torch.linalg.cholesky_ex(inner)
    if bool(failed.any()):
        raise ValueError(
            "I + beta W^T W must be finite and keep its identity, which rounding has lost; drop what is not finite, normalise the tokens"
        )
    return lower


def exact_step(tokens: Tokens, bases: Bases, *, kappa: float, eps: float) -> Tokens:
    r"""Gradient descent on the rate, :math:`Z - \kappa \nabla R^c(Z; U_{[K]})`, ``[*batch, n, d]``.

    It lowers R^c for every :math:`0 < \kappa < 2 / L`, see :func:`lipschitz`.

    Raises:
        ValueError: shapes or dtypes do not fit, or ``kappa`` or ``eps`` is not positive and finite. Source: :cite:t:`yu2023white`.
    """
    positive(kappa=kappa)
    return tokens - kappa * rate_gradient(tokens, bases, eps=eps)


def lipschitz(bases: Bases, *, n: int, eps: float) -> float:
    r"""L = beta ||sum_k U_k U_k^T||_2, a Lipschitz constant of the gradient of R^c (no unit).

    The function :math:`\tfrac12 \log(1 + \beta\sigma^2)` has slope :math:`\beta\sigma/(1+\beta\sigma^2)` and a second derivative in
    :math:`[-\beta/8, \beta]`, so a spectral function of it has a :math:`\beta`-Lipschitz gradient; composing with :math:`U_k^\top` and
    summing gives L. Hence a step of kappa lowers R^c by at least :math:`\kappa (1 - \kappa L / 2) \|\nabla R^c\|^2`.

    Raises:
        ValueError: ``eps`` is not positive and finite. Source: :cite:t:`yu2023white` (objective); the constant is derived above.
    """
    whole = bases.transpose(0, 1).flatten(1)  # [U_1 ... U_K], d x Kp
    return expansion(bases, n=n, eps=eps) * float(torch.linalg.matrix_norm(whole, 2)) ** 2
