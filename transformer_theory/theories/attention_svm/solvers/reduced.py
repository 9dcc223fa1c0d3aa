r"""Nuclear-norm problems in the coordinates of the interior point, and back: scaled, in the span of one side, with their residuals.

W is :math:`D^\top \operatorname{diag}(\lambda) Z\, QQ^\top` with the differences D and queries Z as rows, so that only the smaller side
needs a basis; the two sides change places if the span of the differences is the smaller one.

Source: (Att-SVM\ :math:`_\star`) of :cite:t:`tarzanagh2023transformers`.
"""

from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from ..constraint_set import Constraints
from .conic import conic
from .exact_margins import surely_beyond
from .interior_point import Cone, Point
from .nearly_dependent import approach, likely, settle

ENTRIES = 10**7  # of all constraints as matrices: more are not formed
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
        M, inner = self._combine(multipliers), Q.mT @ Q
        lost = ~(torch.isfinite(M).all(-1).all(-1) & torch.isfinite(inner).all(-1).all(-1))  # zeros meet no constraint: never an answer
        if bool(lost.any()):
            at = lost.nonzero().squeeze(-1)
            multipliers, Q, M, inner = (v.index_fill(0, at, 0.0) for v in (multipliers, Q, M, inner))
        left = M @ Q
        norm = 0.5 * (left.square().sum((-2, -1)) + Q.square().sum((-2, -1)))
        return self._checked(left @ (self.basis @ Q).mT, multipliers, norm, torch.linalg.eigvalsh(inner).flip(-1), M)

    def whole(self, W: Tensor, multipliers: Tensor) -> Answer:
        """The answer W ``[B, d_x, d_z]``, such as the Frobenius solution, which is one in both norms where it has rank one."""
        W = (W.mT if self.swapped else W) / self.size[:, None, None]
        inside = W @ self.basis
        sigma = torch.nn.functional.pad(torch.linalg.svdvals(inside), (0, max(0, inside.shape[-1] - inside.shape[-2])))
        return self._checked(W, multipliers, sigma.sum(-1), sigma, self._combine(multipliers))

    def _combine(self, multipliers: Tensor) -> Tensor:
        """M ``[B, p, q]``; its square formed through inner products of constraints would lose half the digits where they nearly cancel."""
        return self.difference.mT @ (multipliers[..., None] * self.cone.query)

    def _checked(self, W: Tensor, multipliers: Tensor, norm: Tensor, sigma: Tensor, M: Tensor) -> Answer:
        """Residuals of W and its multipliers, which combine to M; ``sigma`` are the singular values of W, in this unit like ``norm``."""
        c, cone = self.constraints, self.cone
        bound = torch.linalg.eigvalsh(M.mT @ M).flip(-1).clamp(min=0).sqrt()
        dual = multipliers / bound[:, :1].clamp(min=1)
        W = (W.mT if self.swapped else W) * self.size[:, None, None]
        above, lost = surely_beyond(c.difference, W, c.query, c.rhs)
        margins, scale = above + c.rhs, cone.rhs.abs().amax(-1)
        beyond = above / self.size[:, None]
        one = norm.clamp(min=1e-300)
        gap = (norm - (cone.rhs * dual).sum(-1)).abs() / one
        parts = (
            gap,
            (torch.where(cone.free, beyond.abs(), -beyond) + lost / self.size[:, None]).amax(-1) / scale,
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

    def settled(self, answer: Answer, tol: float) -> Answer:
        """The answer to a single problem moved towards rounding where constraints nearly cancel; unmoved if that does not help."""
        coordinates, basis = _span(self.difference)
        W, Z = (answer.W.mT if self.swapped else answer.W) / self.size[:, None, None], self.cone.query
        if coordinates.numel() * Z.shape[-1] > ENTRIES or not bool(answer.kkt < torch.inf):
            return answer
        rows = coordinates[0][:, :, None] * Z[0][:, None, :]
        near = basis[0].mT @ W[0] @ self.basis[0]
        parts = tuple(v.numpy() for v in (rows, self.cone.rhs[0], self.cone.free[0], near, answer.dual[0]))
        rank, best = max(1, int(answer.rank[0])), answer
        for r in dict.fromkeys(min(max(1, rank + more), *near.shape) for more in (0, -1, 1)):  # the answer may be too rough to tell
            for active in likely(*parts):
                found = settle(*parts, rank=r, active=active)
                if found is not None and float((moved := self._returned(basis, *found)).kkt) < float(best.kkt):
                    best = moved
                if float(best.kkt) <= tol:
                    return best
        return best

    def _returned(self, basis: Tensor, small: np.ndarray, multipliers: np.ndarray) -> Answer:
        """The answer to a single problem, given W as an array in the coordinates of both spans."""
        W = self.size[:, None, None] * (basis @ torch.from_numpy(small)[None] @ self.basis.mT)
        return self.whole(W.mT if self.swapped else W, torch.from_numpy(multipliers)[None])

    def approached(self) -> Answer | None:
        """The answer of a general solver to a single problem in which constraints nearly cancel; None if it has none."""
        coordinates, basis = _span(self.difference)
        rows = coordinates[0][:, :, None] * self.cone.query[0][:, None, :]
        found = approach(*(v.numpy() for v in (rows, self.cone.rhs[0], self.cone.free[0])))
        return None if found is None else self._returned(basis, *found)

    def general(self) -> Answer | None:
        """The answer of a general solver to a single problem; None if it has none."""
        import cvxpy as cp

        coordinates, basis = _span(self.difference)
        cone = self.cone
        found = conic(*(v[0].numpy() for v in (coordinates, cone.query, cone.rhs, cone.free)), norm=cp.normNuc)
        return None if found is None else self._returned(basis, *found)


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
