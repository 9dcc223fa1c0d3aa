r"""The landscape of the constrained problem: ΔR on a product of spheres, one for each class.

.. math::
    \max_X \Delta R(X|y) \quad \text{subject to} \quad \|X_j\|_F^2 = n_j .

Let :math:`G_j` be the rows of :math:`G = \nabla \Delta R` that belong to class j, and :math:`\lambda_j =
\langle G_j, X_j\rangle / n_j` the multipliers. The Riemannian gradient is :math:`(G_j - \lambda_j X_j)_j`,
and the Riemannian Hessian is

.. math::
    P\,(\nabla^2 \Delta R - \oplus_j \lambda_j I)\,P, \qquad P = \oplus_j (I - x_j x_j^\top / n_j), \quad x_j
    = \mathrm{vec}\, X_j,

where :math:`\lambda_j I` is the curvature of the spheres. A geodesic rotates each class in the plane of
:math:`X_j` and its tangent direction.

So every critical point is also a critical point of a problem with penalties (:mod:`.landscape`), with one
penalty λ_j per class. Orthogonal classes with flat spectra, :math:`s = n_j/r_j` in :math:`r_j` dimensions
each, are critical. Along a sphere, with :math:`f_j` of :mod:`.optimum`,

* if one of these singular values grows at the expense of another, the second derivative is :math:`4 s
  f_j''(s)`, which is negative iff :math:`r_j < \sqrt{n_j/n}\, d/\epsilon^2` (:func:`.optimum.largest_rank`),
* if a zero singular value grows in a new dimension, the second derivative is :math:`-\lambda_j < 0`.

Below the bound such X are local maximisers for any ranks (observed: the other eigenvalues are negative too,
except for rotations). Saddles include:

* flat spectra above the bound,
* spectra :math:`(a, b, \dots, b)` with :math:`ab = (n_j/n)/\alpha^2` and :math:`a + (r_j - 1) b = n_j`
  (:func:`uneven`),
* classes of rank one, two of which share a line (:func:`on_lines`). All classes on one line give the minimum,
  ΔR = 0.

:cite:t:`wang2024global` treat the problem with a penalty. The claim ``rate_reduction/spheres`` checks the
derivatives and the bound; that all other critical points are saddles is an observation.

Source: :cite:t:`yu2020learning` (the problem); the derivatives are standard.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.validation import integers, positive
from ...maths.linalg import orthonormalise
from ...metrics.coding import rate_reduction, rate_reduction_gradient
from .landscape import reduction_hessian, scales
from .optimum import disorder
from .problem import sorted_labels, with_spectra


@dataclass(frozen=True)
class OnSpheres:
    """The problem: maximise :meth:`value` over X of shape ``[n, dim]`` with squared norm n_j in each class.

    Attributes:
        sizes: number n_j of samples of each class; rows of X are sorted by class.
        dim: dimension d of the features.
        eps: distortion; squared inside.

    Raises:
        ValueError: there are fewer than two classes, a class is empty, dim is below 1, or eps is not
            positive.
    """

    sizes: tuple[int, ...]
    dim: int
    eps: float

    def __post_init__(self):
        positive(eps=self.eps)
        integers(dim=self.dim)
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise ValueError(f"the problem needs two classes with samples in each, got {list(self.sizes)}")

    @property
    def unit(self) -> float:
        """α, an upper bound on the eigenvalues of a rate's Hessian."""
        return scales(self.sizes, self.dim, eps=self.eps)[0]

    def value(self, X: Float[Tensor, "n d"]) -> float:
        """Returns ΔR(X) in nats."""
        return float(rate_reduction(X, sorted_labels(self.sizes), eps=self.eps))

    def gradient(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Returns the gradient of ΔR along the spheres."""
        G = rate_reduction_gradient(X, sorted_labels(self.sizes), eps=self.eps)
        return G - self._by_class(self._multipliers(X, G)) * X

    def hessian(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "nd nd"]:
        """Returns the Hessian of ΔR along the spheres, as a matrix on R^{nd}; its kernel contains the radial
        direction of each class.
        """
        G = rate_reduction_gradient(X, sorted_labels(self.sizes), eps=self.eps)
        curvature = self._by_class(self._multipliers(X, G)).expand(X.shape).flatten()
        radii = self._radii(X)
        P = torch.eye(X.numel(), dtype=X.dtype) - radii @ radii.mT
        return P @ (reduction_hessian(X, self.sizes, eps=self.eps) - torch.diag(curvature)) @ P

    def move(self, X: Float[Tensor, "n d"], direction: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Returns the end point of the geodesic from X along the tangent vector ``direction``, which has the
        length of the geodesic.
        """
        parts = []
        for x, v in zip(X.split(self.sizes), direction.split(self.sizes)):
            radius = len(x) ** 0.5
            angle = torch.linalg.matrix_norm(v) / radius
            # sin(angle) / angle, 1 at 0
            parts.append(torch.cos(angle) * x + torch.sinc(angle / torch.pi) * v)
        return self.project(torch.cat(parts))  # removes the drift by rounding

    def project(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Rescales each class to its squared norm n_j."""
        return torch.cat([len(x) ** 0.5 * x / torch.linalg.matrix_norm(x) for x in X.split(self.sizes)])

    def eigenvalues(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " directions"]:
        """Returns the eigenvalues of the Hessian on the n d - k directions along the spheres, ascending, in
        units of α.
        """
        # A complete QR factorisation extends the radial directions to an orthonormal basis; the added columns
        # are tangent to the spheres.
        tangents = torch.linalg.qr(self._radii(X), mode="complete").Q[:, len(self.sizes) :]
        return torch.linalg.eigvalsh(tangents.mT @ self.hessian(X) @ tangents) / self.unit

    def steepest(self, X: Float[Tensor, "n d"]) -> float:
        """Returns the largest of the :meth:`eigenvalues`.

        It is positive at a strict saddle, and 0 at a maximiser (because its rotations are maximisers too).
        """
        return float(self.eigenvalues(X)[-1])

    def disorder(self, X: Float[Tensor, "n d"]) -> float:
        """Returns the distance from orthogonal classes with flat spectra (:func:`.optimum.disorder`); 0 at a
        maximiser.
        """
        return disorder(X, sorted_labels(self.sizes))

    def _multipliers(self, X: Tensor, G: Tensor) -> Tensor:
        return torch.stack([(g * x).sum() / len(x) for g, x in zip(G.split(self.sizes), X.split(self.sizes))])

    def _by_class(self, values: Tensor) -> Tensor:
        return values[sorted_labels(self.sizes), None]

    def _radii(self, X: Tensor) -> Tensor:
        """Returns the unit vectors from the centres of the spheres to X, ``[nd, k]``."""
        memberships = torch.nn.functional.one_hot(sorted_labels(self.sizes)).to(X.dtype)
        return torch.einsum("np,nj->npj", X, memberships / memberships.sum(0).sqrt()).flatten(0, 1)


def uneven(problem: OnSpheres, ranks: Sequence[int], *, generator: torch.Generator) -> Float[Tensor, "n d"]:
    r"""Returns a saddle with orthogonal classes. A class of rank two or more has one squared singular value
    a; the others are b > a.

    Args:
        problem: the problem.
        ranks: ranks of the classes, >= 1, with sum at most d.
        generator: random generator of the subspaces.
    Raises:
        ValueError: the ranks do not fit, a class is too small for the distortion (:math:`n_j^2 < 4 (r_j - 1)
            (n_j/n)/\alpha^2`), or the values are not a < b.
    """
    spectra = []
    for size, rank in zip(problem.sizes, ranks, strict=True):
        product = size / sum(problem.sizes) / problem.unit**2
        # a = product / b in a + (r - 1) b = n_j gives a quadratic equation for b; its larger root has a < b.
        square = size**2 - 4 * (rank - 1) * product
        b = (size + max(square, 0.0) ** 0.5) / (2 * (rank - 1)) if rank > 1 else float(size)
        a = product / b
        if square < 0 or (rank > 1 and not a < b):
            raise ValueError(
                f"a class of {size} samples has no uneven critical spectrum of rank {rank} at eps "
                f"{problem.eps:g}; lower the rank or eps"
            )
        spectra.append([a] * (rank > 1) + [b] * max(rank - 1, 1))
    return with_spectra(problem.sizes, spectra, problem.dim, generator=generator)


def on_lines(problem: OnSpheres, lines: Sequence[int], *, generator: torch.Generator) -> Float[Tensor, "n d"]:
    """Returns a critical point with classes of rank one, each on one of several orthogonal lines; a saddle if
    two classes share a line.

    Args:
        problem: the problem.
        lines: number of the line of each class, from 0 to d - 1.
        generator: random generator of the lines.
    Raises:
        ValueError: there is not one line for each class, or a number exceeds the dimension.
    """
    if len(lines) != len(problem.sizes) or min(lines) < 0 or max(lines) >= problem.dim:
        raise ValueError(
            f"lines must be numbers from 0 to {problem.dim - 1}, one for each of {len(problem.sizes)} "
            f"classes, got {list(lines)}"
        )
    frame = orthonormalise(torch.randn(problem.dim, problem.dim, dtype=torch.float64, generator=generator))
    columns = [torch.randn(size, 1, dtype=torch.float64, generator=generator) for size in problem.sizes]
    return problem.project(torch.cat([column * frame[line] for column, line in zip(columns, lines)]))
