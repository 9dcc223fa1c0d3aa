r"""The landscape of the regularised problem: every critical point is a maximiser of known shape or a strict
saddle.

.. math::
    F(X) = \Delta R(X|y) - \tfrac{\lambda}{2} \|X\|_F^2, \qquad
    \nabla F = \alpha X (I + \alpha S)^{-1} - \alpha \big(X_j (I + \alpha_j S_j)^{-1}\big)_j - \lambda X ,

with :math:`S = X^\top X`, :math:`S_j = X_j^\top X_j`, :math:`\alpha = d/(n\epsilon^2)`, :math:`\alpha_j =
\alpha/\gamma_j`. The penalty replaces the constraint on the scale. For orthogonal classes F is a sum over
squared singular values s, with derivative
:math:`\tfrac12 [\alpha/(1 + \alpha s) - \alpha/(1 + \alpha_j s) - \lambda]`, which vanishes at the two roots
of

.. math::
    \lambda\alpha\alpha_j\, s^2 + [\lambda(\alpha + \alpha_j) - \alpha(\alpha_j - \alpha)]\, s + \lambda = 0,
    \qquad 0 < \lambda < \alpha\, \frac{1 - \sqrt{\gamma_j}}{1 + \sqrt{\gamma_j}} .

As a function of s, F has a minimum at the smaller root and a maximum at the larger one, :math:`\bar s_j`. At
the bound on λ itself the roots coincide in an inflection, so the interval is open. X is a local maximiser of
F if the classes are orthogonal and all singular values are 0 or :math:`\sqrt{\bar s_j}`. **Any number** of
them may be non-zero: an ascent does not restore a dimension that a class has lost. All other critical points
have a direction of ascent. The global maximisers give their dimensions to the smaller classes first
(:mod:`.claims.landscape`).

The Hessian classifies the critical points. With :math:`M = (I + \alpha S)^{-1}`, :math:`P = XM`,
:math:`K = (I + \alpha XX^\top)^{-1}`, the Hessian of R is

.. math::
    \alpha K_{ij} M_{pq} - \alpha^2 P_{iq} P_{jp} \quad (\text{rows } i, j;\ \text{columns } p, q),

and the Hessian of the share :math:`\gamma_j R_j` of each class in :math:`R^c` has the same form with
:math:`\alpha_j = \alpha / \gamma_j` and the factor :math:`\gamma_j`. Rows of X are sorted by class.

Source: :cite:t:`wang2024global` (the critical points).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.validation import integers, positive
from ...metrics.coding import rate_reduction, rate_reduction_gradient
from .problem import sorted_labels, with_spectra


@dataclass(frozen=True)
class Regularised:
    """The problem with a penalty: maximise :meth:`value` over all X of shape ``[n, dim]``.

    Attributes:
        sizes: number of samples of each class; rows of X are sorted by class.
        dim: dimension d of the features.
        eps: distortion; squared inside.
        penalty: λ, positive and below :func:`largest_penalty`.

    Raises:
        ValueError: there are fewer than two classes, a class is empty, dim is below 1, or eps or the penalty
            is out of range.
    """

    sizes: tuple[int, ...]
    dim: int
    eps: float
    penalty: float

    def __post_init__(self):
        limit = largest_penalty(self.sizes, self.dim, eps=self.eps)
        if not 0 < self.penalty < limit:
            raise ValueError(
                f"penalty must lie between 0 and {limit:.3g} (above, only X = 0 is a maximiser), got "
                f"{self.penalty}"
            )

    @property
    def unit(self) -> float:
        """λ, the unit of gradients and eigenvalues."""
        return self.penalty

    def value(self, X: Float[Tensor, "n d"]) -> float:
        """Returns F(X) in nats."""
        return float(rate_reduction(X, sorted_labels(self.sizes), eps=self.eps)) - self.penalty / 2 * float(
            X.square().sum()
        )

    def gradient(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Returns ∇F(X)."""
        return rate_reduction_gradient(X, sorted_labels(self.sizes), eps=self.eps) - self.penalty * X

    def hessian(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "nd nd"]:
        """Returns ∇²F(X), with the entries of X in the order of ``X.flatten()``."""
        return reduction_hessian(X, self.sizes, eps=self.eps) - self.penalty * torch.eye(
            X.numel(), dtype=X.dtype
        )

    def move(self, X: Float[Tensor, "n d"], direction: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Returns X plus the direction."""
        return X + direction

    def squares(self) -> tuple[tuple[float, float], ...]:
        r"""Returns, per class, the roots :math:`s < \bar s_j` of the quadratic equation in the module
        docstring.

        They are the squared singular values of critical points with orthogonal classes.
        """
        alpha, *alphas = scales(self.sizes, self.dim, eps=self.eps)
        roots = []
        for a in alphas:
            # leading s² - middle s + λ = 0
            leading, middle = self.penalty * alpha * a, alpha * (a - alpha) - self.penalty * (alpha + a)
            larger = (middle + (middle**2 - 4 * leading * self.penalty) ** 0.5) / (2 * leading)
            # The smaller root follows from the product of the roots, λ / leading; the usual formula with a
            # minus sign would cancel.
            roots.append((self.penalty / (leading * larger), larger))
        return tuple(roots)

    def disorder(self, X: Float[Tensor, "n d"]) -> float:
        r"""Returns the distance of X from the shape of a maximiser; 0 at a maximiser.

        It is the maximum of two numbers. One is the largest distance of a singular value from the nearer of 0
        and
        :math:`\sqrt{\bar s_j}`, as a share of :math:`\sqrt{\bar s_j}`. The other is the largest overlap
        :math:`\|X_i X_j^\top\|_2 / \sqrt{\bar s_i \bar s_j}` of two classes.
        """
        parts = [x / larger**0.5 for x, (_, larger) in zip(X.split(self.sizes), self.squares())]
        worst = max(float(torch.minimum(s, (s - 1).abs()).max()) for s in map(torch.linalg.svdvals, parts))
        overlaps = [
            float(torch.linalg.matrix_norm(a @ b.mT, 2)) for k, a in enumerate(parts) for b in parts[:k]
        ]
        return max(worst, *overlaps)

    def steepest(self, X: Float[Tensor, "n d"]) -> float:
        """Returns the largest eigenvalue of the Hessian in units of the penalty.

        It is positive at a strict saddle, 0 at a maximiser (because its rotations are maximisers too), and -1
        at X = 0.
        """
        return float(torch.linalg.eigvalsh(self.hessian(X))[-1]) / self.penalty


def largest_penalty(sizes: Sequence[int], dim: int, *, eps: float) -> float:
    r"""Returns the bound on λ below which every class has non-zero maximisers.

    It is :math:`\alpha \min_j (1 - \sqrt{\gamma_j}) / (1 + \sqrt{\gamma_j})`.

    Raises:
        ValueError: there are fewer than two classes, a class is empty, dim is below 1, or eps is not
            positive.
    """
    positive(eps=eps)
    integers(dim=dim)
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"the problem needs two classes with samples in each, got {list(sizes)}")
    root = (max(sizes) / sum(sizes)) ** 0.5
    return dim / (sum(sizes) * eps**2) * (1 - root) / (1 + root)


def orthogonal_critical_point(
    problem: Regularised, smaller: Sequence[int], larger: Sequence[int], *, generator: torch.Generator
) -> Float[Tensor, "n d"]:
    r"""Returns a critical point with orthogonal classes; it is a saddle if any singular value is
    :math:`\sqrt{s}`.

    Args:
        problem: the problem.
        smaller, larger: numbers of singular values :math:`\sqrt{s}` and :math:`\sqrt{\bar s_j}` of each
            class; all others are 0.
        generator: random generator of the subspaces.
    Raises:
        ValueError: a class has fewer samples than singular values, or there are more singular values in total
            than dimensions.
    """
    counts = zip(smaller, larger, problem.squares(), strict=True)
    spectra = [[low] * n_low + [high] * n_high for n_low, n_high, (low, high) in counts]
    return with_spectra(problem.sizes, spectra, problem.dim, generator=generator)


def scales(sizes: Sequence[int], dim: int, *, eps: float) -> tuple[float, ...]:
    """Returns α = d / (n ε²) for all samples, then α_j = d / (n_j ε²) for each class."""
    return tuple(dim / (count * eps**2) for count in (sum(sizes), *sizes))


def reduction_hessian(X: Float[Tensor, "n d"], sizes: Sequence[int], *, eps: float) -> Float[Tensor, "nd nd"]:
    """Returns ∇²ΔR(X), with the entries of X in the order of ``X.flatten()``.

    Args:
        X: features, rows sorted by class, ``[n, d]``.
        sizes: number n_j of samples of each class, with sum n.
        eps: distortion; squared inside.
    """
    n, d = X.shape
    alpha, *alphas = scales(sizes, d, eps=eps)
    # R couples all samples, R^c only samples of the same class. So the Hessian of γ_j R_j with γ_j = α / α_j
    # is subtracted from the diagonal block of each class.
    H = _rate_hessian(X, alpha)
    first = 0
    for x, a in zip(X.split(list(sizes)), alphas):
        last = first + len(x)
        H[first:last, :, first:last] -= alpha / a * _rate_hessian(x, a)
        first = last
    return H.reshape(n * d, n * d)


def _rate_hessian(x: Tensor, a: float) -> Tensor:
    """Returns the Hessian of log det(I + a x^T x) / 2, ``[n, d, n, d]``; the module docstring defines M, P
    and K.
    """
    M = torch.linalg.inv(torch.eye(x.shape[1], dtype=x.dtype) + a * x.mT @ x)
    P = x @ M
    K = torch.eye(len(x), dtype=x.dtype) - a * P @ x.mT
    return a * torch.einsum("ij,pq->ipjq", K, M) - a**2 * torch.einsum("iq,jp->ipjq", P, P)
