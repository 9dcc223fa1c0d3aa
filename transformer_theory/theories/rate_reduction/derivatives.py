r"""The Hessian of the rate reduction, which judges critical points.

With :math:`S = X^\top X`, :math:`M = (I + \alpha S)^{-1}`, :math:`P = XM`, :math:`K = (I + \alpha XX^\top)^{-1}` the Hessian of R is

.. math::
    \alpha K_{ij} M_{pq} - \alpha^2 P_{iq} P_{jp} \quad (\text{rows } i, j;\ \text{columns } p, q),

and each class's share :math:`\gamma_j R_j` of :math:`R^c` has the same form, with :math:`\alpha_j = \alpha / \gamma_j` and :math:`\gamma_j`
in front. Rows of X are sorted by class.

Source: textbook (second derivatives of log det); the rates are those of :cite:t:`yu2020learning`.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor


def scales(sizes: Sequence[int], dim: int, *, eps: float) -> tuple[float, ...]:
    """α = d / (n ε²) of all samples, then the α_j = d / (n_j ε²) of the classes."""
    return tuple(dim / (count * eps**2) for count in (sum(sizes), *sizes))


def sorted_labels(sizes: Sequence[int]) -> Int[Tensor, " n"]:
    """Labels of samples sorted by class, ``[n]``."""
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(list(sizes)))


def reduction_hessian(X: Float[Tensor, "n d"], sizes: Sequence[int], *, eps: float) -> Float[Tensor, "nd nd"]:
    """∇²ΔR(X), entries of X in the order of ``X.flatten()``.

    Args:
        X: rows sorted by class, ``[n, d]``.
        sizes: n_j, their sum is n.
        eps: distortion; squared inside.
    Source: the module's head.
    """
    n, d = X.shape
    alpha, *alphas = scales(sizes, d, eps=eps)
    H = _rate_hessian(X, alpha)
    first = 0
    for x, a in zip(X.split(list(sizes)), alphas):
        last = first + len(x)
        H[first:last, :, first:last] -= alpha / a * _rate_hessian(x, a)
        first = last
    return H.reshape(n * d, n * d)


def _rate_hessian(x: Tensor, a: float) -> Tensor:
    """Of half of log det(I + a x^T x), ``[n, d, n, d]``."""
    M = torch.linalg.inv(torch.eye(x.shape[1], dtype=x.dtype) + a * x.mT @ x)
    P = x @ M
    K = torch.eye(len(x), dtype=x.dtype) - a * P @ x.mT
    return a * torch.einsum("ij,pq->ipjq", K, M) - a**2 * torch.einsum("iq,jp->ipjq", P, P)
