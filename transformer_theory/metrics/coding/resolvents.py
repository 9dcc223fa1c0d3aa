r"""Resolvents and log-determinants: :math:`(I + sG)^{-1}` and :math:`\log\det(I + sG)` of a Gram matrix G from one factor, and
:math:`X(I + X^\top W X)^{-1}` and :math:`\log\det(I + X^\top W X)` with diagonal W >= 0.

The weighted ones go through the smaller of two matrices, by Sylvester's identity and its sibling
:math:`X(I_d + X^\top WX)^{-1} = (I_n + XX^\top W)^{-1}X`. Gradients: :math:`2WX(I + X^\top WX)^{-1}` with respect to X and
:math:`x_i^\top(I + X^\top WX)^{-1}x_i` with respect to :math:`w_i`. Source: textbook.
"""

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from ...linalg import LARGEST_FLOAT32_CONDITION, logdet_identity_plus


def widened(X: Float[Tensor, "*batch n d"], largest: Float[Tensor, ""]) -> Float[Tensor, "*batch n d"]:
    """X in float64 if adding the identity to a matrix of this norm would cost float32 its digits, otherwise X itself.

    Args:
        X: ``[*batch, n, d]``.
        largest: the largest ``||W^(1/2) X||_F^2``.
    Raises:
        ValueError: X is not finite, or its square overflows.
    """
    if not bool(torch.isfinite(largest)):
        wrong = int((~torch.isfinite(X)).sum())
        if wrong:
            raise ValueError(f"the vectors must be finite, got {wrong} NaN or infinite values of {X.numel()}; drop them")
        raise ValueError("d ||X||^2 / (n eps^2) overflows; normalise the vectors first")
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
        ValueError: sG is so large that adding the identity is lost to rounding.
    """
    inside = scale[..., None, None] * gram
    inside.diagonal(dim1=-2, dim2=-1).add_(1)
    factor, failed = torch.linalg.cholesky_ex(inside)
    if bool(failed.any()):
        raise ValueError("d ||X||^2 / (n eps^2) must stay below about 1e15, where adding the identity is lost; normalise the features")
    return factor.diagonal(dim1=-2, dim2=-1).real.log().sum(-1), torch.cholesky_inverse(factor)


def resolvent(X: Float[Tensor, "*batch n d"], weights: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n d"]:
    r""":math:`X(I + X^\top WX)^{-1}` by one solve on the smaller side, differentiable in both; weights may be zero.

    Args:
        X: ``[*batch, n, d]``.
        weights: the diagonal of W, >= 0, ``[*batch, n]``.
    Returns:
        ``[*batch, n, d]``.
    """
    n, d = X.shape[-2:]
    identity = torch.eye(min(n, d), dtype=X.dtype, device=X.device)
    if n <= d:
        return torch.linalg.solve(identity + (X @ X.mT) * weights[..., None, :], X)
    return torch.linalg.solve(identity + X.mT @ (weights[..., None] * X), X.mT).mT


def weighted_logdets(X: Float[Tensor, "n d"], weights: Float[Tensor, "n k"]) -> Float[Tensor, " k"]:
    r""":math:`\log\det(I + X^\top W_j X)` for each column of weights, twice differentiable in both.

    Args:
        X: ``[n, d]``.
        weights: >= 0, ``[n, k]``, one diagonal a column.
    Returns:
        ``[k]`` in the dtype of X, nats.
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
            through = resolvent(X, w)
            to_X = to_X + 2 * g * w[:, None] * through
            to_weights.append(g * (through * X).sum(1))
        return to_X, torch.stack(to_weights, 1)
