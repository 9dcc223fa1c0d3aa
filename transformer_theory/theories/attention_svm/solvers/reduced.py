r"""Nuclear-norm problems in the coordinates of the interior point, and back: scaled, in the span of one side, with their residuals.

W is :math:`D^\top \operatorname{diag}(\lambda) Z\, QQ^\top` with the differences D and queries Z as rows, so that only the smaller side
needs a basis; the two sides change places if the span of the differences is the smaller one.

Source: (Att-SVM\ :math:`_\star`) of :cite:t:`tarzanagh2023transformers`.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ..constraint_set import Constraints
from .conic import conic
from .interior_point import Cone, Point

DEPENDENT = 1e-14  # of the largest eigenvalue of the second moments: directions below it are none


@dataclass(frozen=True)
class Answer:
    """The fields of :class:`~..solution.MaxMargins` that have a value for each problem."""

    W: Tensor
    dual: Tensor
    margins: Tensor
    norm: Tensor
    kkt: Tensor
    gap: Tensor
    rank: Tensor

    @classmethod
    def none(cls, c: Constraints) -> "Answer":
        """Zeros, with infinite residuals."""
        zeros, infinite = torch.zeros_like(c.difference[..., 0]), c.difference.new_full(c.batch, torch.inf)
        W = c.difference.new_zeros(*c.batch, c.difference.shape[-1], c.query.shape[-1])
        return cls(W, zeros, zeros.clone(), torch.zeros_like(infinite), infinite, infinite.clone(), torch.zeros_like(infinite).long())

    def __getitem__(self, index) -> "Answer":
        return Answer(*(getattr(self, field.name)[index] for field in fields(self)))

    def put(self, index: Tensor, other: "Answer") -> None:
        """Overwrites some problems."""
        for field in fields(self):
            getattr(self, field.name)[index] = getattr(other, field.name)

    def improve(self, index: Tensor, other: "Answer") -> None:
        """Takes over, for the problems ``index``, what has a smaller residual."""
        better = (other.kkt < self.kkt[index]).nonzero().squeeze(-1)
        self.put(index[better], other[better])


@dataclass(frozen=True)
class Reduced:
    """B problems, with the Frobenius norms ``size`` [B] of their Frobenius solutions as the unit of W.

    Attributes:
        constraints: as given.
        difference: the side that needs no basis, ``[B, m, p]``.
        basis: orthonormal columns that span the other, ``[B, p', q]``.
        cone: the problems in these coordinates.
        size: ``[B]``.
        swapped: the sides have changed places.
    """

    constraints: Constraints
    difference: Tensor
    basis: Tensor
    cone: Cone
    size: Tensor
    swapped: bool

    @classmethod
    def of(cls, c: Constraints, size: Tensor) -> "Reduced":
        assert c.rhs is not None
        assert c.equality is not None
        coordinates, basis = _span(c.query)
        swapped = min(len(c), c.difference.shape[-1]) < basis.shape[-1]
        if swapped:
            coordinates, basis = _span(c.difference)
        other = c.query if swapped else c.difference
        cone = Cone(other @ other.mT, coordinates, c.rhs / size[:, None], c.equality)
        return cls(c, other, basis, cone, size, swapped)

    def __getitem__(self, index) -> "Reduced":
        parts = (self.constraints.problem(index), self.difference[index], self.basis[index], self.cone[index], self.size[index])
        return Reduced(*parts, self.swapped)

    def factored(self, multipliers: Tensor, Q: Tensor) -> Answer:
        r"""The answer :math:`W = MQQ^\top`; its norm is at most :math:`\tfrac12(\|MQ\|_F^2 + \|Q\|_F^2)`: no singular values needed."""
        square, inner = self.cone.image(multipliers)[1], Q.mT @ Q
        lost = ~(torch.isfinite(square) & torch.isfinite(inner)).all(-1).all(-1)  # zeros meet no constraint, and are never an answer
        if bool(lost.any()):
            at = lost.nonzero().squeeze(-1)
            multipliers, Q, square, inner = (v.index_fill(0, at, 0.0) for v in (multipliers, Q, square, inner))
        W = self.difference.mT @ (multipliers[..., None] * (self.cone.query @ Q)) @ (self.basis @ Q).mT
        norm = 0.5 * (((square @ Q) * Q).sum((-2, -1)) + Q.square().sum((-2, -1)))
        return self._checked(W, multipliers, norm, torch.linalg.eigvalsh(inner).flip(-1), square)

    def _checked(self, W: Tensor, multipliers: Tensor, norm: Tensor, sigma: Tensor, square: Tensor) -> Answer:
        """Residuals of W and its multipliers; ``sigma`` are the singular values of W, in this unit like ``norm``."""
        c, cone = self.constraints, self.cone
        bound = torch.linalg.eigvalsh(square).flip(-1).clamp(min=0).sqrt()
        dual = multipliers / bound[:, :1].clamp(min=1)
        W = (W.mT if self.swapped else W) * self.size[:, None, None]
        margins = c.margins(W)
        scale = cone.rhs.abs().amax(-1)
        beyond = margins / self.size[:, None] - cone.rhs
        one = norm.clamp(min=1e-300)
        gap = (norm - (cone.rhs * dual).sum(-1)).abs() / one
        parts = (
            gap,
            torch.where(cone.free, beyond.abs(), -beyond).amax(-1) / scale,
            torch.where(cone.free, 0.0, -dual).amax(-1) * scale / one,
            (dual * beyond).abs().amax(-1) / one,
        )
        rank = (sigma > (1 - bound).clamp(min=1e-10) * sigma[:, :1]).sum(-1)
        return Answer(W, dual, margins, norm * self.size, torch.stack(parts).amax(0), gap, rank)

    def point(self, answer: Answer) -> Point:
        """The answer as an iterate of the interior point, on the boundary of its cones."""
        W = (answer.W.mT if self.swapped else answer.W) / self.size[:, None, None]
        _, sigma, right = torch.linalg.svd(W @ self.basis, full_matrices=False)
        slack = (answer.margins / self.size[:, None] - self.cone.rhs).clamp(min=0)
        return Point(answer.dual, slack, right.mT @ (sigma[..., None] * right))

    def general(self) -> Answer | None:
        """The answer of a general solver to a single problem; None if it has none."""
        import cvxpy as cp

        coordinates, basis = _span(self.difference)
        cone = self.cone
        found = conic(*(v[0].numpy() for v in (coordinates, cone.query, cone.rhs, cone.free)), norm=cp.normNuc)
        if found is None:
            return None
        small, multipliers = (torch.from_numpy(v)[None] for v in found)
        W = basis @ small @ self.basis.mT
        sigma = torch.linalg.svdvals(small)
        sigma = torch.nn.functional.pad(sigma, (0, cone.query.shape[-1] - sigma.shape[-1]))
        return self._checked(W, multipliers, sigma.sum(-1), sigma, cone.image(multipliers)[1])


def _span(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates ``[B, m, q]`` and an orthonormal basis ``[B, d, q]`` of the rows ``[B, m, d]``; q is the largest rank in the batch."""
    whole = None
    if rows.shape[-1] > rows.shape[-2]:
        whole, triangle = torch.linalg.qr(rows.mT)
        rows = triangle.mT
    values, vectors = torch.linalg.eigh(rows.mT @ rows)
    rank = max(1, int((values > DEPENDENT * values[:, -1:]).sum(-1).max()))
    basis = vectors[..., -rank:]
    return rows @ basis, basis if whole is None else whole @ basis
