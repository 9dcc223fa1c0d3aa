r"""Resolvents and log-determinants: :math:`(I + sG)^{-1}` and :math:`\log\det(I + sG)` of a Gram matrix G from one factor, and
:math:`WX(I + X^\top W X)^{-1}` and :math:`\log\det(I + X^\top W X)` with diagonal W >= 0.

The weighted ones go through the smaller of two matrices, by Sylvester's identity and its sibling
:math:`X(I_d + X^\top WX)^{-1} = (I_n + XX^\top W)^{-1}X`. Gradients: :math:`2WX(I + X^\top WX)^{-1}` with respect to X and
:math:`x_i^\top(I + X^\top WX)^{-1}x_i` with respect to :math:`w_i`.

Accuracy. A Gram matrix is rounded by :math:`10^{-16}` of its norm, so that next to the identity it is good to a millionth as long as
:math:`s\|X\|^2 \le 10^{10}`. Beyond, singular values of the vectors serve where the vectors are at hand (:func:`.logdet_and_resolvent`,
to :math:`10^{20}`); where a Gram matrix is all there is, the result is given if its own inverse bounds the error by a millionth, and
refused otherwise. Source: textbook.
"""

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from ...maths.linalg import (
    LARGEST_CONDITION,
    LARGEST_FLOAT32_CONDITION,
    LARGEST_GRAM_CONDITION,
    logdet_and_resolvent,
    logdet_identity_plus,
)

ACCURACY = 1e-6  # of a logarithm


def widened(X: Float[Tensor, "*batch n d"], largest: Float[Tensor, ""]) -> Float[Tensor, "*batch n d"]:
    """X in float64 if adding the identity to a matrix of this norm would cost float32 its digits, otherwise X itself.

    Args:
        X: ``[*batch, n, d]``.
        largest: the largest ``||W^(1/2) X||_F^2``.
    Raises:
        ValueError: X is not finite, or so large that adding the identity is lost to rounding.
    """
    if not bool(largest <= LARGEST_CONDITION):
        wrong = int((~torch.isfinite(X)).sum())
        if wrong:
            raise ValueError(f"the vectors must be finite, got {wrong} NaN or infinite values of {X.numel()}; drop them")
        raise ValueError(
            f"d ||X||^2 / (n eps^2) must be at most {LARGEST_CONDITION:g}, beyond which adding the identity is lost to rounding, "
            f"got {float(torch.where(largest.isnan(), torch.inf, largest)):.1e}; normalise the vectors, or take a larger eps"
        )
    return X.double() if bool(largest > LARGEST_FLOAT32_CONDITION) else X


def smaller_gram(X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch m m"]:
    """``X X^T`` if the vectors are no more than their dimensions, otherwise ``X^T X``, ``m = min(n, d)``. The other has the same
    eigenvalues and zeros besides."""
    return X @ X.mT if X.shape[-2] <= X.shape[-1] else X.mT @ X


def rate_and_inverse(
    gram: Inexact[Tensor, "*batch m m"], scale: Float[Tensor, "*batch"]
) -> tuple[Float[Tensor, "*batch"], Inexact[Tensor, "*batch m m"]]:
    r""":math:`\tfrac12\log\det(I + sG)` and :math:`(I + sG)^{-1}` from one Cholesky factor.

    Args:
        gram: G, real symmetric or Hermitian, positive semidefinite, ``[*batch, m, m]``.
        scale: s > 0, ``[*batch]``.
    Returns:
        ``[*batch]`` nats, ``[*batch, m, m]``.
    Raises:
        ValueError: sG is so large that rounding moves I + sG by more than a millionth along some direction.
    """
    inside = scale[..., None, None] * gram
    largest = inside.diagonal(dim1=-2, dim2=-1).real.sum(-1)
    inside.diagonal(dim1=-2, dim2=-1).add_(1)
    factor, failed = torch.linalg.cholesky_ex(inside)
    inverse = torch.cholesky_inverse(factor)
    if bool(failed.any()) or not bool((largest <= LARGEST_GRAM_CONDITION).all()):
        # a wide spectrum may still have no small end: rounding moves log det by its size times the trace of the inverse
        moved = torch.finfo(largest.dtype).eps * largest * inverse.diagonal(dim1=-2, dim2=-1).real.sum(-1)
        if bool(failed.any()) or not bool((moved <= ACCURACY).all()):
            raise ValueError(
                f"moments must have d ||X||^2 / (n eps^2) of at most {LARGEST_GRAM_CONDITION:g} where they have less than full rank, "
                f"beyond which rounding is seen next to the identity, got {float(largest.max()):.1e}; take a larger eps"
            )
    return factor.diagonal(dim1=-2, dim2=-1).real.log().sum(-1), inverse


def rate_and_resolvent(X: Float[Tensor, "*batch n d"], scale: Float[Tensor, "*batch"]) -> tuple[Float[Tensor, "*batch"], Tensor]:
    r""":math:`\tfrac12\log\det(I + sX^\top X)` and :math:`sX(I + sX^\top X)^{-1}` from the singular values of X, without a graph.

    Args:
        X: ``[*batch, n, d]`` float64.
        scale: s > 0, ``[*batch]``.
    Returns:
        ``[*batch]`` nats, ``[*batch, n, d]``.
    """
    value, resolvent = logdet_and_resolvent(X, scale)
    return value / 2, scale[..., None, None] * resolvent


def weighted_resolvent(X: Float[Tensor, "n d"], weights: Float[Tensor, " n"]) -> Float[Tensor, "n d"]:
    r""":math:`WX(I + X^\top WX)^{-1}` on the smaller side, without a graph.

    Args:
        X: ``[n, d]``.
        weights: the diagonal of W, >= 0, ``[n]``.
    Returns:
        ``[n, d]``, rows of zeros where the weights are zero.
    """
    roots = weights.sqrt()[:, None]
    rows = roots * X
    if bool(rows.square().sum() > LARGEST_GRAM_CONDITION):
        return roots * logdet_and_resolvent(rows, rows.new_ones(()))[1]
    return weights[:, None] * _resolvent(X, weights)


def _resolvent(X: Tensor, weights: Tensor) -> Tensor:
    r""":math:`X(I + X^\top WX)^{-1}` by one solve on the smaller side, differentiable in both; weights may be zero."""
    n, d = X.shape
    identity = torch.eye(min(n, d), dtype=X.dtype, device=X.device)
    if n <= d:
        return torch.linalg.solve(identity + (X @ X.mT) * weights[None, :], X)
    return torch.linalg.solve(identity + X.mT @ (weights[:, None] * X), X.mT).mT


def _leverages(X: Tensor, weights: Tensor) -> Tensor:
    r""":math:`x_i^\top(I + X^\top WX)^{-1}x_i` ``[n]``, from singular values: what lies outside their span is squared only in the end."""
    rows = weights.sqrt()[:, None] * X
    _, sizes, right = torch.linalg.svd(rows, full_matrices=False)
    right = right[sizes > max(X.shape) * torch.finfo(X.dtype).eps * sizes[0]]
    sizes = sizes[: len(right)]
    inside = X @ right.mT
    return (inside.square() / (1 + sizes.square())).sum(1) + (X - inside @ right).square().sum(1)


def weighted_logdets(X: Float[Tensor, "n d"], weights: Float[Tensor, "n k"]) -> Float[Tensor, " k"]:
    r""":math:`\log\det(I + X^\top W_j X)` for each column of weights, twice differentiable in both.

    Args:
        X: ``[n, d]``.
        weights: >= 0, ``[n, k]``, one diagonal a column.
    Returns:
        ``[k]`` in the dtype of X, nats. Second derivatives go through Gram matrices and keep six digits up to
        ``||W^(1/2) X||^2`` of 1e10.
    Raises:
        ValueError: X is not finite, or so large that adding the identity is lost to rounding.
    """
    with torch.autocast(X.device.type, enabled=False):
        with torch.no_grad():
            largest = (X.square().sum(1).to(weights.dtype) @ weights).amax()
        wide = widened(X, largest)
        return _WeightedLogdets.apply(wide, weights.to(wide.dtype)).to(X.dtype)  # pyright: ignore[reportReturnType, reportOptionalMemberAccess]


class _WeightedLogdets(torch.autograd.Function):
    """The gradient is taken in closed form: through a root of the weights it would be infinite where they are zero."""

    @staticmethod
    def forward(ctx, X: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(X, weights)
        return torch.stack([logdet_identity_plus(w.sqrt()[:, None] * X, 1.0) for w in weights.mT])

    @staticmethod
    def backward(ctx, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        X, weights = ctx.saved_tensors
        to_X, to_weights = torch.zeros_like(X), []
        for g, w in zip(grad, weights.mT):
            if torch.is_grad_enabled() or bool((w * X.square().sum(1)).sum() <= LARGEST_GRAM_CONDITION):
                resolvent = _resolvent(X, w)
                pull, leverages = w[:, None] * resolvent, (resolvent * X).sum(1)
            else:
                pull, leverages = weighted_resolvent(X, w), _leverages(X, w)
            to_X = to_X + 2 * g * pull
            to_weights.append(g * leverages)
        return to_X, torch.stack(to_weights, 1)
