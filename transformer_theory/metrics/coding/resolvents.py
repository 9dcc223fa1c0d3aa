r"""Log-determinants and resolvents of Gram matrices: :math:`\log\det(I + sG)` and :math:`(I + sG)^{-1}` from
one Cholesky factor, and their weighted forms :math:`\log\det(I + X^\top WX)` and :math:`WX(I + X^\top
WX)^{-1}` with diagonal :math:`W \ge 0`.

The weighted forms are computed from the smaller of two matrices, by Sylvester's identity and by
:math:`X(I_d + X^\top WX)^{-1} = (I_n + XX^\top W)^{-1}X`. The derivatives of the log-determinant are
:math:`2WX(I + X^\top WX)^{-1}` with respect to X and the leverages :math:`x_i^\top(I + X^\top WX)^{-1}x_i`
with respect to :math:`w_i`.

Accuracy. The rounding error of a Gram matrix is :math:`10^{-16}` of its norm, which is at most a millionth of
the identity if :math:`s\|X\|^2 \le 10^{10}`. Above this bound each function returns its result if the inverse
proves that the error is below a millionth (:func:`~transformer_theory.maths.linalg.require_resolved`), and
raises otherwise.
"""

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from ...core.validation import full_precision
from ...maths.linalg import (
    LARGEST_FLOAT32_CONDITION,
    LARGEST_GRAM_CONDITION,
    SMALL,
    logdet_identity_plus,
    require_resolved,
    small_logdet,
    smaller_gram,
)

SMALLEST_FLOAT32 = 1e-30  # smallest norm of W^(1/2) X, squared, for which W is in the range of float32


def widened(
    X: Float[Tensor, "*batch n d"], largest: float | Float[Tensor, ""]
) -> Float[Tensor, "*batch n d"]:
    """Converts X to float64 if float32 would lose digits of the identity in I + X^T W X, or could not hold W;
    otherwise returns X unchanged.

    Args:
        X: vectors, ``[*batch, n, d]``.
        largest: largest ``||W^(1/2) X||_F^2`` of the batch.
    Raises:
        ValueError: X is not finite, or so large that its square is not.
    """
    largest = float(largest)
    if not largest <= torch.finfo(X.dtype).max:
        if infinite := int((~torch.isfinite(X)).sum()):
            raise ValueError(
                f"the vectors must be finite, got {infinite} NaN or infinite values of {X.numel()}; drop them"
            )
        raise ValueError(
            "d ||X||^2 / (n eps^2) must be finite, got inf; normalise the vectors, or take a larger eps"
        )
    return X if SMALLEST_FLOAT32 <= largest <= LARGEST_FLOAT32_CONDITION else X.double()


def rate_and_inverse(
    gram: Inexact[Tensor, "*batch m m"], scale: Float[Tensor, "*batch"]
) -> tuple[Float[Tensor, "*batch"], Inexact[Tensor, "*batch m m"]]:
    r"""Computes :math:`\tfrac12\log\det(I + sG)` and :math:`(I + sG)^{-1}` from one Cholesky factor.

    Args:
        gram: G, real symmetric or Hermitian, positive semidefinite, ``[*batch, m, m]``.
        scale: s > 0, ``[*batch]``.
    Returns:
        The rates in nats, ``[*batch]``, and the inverses, ``[*batch, m, m]``.
    Raises:
        ValueError: sG is so large that its rounding errors are visible next to the identity.
    """
    matrix = scale[..., None, None] * gram
    matrix.diagonal(dim1=-2, dim2=-1).add_(1)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    require_resolved(matrix, factor, failed)
    rates, inverses = factor.diagonal(dim1=-2, dim2=-1).real.log().sum(-1), torch.cholesky_inverse(factor)
    diagonal = scale[..., None] * gram.diagonal(dim1=-2, dim2=-1).real
    is_small = diagonal.sum(-1) < SMALL
    if bool(is_small.any()):
        rates = torch.where(is_small, 0.5 * small_logdet(diagonal, factor), rates)
    return rates, inverses


def inverse(X: Float[Tensor, "n d"], weights: Float[Tensor, " n"]) -> Float[Tensor, "d d"]:
    r"""Computes :math:`(I + X^\top WX)^{-1}` from the smaller Gram matrix.

    Args:
        X: vectors, ``[n, d]``.
        weights: the diagonal of W, >= 0, ``[n]``.
    Raises:
        ValueError: the vectors have less than full rank and are so large that the identity is lost to
            rounding.
    """
    # Scaled rows W^(1/2) X turn the matrix into I + rows^T rows.
    rows = X[weights > 0] * weights[weights > 0].sqrt()[:, None]
    # With fewer rows than dimensions use Woodbury: (I + X^T X)^-1 = I - X^T (I + X X^T)^-1 X.
    small = rate_and_inverse(smaller_gram(rows), rows.new_ones(()))[1]
    return (
        small
        if len(rows) > X.shape[1]
        else torch.eye(X.shape[1], dtype=X.dtype, device=X.device) - rows.mT @ small @ rows
    )


def pulls_and_leverages(
    X: Float[Tensor, "n d"], weights: Float[Tensor, " n"]
) -> tuple[Float[Tensor, "n d"], Float[Tensor, " n"]]:
    r"""Computes the pulls :math:`WX(I + X^\top WX)^{-1}` and the leverages :math:`x_i^\top(I + X^\top
    WX)^{-1}x_i`.

    Both are differentiable in X and the weights while a graph is recorded.

    Args:
        X: vectors, ``[n, d]``.
        weights: the diagonal of W, >= 0, ``[n]``.
    Returns:
        The pulls ``[n, d]``, whose rows are zero where the weights are zero, and the leverages ``[n]``.
    Raises:
        ValueError: the vectors have less than full rank and are so large that the identity is lost to
            rounding.
    """
    with torch.no_grad():
        if bool((weights * X.square().sum(1)).sum() > LARGEST_GRAM_CONDITION):
            inverse(X, weights)  # refuses what rounding would spoil; the system below has no such test
    resolvent = _resolvent(X, weights)
    return weights[:, None] * resolvent, (resolvent * X).sum(1)


def _resolvent(X: Tensor, weights: Tensor) -> Tensor:
    r"""Computes :math:`X(I + X^\top WX)^{-1}` by one solve on the smaller side; weights may be zero."""
    # Avoid the root of the weights, whose derivative is infinite at zero. Without it the matrices are not
    # symmetric, so use LU.
    n, d = X.shape
    identity = torch.eye(min(n, d), dtype=X.dtype, device=X.device)
    if n <= d:
        return torch.linalg.solve(identity + (X @ X.mT) * weights[None, :], X)
    return torch.linalg.solve(identity + X.mT @ (weights[:, None] * X), X.mT).mT


@full_precision
def weighted_logdets(X: Float[Tensor, "n d"], weights: Float[Tensor, "n k"]) -> Float[Tensor, " k"]:
    r"""Computes :math:`\log\det(I + X^\top W_j X)` for each column of weights, twice differentiable in X and
    the weights.

    Args:
        X: vectors, ``[n, d]``.
        weights: weights >= 0, ``[n, k]``; each column is the diagonal of one W_j.
    Returns:
        ``[k]`` in the dtype of X, nats.
    Raises:
        ValueError: X is not finite, or has less than full rank and is so large that the identity is lost to
            rounding.
    """
    with torch.no_grad():
        largest = (X.square().sum(1).to(weights.dtype) @ weights).amax()
    wide = widened(X, largest)
    return _WeightedLogdets.apply(wide, weights.to(wide.dtype)).to(X.dtype)  # pyright: ignore[reportReturnType, reportOptionalMemberAccess]


class _WeightedLogdets(torch.autograd.Function):
    """The log-determinants with their gradient in closed form. Autograd would differentiate the root of the
    weights, infinite at zero.
    """

    @staticmethod
    def forward(ctx, X: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(X, weights)
        return torch.stack([logdet_identity_plus(w.sqrt()[:, None] * X, 1.0) for w in weights.mT])

    @staticmethod
    @full_precision
    def backward(ctx, grad: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        X, weights = ctx.saved_tensors
        to_X, to_weights = torch.zeros_like(X), []
        for g, w in zip(grad, weights.mT):
            pulls, leverages = pulls_and_leverages(X, w)
            to_X = to_X + 2 * g * pulls
            to_weights.append(g * leverages)
        return to_X, torch.stack(to_weights, 1)
