r"""The landscape of the regularised problem: every critical point is a maximiser of known shape or a strict saddle.

.. math::
    F(X) = \Delta R(X|y) - \tfrac{\lambda}{2} \|X\|_F^2, \qquad
    \nabla F = \alpha X (I + \alpha S)^{-1} - \alpha \big(X_j (I + \alpha_j S_j)^{-1}\big)_j - \lambda X ,

with :math:`S = X^\top X`, :math:`S_j = X_j^\top X_j`, :math:`\alpha = d/(n\epsilon^2)`, :math:`\alpha_j = \alpha/\gamma_j`. The penalty
takes the place of the constraint on the scale. For orthogonal classes F is a sum over squared singular values s, with derivative
:math:`\tfrac12 [\alpha/(1 + \alpha s) - \alpha/(1 + \alpha_j s) - \lambda]`, which vanishes at the two roots of

.. math::
    \lambda\alpha\alpha_j\, s^2 + [\lambda(\alpha + \alpha_j) - \alpha(\alpha_j - \alpha)]\, s + \lambda = 0, \qquad
    0 < \lambda < \alpha\, \frac{1 - \sqrt{\gamma_j}}{1 + \sqrt{\gamma_j}},

at the smaller one a minimum along s, at the larger one, :math:`\bar s_j`, a maximum. The maximisers of F are the X whose classes
are orthogonal with all singular values 0 or :math:`\sqrt{\bar s_j}`, **in any number that fits**: a class that has lost a dimension stays
without. All other critical points have a direction of ascent.

The Hessian has a closed form: with :math:`M = (I + \alpha S)^{-1}`, :math:`P = XM`, :math:`K = (I + \alpha XX^\top)^{-1}` the one of R is
:math:`\alpha K_{ij} M_{pq} - \alpha^2 P_{iq} P_{jp}` (rows i, j; columns p, q), and each class's share of :math:`R^c` has the same form.

Source: :cite:t:`wang2024global`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...linalg import orthonormalise
from ...metrics.coding import rate_reduction


@dataclass(frozen=True)
class Regularised:
    """The problem: maximise :meth:`value` over all X of shape ``[n, dim]``.

    Attributes:
        sizes: samples of each class; rows of X are sorted by class.
        dim: d.
        eps: distortion; squared inside.
        penalty: λ, positive and below :func:`largest_penalty`.

    Raises:
        ValueError: fewer than two classes, an empty one, dim below 1, or eps or the penalty out of bounds.
    """

    sizes: tuple[int, ...]
    dim: int
    eps: float
    penalty: float

    def __post_init__(self):
        limit = largest_penalty(self.sizes, self.dim, eps=self.eps)
        if not 0 < self.penalty < limit:
            raise ValueError(f"penalty must lie between 0 and {limit:.3g}, where maximisers other than zero end, got {self.penalty}")

    @property
    def alphas(self) -> tuple[float, ...]:
        """α, then the α_j."""
        return tuple(self.dim / (count * self.eps**2) for count in (sum(self.sizes), *self.sizes))

    @property
    def labels(self) -> Int[Tensor, " n"]:
        return torch.arange(len(self.sizes)).repeat_interleave(torch.tensor(self.sizes))

    def value(self, X: Float[Tensor, "n d"]) -> float:
        """F(X), nats."""
        return float(rate_reduction(X, self.labels, eps=self.eps)) - self.penalty / 2 * float(X.square().sum())

    def gradient(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """∇F(X)."""
        alpha, *alphas = self.alphas
        classes = [x @ _inverse(x, a) for x, a in zip(X.split(self.sizes), alphas)]
        return alpha * (X @ _inverse(X, alpha) - torch.cat(classes)) - self.penalty * X

    def hessian(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "nd nd"]:
        """∇²F(X), entries of X in the order of ``X.flatten()``."""
        alpha, *alphas = self.alphas
        n, d = X.shape
        H = _rate_hessian(X, alpha)
        first = 0
        for x, a in zip(X.split(self.sizes), alphas):
            last = first + len(x)
            H[first:last, :, first:last] -= alpha / a * _rate_hessian(x, a)
            first = last
        H = H.reshape(n * d, n * d)
        return H - self.penalty * torch.eye(n * d, dtype=X.dtype)

    def squares(self) -> tuple[tuple[float, float], ...]:
        r"""The two roots :math:`s < \bar s_j` of the module's head for each class: squared singular values of its critical points."""
        alpha, *alphas = self.alphas
        found = []
        for a in alphas:
            top, middle = self.penalty * alpha * a, alpha * (a - alpha) - self.penalty * (alpha + a)
            larger = (middle + (middle**2 - 4 * top * self.penalty) ** 0.5) / (2 * top)
            found.append((self.penalty / (top * larger), larger))  # the roots' product is λ / top
        return tuple(found)

    def disorder(self, X: Float[Tensor, "n d"]) -> float:
        r"""How far X is from the shape of a maximiser; 0 at one.

        The larger of the largest distance of a singular value from 0 and :math:`\sqrt{\bar s_j}`, whichever is nearer, as a share of the
        latter, and of the largest overlap :math:`\|X_i X_j^\top\|_2 / \sqrt{\bar s_i \bar s_j}` of two classes.
        """
        parts = [x / larger**0.5 for x, (_, larger) in zip(X.split(self.sizes), self.squares())]
        worst = max(float(torch.minimum(s, (s - 1).abs()).max()) for s in map(torch.linalg.svdvals, parts))
        overlaps = [float(torch.linalg.matrix_norm(a @ b.mT, 2)) for k, a in enumerate(parts) for b in parts[:k]]
        return max(worst, *overlaps)

    def steepest(self, X: Float[Tensor, "n d"]) -> float:
        """Largest eigenvalue of the Hessian in units of the penalty: positive at a strict saddle, 0 at a maximiser, whose rotations are
        maximisers too, and -1 at zero."""
        return float(torch.linalg.eigvalsh(self.hessian(X))[-1]) / self.penalty


def largest_penalty(sizes: Sequence[int], dim: int, *, eps: float) -> float:
    r"""The λ below which all classes have maximisers other than zero: :math:`\alpha \min_j (1 - \sqrt{\gamma_j}) / (1 + \sqrt{\gamma_j})`.

    Raises:
        ValueError: fewer than two classes, an empty one, dim below 1, or eps not positive.
    Source: :cite:t:`wang2024global`.
    """
    if len(sizes) < 2 or min(sizes) < 1 or dim < 1 or not 0 < eps < float("inf"):
        raise ValueError(f"the problem needs two classes, samples in each, dim >= 1 and eps > 0, got {list(sizes)}, dim {dim}, eps {eps}")
    root = (max(sizes) / sum(sizes)) ** 0.5
    return dim / (sum(sizes) * eps**2) * (1 - root) / (1 + root)


def orthogonal_critical_point(
    problem: Regularised, smaller: Sequence[int], larger: Sequence[int], *, generator: torch.Generator
) -> Float[Tensor, "n d"]:
    r"""A critical point with orthogonal classes: a saddle as soon as one singular value is at the smaller root.

    Args:
        smaller, larger: how many singular values :math:`\sqrt{s}` and :math:`\sqrt{\bar s_j}` each class has; all others are 0.
    Raises:
        ValueError: they do not fit into the classes or, together, into the dimension.
    Source: :cite:t:`wang2024global`.
    """
    ranks = [a + b for a, b in zip(smaller, larger, strict=True)]
    if len(ranks) != len(problem.sizes) or sum(ranks) > problem.dim or any(r > n for r, n in zip(ranks, problem.sizes)):
        raise ValueError(f"{ranks} singular values do not fit into classes of {list(problem.sizes)} in {problem.dim} dimensions")
    frame = orthonormalise(torch.randn(problem.dim, problem.dim, dtype=torch.float64, generator=generator))
    parts = []
    for n, low, rank, roots, basis in zip(problem.sizes, smaller, ranks, problem.squares(), frame[:, : sum(ranks)].split(ranks, 1)):
        left = orthonormalise(torch.randn(n, n, dtype=torch.float64, generator=generator))[:, :rank]
        values = torch.tensor([roots[0]] * low + [roots[1]] * (rank - low), dtype=torch.float64)
        parts.append(left * values.sqrt() @ basis.mT)
    return torch.cat(parts)


def _inverse(x: Tensor, a: float) -> Tensor:
    return torch.linalg.inv(torch.eye(x.shape[1], dtype=x.dtype) + a * x.mT @ x)


def _rate_hessian(x: Tensor, a: float) -> Tensor:
    """Of half of log det(I + a x^T x), ``[n, d, n, d]``."""
    M = _inverse(x, a)
    P = x @ M
    K = torch.eye(len(x), dtype=x.dtype) - a * P @ x.mT
    return a * torch.einsum("ij,pq->ipjq", K, M) - a**2 * torch.einsum("iq,jp->ipjq", P, P)


def ascend(problem: Regularised, start: Float[Tensor, "n d"], *, steps: int = 200, tolerance: float = 1e-12) -> Float[Tensor, "n d"]:
    """Follows F upwards from ``start`` to where its gradient vanishes, which may be a saddle that it was started on.

    Newton steps along the eigenvectors of the Hessian, upwards along all (saddle-free), halved until F rises.

    Args:
        steps: most of them.
        tolerance: of the gradient's norm, in units of the penalty.
    Source: textbook (:mod:`.landscape` for the Hessian).
    """
    X, value = start, problem.value(start)
    for _ in range(steps):
        g = problem.gradient(X)
        if float(g.norm()) <= tolerance * problem.penalty:
            break
        values, vectors = torch.linalg.eigh(problem.hessian(X))
        along = vectors.mT @ g.flatten()
        move = (vectors @ (along / (values.abs() + 1e-3 * problem.penalty * float(g.norm()) ** 0.5))).view_as(X)
        for _ in range(40):
            if (now := problem.value(X + move)) > value:
                break
            move = move / 2
        else:
            break  # F cannot tell the points apart any more
        X, value = X + move, now
    return polish(problem, X)


def polish(problem: Regularised, start: Float[Tensor, "n d"], *, steps: int = 100, tolerance: float = 1e-12) -> Float[Tensor, "n d"]:
    r"""Goes from ``start`` to a critical point near by, of whichever kind, by damped Gauss-Newton steps on :math:`\tfrac12\|\nabla F\|^2`.

    Args:
        steps: most of them.
        tolerance: of the gradient's norm, in units of the penalty.
    Returns:
        ``[n, d]`` where the gradient has not vanished if there is none: look at :meth:`Regularised.gradient`.
    Source: textbook (Levenberg-Marquardt).
    """
    X, g = start, problem.gradient(start)
    for _ in range(steps):
        size = float(g.norm())
        if size <= tolerance * problem.penalty:
            break
        values, vectors = torch.linalg.eigh(problem.hessian(X))
        damping = problem.penalty * size
        while damping < 1e12 * problem.penalty:
            move = -(vectors @ (values / (values.square() + damping) * (vectors.mT @ g.flatten()))).view_as(X)
            now = problem.gradient(X + move)
            if float(now.norm()) < size:
                break
            damping *= 4
        else:
            break
        X, g = X + move, now
    return X
