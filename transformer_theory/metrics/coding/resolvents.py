r"""Log-determinants and resolvents of Gram matrices: :math:`\log\det(I + sG)` and :math:`(I + sG)^{-1}` from one Cholesky factor, and the
weighted forms :math:`\log\det(I + X^\top WX)` and :math:`WX(I + X^\top WX)^{-1}` with diagonal :math:`W \ge 0`.

The weighted forms go through the smaller of two matrices, by Sylvester's identity and by
:math:`X(I_d + X^\top WX)^{-1} = (I_n + XX^\top W)^{-1}X`. The derivatives of the log-determinant are :math:`2WX(I + X^\top WX)^{-1}` with
respect to X and the leverages :math:`x_i^\top(I + X^\top WX)^{-1}x_i` with respect to :math:`w_i`.

Accuracy. A Gram matrix is rounded by :math:`10^{-16}` of its norm, so next to the identity it is accurate to a millionth as long as
:math:`s\|X\|^2 \le 10^{10}`. Beyond that, singular values of the vectors take its place where the vectors are known
(:func:`inverse`, :func:`pulls_and_leverages`; for the values :func:`~transformer_theory.maths.linalg.logdet_identity_plus`), up to
:math:`10^{20}`.
Where only a Gram matrix is known, the result is returned if its own inverse bounds the error by a millionth; otherwise it is refused.
Source: textbook.
"""

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from ...maths.linalg import LARGEST_CONDITION, LARGEST_FLOAT32_CONDITION, LARGEST_GRAM_CONDITION, logdet_identity_plus

LOGDET_ATOL = 1e-6  # accepted rounding of a logarithm


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
    """``X X^T`` if n <= d, otherwise ``X^T X``, ``m = min(n, d)``. The other has the same eigenvalues and additional zeros."""
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
        # A wide spectrum may have no small eigenvalue: rounding moves log det by its size times the trace of the inverse.
        moved = torch.finfo(largest.dtype).eps * largest * inverse.diagonal(dim1=-2, dim2=-1).real.sum(-1)
        if bool(failed.any()) or not bool((moved <= LOGDET_ATOL).all()):
            raise ValueError(
                f"moments must have d ||X||^2 / (n eps^2) of at most {LARGEST_GRAM_CONDITION:g} where they have less than full rank, "
                f"beyond which rounding shows next to the identity, got {float(largest.max()):.1e}; take a larger eps"
            )
    return factor.diagonal(dim1=-2, dim2=-1).real.log().sum(-1), inverse


def inverse(X: Float[Tensor, "n d"], weights: Float[Tensor, " n"]) -> Float[Tensor, "d d"]:
    r""":math:`(I + X^\top WX)^{-1}`; of fewer rows than dimensions through their own Gram matrix.

    Args:
        X: ``[n, d]``.
        weights: the diagonal of W, >= 0, ``[n]``.
    """
    rows = X[weights > 0] * weights[weights > 0].sqrt()[:, None]
    if bool(rows.square().sum() > LARGEST_GRAM_CONDITION):
        _, sizes, right = torch.linalg.svd(rows, full_matrices=True)
        squares = torch.nn.functional.pad(sizes.square(), (0, X.shape[1] - len(sizes)))
        return (right.mT / (1 + squares)) @ right
    small = rate_and_inverse(smaller_gram(rows), rows.new_ones(()))[1]
    return small if len(rows) > X.shape[1] else torch.eye(X.shape[1], dtype=X.dtype, device=X.device) - rows.mT @ small @ rows


def pulls_and_leverages(X: Float[Tensor, "n d"], weights: Float[Tensor, " n"]) -> tuple[Float[Tensor, "n d"], Float[Tensor, " n"]]:
    r""":math:`WX(I + X^\top WX)^{-1}` and the leverages :math:`x_i^\top(I + X^\top WX)^{-1}x_i`.

    Differentiable in both arguments while a graph is recorded; the second derivatives keep six digits up to ``||W^(1/2) X||^2`` of 1e10.

    Args:
        X: ``[n, d]``.
        weights: the diagonal of W, >= 0, ``[n]``.
    Returns:
        pulls ``[n, d]``, rows of zeros where the weights are zero; leverages ``[n]``.
    """
    if torch.is_grad_enabled() or bool((weights * X.square().sum(1)).sum() <= LARGEST_GRAM_CONDITION):
        through = _resolvent(X, weights)
        return weights[:, None] * through, (through * X).sum(1)
    # With W^(1/2) X = U S V^T the pulls are W^(1/2) U S/(1 + S^2) V^T. Singular values that are rounding errors of the largest one count
    # as zero: s/(1 + s^2) may be as large as 1/2 there and would turn noise into directions.
    roots = weights.sqrt()[:, None]
    left, sizes, right = torch.linalg.svd(roots * X, full_matrices=False)
    present = sizes > max(X.shape) * torch.finfo(X.dtype).eps * sizes[0]
    left, sizes, right = left[:, present], sizes[present], right[present]
    pulls = roots * ((left * (sizes / (1 + sizes.square()))) @ right)
    # The part of x_i outside the span of V is formed before it is squared, so that it does not cancel against the part inside.
    inside = X @ right.mT
    leverages = (inside.square() / (1 + sizes.square())).sum(1) + (X - inside @ right).square().sum(1)
    return pulls, leverages


def _resolvent(X: Tensor, weights: Tensor) -> Tensor:
    r""":math:`X(I + X^\top WX)^{-1}` by one solve on the smaller side; weights may be zero."""
    n, d = X.shape
    identity = torch.eye(min(n, d), dtype=X.dtype, device=X.device)
    if n <= d:
        return torch.linalg.solve(identity + (X @ X.mT) * weights[None, :], X)
    return torch.linalg.solve(identity + X.mT @ (weights[:, None] * X), X.mT).mT


def weighted_logdets(X: Float[Tensor, "n d"], weights: Float[Tensor, "n k"]) -> Float[Tensor, " k"]:
    r""":math:`\log\det(I + X^\top W_j X)` for each column of weights, twice differentiable in both.

    Args:
        X: ``[n, d]``.
        weights: >= 0, ``[n, k]``, one diagonal a column.
    Returns:
        ``[k]`` in the dtype of X, nats. For the accuracy of derivatives see :func:`pulls_and_leverages`.
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
            pulls, leverages = pulls_and_leverages(X, w)
            to_X = to_X + 2 * g * pulls
            to_weights.append(g * leverages)
        return to_X, torch.stack(to_weights, 1)
