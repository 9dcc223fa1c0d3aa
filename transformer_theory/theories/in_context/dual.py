r"""The dual form of attention: reading a context is applying a linear layer that the context has updated.

Linear attention without normalisation satisfies :math:`W_0 q + \sum_j v_j k_j^\top q = (W_0 + \sum_j v_j
k_j^\top) q`, where the sum is an update of the weights by outer products, as in a step of descent. Softmax
attention is not linear in q, so there is no such matrix. At small scores it is nearly affine: :math:`\sum_j
a_j v_j = \bar v + \tfrac1n \sum_j (s_j - \bar s) v_j + O(s^2)`, which :func:`dual_part` is (without the
mean).
Source: :cite:t:`dai2023why`.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...core.validation import converted, full_precision, in_range
from ...maths.linalg import binary_scale


@in_range
@converted(floats=("scores", "values"), masks=("mask",))
def dual_part(
    scores: Float[Tensor, "*b q k"],
    values: Float[Tensor, "*b k v"],
    mask: Bool[Tensor, "*#b q k"] | None = None,
) -> Float[Tensor, "*b q v"]:
    """Computes the mean of (s_j - mean s) v_j over the allowed keys: softmax attention to first order in the
    scores, ``[*b, q, v]``.

    Without the mean of the values, to which the order zero is equal.
    """
    allowed = torch.ones_like(scores) if mask is None else mask.to(scores.dtype).expand_as(scores)
    count = allowed.sum(-1, keepdim=True).clamp(min=1)
    kept = scores.masked_fill(allowed == 0, 0.0)  # scores of masked keys may be infinite
    centred = (kept - kept.sum(-1, keepdim=True) / count) * allowed
    # A constant that is added to all values has no effect, but for the rounding errors of the centred scores.
    return centred / count @ (values - values.mean(-2, keepdim=True))


@full_precision
def affine_residual(queries: Float[Tensor, "q p"], outputs: Float[Tensor, "q v"]) -> float:
    """Computes the share of the outputs' variance that no affine function of the queries explains (least
    squares).
    """
    queries, outputs = (x / binary_scale(x, (0, 1)) for x in (queries, outputs))
    q = queries - queries.mean(0)
    o = outputs - outputs.mean(0)
    rest = o - q @ torch.linalg.solve(q.mT @ q, q.mT @ o)
    return float(rest.square().sum() / o.square().sum())
