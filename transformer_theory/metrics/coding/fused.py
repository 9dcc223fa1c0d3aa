r"""The rate reduction and its gradient in one pass over labelled features: what a training step needs, and nothing kept beside it.

For :math:`\gamma_2 R_{\gamma_1} - R^c` with :math:`R_{\gamma_1} = \tfrac12\log\det(I + \gamma_1\alpha X^\top X)` (ΔR if both are 1),

.. math::
    \nabla = \gamma_1\gamma_2\alpha\, X (I + \gamma_1\alpha X^\top X)^{-1}
    - \sum_j \tfrac{n_j}{n} \alpha_j X_j (I + \alpha_j X_j^\top X_j)^{-1}.

Three things make it cheap. Classes of like size are one batched product and one batched Cholesky factorisation, on the smaller side
(:math:`X_jX_j^\top` of a class with fewer samples than dimensions). Where all classes are larger than that, their moments add up to
:math:`X^\top X`, and both operators of a class are one matrix, so that value and gradient cost two products with the features. The
factors give the values and the inverses of the gradient. Memory: O(n d + k min(d, n_j)^2), never k n^2. Where the distortion is so small
that a Gram matrix would lose digits, singular values of the features take its place (:mod:`.resolvents`).

Source: :cite:t:`yu2020learning` (the loss, with the two weights of its training runs); :cite:t:`chan2022redunet` (the gradient).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...maths.linalg import LARGEST_GRAM_CONDITION
from .checks import check_features
from .memberships import blocks, class_sizes
from .resolvents import rate_and_inverse, rate_and_resolvent, smaller_gram, widened


@dataclass(frozen=True)
class RatesAndGradient:
    r"""Rates in nats a sample, and the gradient of ``gamma2 * expansion - class_rate``.

    Attributes:
        expansion: :math:`R_{\gamma_1}`, the rate of all features with gamma1 inside the determinant.
        rate: R, the same for gamma1 = 1.
        class_rate: R^c.
        gradient: ``[n, d]``.
    """

    expansion: Float[Tensor, ""]
    rate: Float[Tensor, ""]
    class_rate: Float[Tensor, ""]
    gradient: Float[Tensor, "n d"]


@torch.no_grad()
def rates_and_gradient(
    features: Float[Tensor, "n d"], labels: Int[Tensor, " n"], *, eps: float, gamma1: float = 1.0, gamma2: float = 1.0
) -> RatesAndGradient:
    r"""Both rates and the gradient of :math:`\gamma_2 R_{\gamma_1} - R^c`, without a graph.

    Args:
        features: rows are samples, ``[n, d]``.
        labels: class of each, integers >= 0, ``[n]``; gaps are allowed.
        eps: distortion, > 0; squared inside.
        gamma1: > 0, inside the determinant of the expansion.
        gamma2: >= 0, weighs the expansion.
    Raises:
        ValueError: see :func:`.class_coding_rates`.
    Source: :cite:t:`yu2020learning`.
    """
    check_features(features, eps)
    counts = class_sizes(features, labels)
    d = features.shape[1]
    with torch.autocast(features.device.type, enabled=False):
        energies = torch.zeros(len(counts), dtype=features.dtype, device=features.device)
        energies = energies.index_add(0, labels.long(), features.square().sum(1)) / counts.clamp(min=1)
        largest = d * max(gamma1, 1.0) / eps**2 * energies.amax()  # the mean energy of all samples is at most that of a class
        X = widened(features, largest)
        padded = torch.cat([X, X.new_zeros(1, d)])  # row n is the padding
        groups = [(counts[classes].to(X.dtype), rows, padded[rows]) for classes, rows in blocks(labels, counts)]
        way = _by_gram_matrices if bool(largest <= LARGEST_GRAM_CONDITION) else _by_singular_values
        parts = way(padded, groups, eps=eps, gamma1=gamma1, gamma2=gamma2)
        return RatesAndGradient(*(each.to(features.dtype) for each in parts))


_Groups = list[tuple[Tensor, Tensor, Tensor]]  # sizes [c], rows [c, size] and features [c, size, d] of classes of like size


def _by_gram_matrices(padded: Tensor, groups: _Groups, *, eps: float, gamma1: float, gamma2: float) -> tuple[Tensor, ...]:
    n, d = len(padded) - 1, padded.shape[1]
    alpha = d / (n * eps**2)
    grams = [smaller_gram(own) for _, _, own in groups]
    large = [rows.shape[1] > d for _, rows, _ in groups]  # these have their Gram matrix on the side of the dimensions
    whole = torch.stack([gram.sum(0) for gram in grams]).sum(0) if all(large) else smaller_gram(padded[:-1])
    expansion, inverse = rate_and_inverse(whole, padded.new_tensor(gamma1 * alpha))
    rate = expansion if gamma1 == 1 else rate_and_inverse(whole, padded.new_tensor(alpha))[0]
    outer = gamma1 * gamma2 * alpha * inverse
    spread = outer @ padded[:-1] if n <= d else None
    class_rate = padded.new_zeros(())
    gradient = torch.empty_like(padded)
    for (sizes, rows, own), gram, of_dimensions in zip(groups, grams, large):
        rates, inverses = rate_and_inverse(gram, d / (sizes * eps**2))
        class_rate = class_rate + (sizes / n) @ rates
        inner = alpha * inverses  # (n_j / n) alpha_j = alpha
        if of_dimensions:
            gradient[rows] = own @ (outer - inner)
        else:
            gradient[rows] = (own @ outer if spread is None else spread[rows.clamp(max=n - 1)]) - inner @ own
    return expansion, rate, class_rate, gradient[:-1]


def _by_singular_values(padded: Tensor, groups: _Groups, *, eps: float, gamma1: float, gamma2: float) -> tuple[Tensor, ...]:
    n, d = len(padded) - 1, padded.shape[1]
    alpha = d / (n * eps**2)
    expansion, spread = rate_and_resolvent(padded[:-1], padded.new_tensor(gamma1 * alpha))
    rate = expansion if gamma1 == 1 else rate_and_resolvent(padded[:-1], padded.new_tensor(alpha))[0]
    class_rate = padded.new_zeros(())
    gradient = torch.cat([gamma2 * spread, padded.new_zeros(1, d)])
    for sizes, rows, own in groups:
        rates, pulls = rate_and_resolvent(own, d / (sizes * eps**2))
        class_rate = class_rate + (sizes / n) @ rates
        gradient[rows] -= (sizes / n)[:, None, None] * pulls  # padding meets its own row alone
    return expansion, rate, class_rate, gradient[:-1]
