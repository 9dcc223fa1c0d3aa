r"""The Frobenius problem for many instances at once: block pivoting with one batched Cholesky factorisation a round.

Source: block principal pivoting, :cite:t:`portugal1994comparison`, for the dual of (Att-SVM) of :cite:t:`tarzanagh2023transformers`,

.. math:: G\lambda - b = s, \quad \lambda, s \ge 0,\; \lambda^\top s = 0 \qquad (\text{equations: } \lambda_c \text{ free},\; s_c = 0),

with G the Gram matrix of the constraints, scaled to a unit diagonal. Each problem has a set of constraints that hold with equality; all
members of the wrong sign are exchanged at once. Rows and columns outside the set are those of the identity, so that one factorisation
serves problems with sets of different sizes. Where that does not settle, or the answer fails its check, the solver of single problems takes
over: it also explains infeasible ones.
"""

import torch
from torch import Tensor

from ....core.errors import Infeasible, NotConverged
from ..constraint_set import Constraints
from ..solution import INFEASIBLE, NOT_CONVERGED, OPTIMAL, MaxMargins
from .arguments import check_batch
from .exact_margins import surely_beyond
from .frobenius import frobenius_max_margin

PATIENCE = 3  # rounds without fewer members of the wrong sign
MANY = 128  # constraints from which one problem at a time is as fast
RIDGE = 1e-11  # added to the unit diagonal: dependent constraints can be factorised too, and refinement takes its effect away
SHORT = 4e-15  # of a margin, relative to the constraint's length: rounding
CACHE = 2**17  # entries of the Gram matrices worked on at a time: those that the processor keeps close


def frobenius_max_margins(constraints: Constraints, *, tol: float = 1e-12) -> MaxMargins:
    """:func:`frobenius_max_margin` for a batch of B problems, each with its own status: nothing is raised for one that has no solution.

    Args:
        constraints: a batch with one leading dimension, ``[B, m]``; problems of different length are one batch by :func:`stack`.
        tol: largest KKT residual accepted, relative to the problem's largest right-hand side.
    Returns:
        One solution a problem; ``status`` says where there is none, and indexing such a problem raises the reason with its certificate.
    Raises:
        TypeError: not :class:`~..constraint_set.Constraints`, or a tolerance that is not a number.
        ValueError: a single problem, more than one leading dimension, or a tolerance that is not positive.

    Source: (Att-SVM) of :cite:t:`tarzanagh2023transformers`; :cite:t:`portugal1994comparison`.
    """
    check_batch(constraints, tol, single="frobenius_max_margin")
    B, m = constraints.rhs.shape
    problem = _Batch(constraints.difference, constraints.query, constraints.rhs, constraints.equality)
    W, multipliers = problem.difference.new_zeros(B, problem.difference.shape[-1], problem.query.shape[-1]), torch.zeros_like(problem.rhs)
    if 0 < m <= min(MANY, W[:1].numel()):  # more constraints than entries of W are dependent: seldom settled by exchanges
        size = max(1, CACHE // m**2)
        for part in (slice(b, b + size) for b in range(0, B, size)):
            W[part], multipliers[part] = problem[part].pivoted()
    margins, kkt, gap = problem.residuals(W, multipliers)
    status = [OPTIMAL] * B
    for b in (~(kkt <= tol)).nonzero().squeeze(-1).tolist():
        W[b], multipliers[b], margins[b], kkt[b], gap[b] = 0, 0, 0, torch.inf, torch.inf
        try:
            one = frobenius_max_margin(constraints.problem(b), tol=tol)
        except (Infeasible, NotConverged) as refusal:
            status[b] = INFEASIBLE if isinstance(refusal, Infeasible) else NOT_CONVERGED
            continue
        W[b], multipliers[b], margins[b], kkt[b], gap[b] = one.W, one.dual, one.margins, one.kkt, one.gap
    norm = torch.linalg.vector_norm(W, dim=(-2, -1))
    return MaxMargins(W, multipliers, margins, norm, kkt, gap, tuple(status), constraints, frobenius_max_margin)


class _Batch:
    """Problems [B, m] as plain tensors, the right-hand sides of each scaled to at most one."""

    def __init__(self, difference: Tensor, query: Tensor, rhs: Tensor, free: Tensor):
        self.difference, self.query, self.free = difference, query, free
        self.length = difference.norm(dim=-1) * query.norm(dim=-1)
        counted = torch.where(self.length > 0, rhs.abs(), 0.0)
        self.scale = counted.amax(-1, keepdim=True) if rhs.shape[-1] else counted.sum(-1, keepdim=True)
        self.scale = torch.where(self.scale > 0, self.scale, 1.0)
        self.rhs = rhs / self.scale

    def __getitem__(self, part: slice) -> "_Batch":
        return _Batch(self.difference[part], self.query[part], self.rhs[part] * self.scale[part], self.free[part])

    def margins(self, W: Tensor) -> Tensor:
        return ((self.difference @ W) * self.query).sum(-1)

    def combine(self, weights: Tensor) -> Tensor:
        return (self.difference * weights[..., None]).mT @ self.query

    def pivoted(self) -> tuple[Tensor, Tensor]:
        """W [B, d_x, d_z] and multipliers [B, m], unchecked."""
        inverse = torch.where(self.length > 0, self.length, 1.0).reciprocal()
        unit = self.difference * inverse[..., None]
        gram = (unit @ unit.mT).mul_(self.query @ self.query.mT)
        active, factor, multipliers = _active_sets(gram, self.rhs * inverse, self.free & (self.length > 0))
        multipliers = multipliers * inverse
        W, held = self.combine(multipliers), active * inverse
        for _ in range(4):  # refinement adds to W itself: its error is then that of W, not that of the multipliers, which may be large
            short = (self.rhs - self.margins(W)) * held
            if not float(short.abs().max()) > SHORT:
                break
            part = _solve(factor, short) * held
            multipliers, W = multipliers + part, W + self.combine(part)
        return W * self.scale[..., None], multipliers * self.scale

    def residuals(self, W: Tensor, multipliers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Margins [B, m], KKT residual and duality gap [B], as :func:`frobenius_max_margin` counts them."""
        if not multipliers.shape[-1]:
            return multipliers, multipliers.sum(-1), multipliers.sum(-1)
        above, lost = surely_beyond(self.difference, W / self.scale[..., None], self.query, self.rhs)
        dual = multipliers / self.scale
        square = (W / self.scale[..., None]).square().sum((-2, -1))
        norm, one = square.sqrt(), torch.where(square > 0, square, 1.0)
        gap = (square - (self.rhs * dual).sum(-1)).abs() / one
        apart = (W - self.combine(multipliers)).norm(dim=(-2, -1)) / self.scale.squeeze(-1)
        parts = (
            gap,
            (torch.where(self.free, above.abs(), -above) + lost).amax(-1),
            torch.where(self.free, 0.0, -dual).amax(-1) / one,
            (dual * above).abs().amax(-1) / one,
            apart / torch.maximum((dual.abs() * self.length).sum(-1), norm).clamp(min=1e-300),
        )
        return (above + self.rhs) * self.scale, torch.stack(parts).amax(0), gap


def _active_sets(gram: Tensor, rhs: Tensor, free: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Active set [B, m] as zeros and ones, Cholesky factor of its Gram matrix (identity outside) [B, m, m] and its multipliers [B, m].

    Problems that do not settle, or whose factorisation fails, keep what they have.
    """
    B, m = rhs.shape
    active = ((rhs > 0) | free).to(gram.dtype)
    factor, multipliers, space = torch.empty_like(gram), torch.zeros_like(rhs), torch.empty_like(gram)
    left, fewest, patience = torch.arange(B), torch.full((B,), m + 1), torch.full((B,), PATIENCE)
    while len(left):
        G, b, held, signed = (v if len(left) == B else v[left] for v in (gram, rhs, active, ~free))
        block = torch.mul(G, held[:, :, None], out=space[: len(left)]).mul_(held[:, None, :])
        block.diagonal(dim1=-2, dim2=-1).add_(1 + RIDGE - held)
        lower, failed = torch.linalg.cholesky_ex(block)
        found = _solve(lower, b * held)
        sign = torch.where(held > 0, found, (G @ found[..., None]).squeeze(-1) - b)
        wrong = (sign < -1e-14) & signed
        count = wrong.sum(-1)
        patience = torch.where(count < fewest, PATIENCE, patience - 1)
        fewest = torch.minimum(count, fewest)
        going = (count > 0) & (failed == 0) & (patience >= 0)
        done = left[~going]
        factor[done], multipliers[done] = lower[~going], found[~going]
        left, fewest, patience, wrong = left[going], fewest[going], patience[going], wrong[going]
        active[left] = torch.where(wrong, 1 - held[going], held[going])
    return active, factor, multipliers


def _solve(lower: Tensor, right: Tensor) -> Tensor:
    half = torch.linalg.solve_triangular(lower, right[..., None], upper=False)
    return torch.linalg.solve_triangular(lower.mT, half, upper=True).squeeze(-1)
