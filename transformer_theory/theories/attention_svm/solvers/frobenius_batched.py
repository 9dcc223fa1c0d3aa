r"""The Frobenius problem for many instances at once: block pivoting with one batched Cholesky factorisation
per round.

Block principal pivoting (:cite:t:`portugal1994comparison`) for the dual of (Att-SVM) of
:cite:t:`tarzanagh2023transformers`,

.. math:: G\lambda - b = s, \quad \lambda, s \ge 0,\; \lambda^\top s = 0 \qquad (\text{equations: } \lambda_c
    \text{ free},\; s_c = 0),

where G is the Gram matrix of the constraints, scaled to a unit diagonal. Each problem has an active set of
constraints that are assumed to hold with equality; in each round, all constraints whose multiplier or slack
has the wrong sign enter or leave it. Rows and columns outside the set are replaced by those of the identity,
so that one batched factorisation serves sets of different sizes. With more constraints than entries of W,
steps on W take the place of pivoting (:mod:`.primal_interior`). Problems that neither solves go to the solver
of single problems, which also proves infeasibility.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ....core.errors import Infeasible, NotConverged
from ....core.threads import single_threaded
from ..constraint_set import Constraints
from ..solution import MaxMargins, kkt_residual
from .frobenius import check_batch, solve_problem
from .primal_interior import active_set_solutions
from .tolerances import (
    BATCHED_SIZE,
    DIRECT_SIZE,
    FROBENIUS_CACHE,
    FROBENIUS_KKT_TOL,
    MARGIN_ATOL,
    PATIENCE,
    PRIMAL_CACHE,
    PRIMAL_ENTRIES,
    REFINEMENTS,
    RIDGE,
    SIGN_ATOL,
)


@single_threaded
def frobenius_max_margins(constraints: Constraints, *, tol: float = FROBENIUS_KKT_TOL) -> MaxMargins:
    """Solves a batch of B problems like :func:`frobenius_max_margin`, but raises nothing for a problem
    without a solution.

    Args:
        constraints: a batch with one leading dimension, ``[B, m]``; :func:`~..constraint_set.stack` combines
            problems of different lengths.
        tol: largest accepted KKT residual, relative to the largest right-hand side of the problem.
    Returns:
        One solution per problem. ``status`` shows which problems have none; indexing such a problem raises
        its failure.
    Raises:
        TypeError: ``constraints`` is not :class:`~..constraint_set.Constraints`, or ``tol`` is not a number.
        ValueError: ``constraints`` does not have exactly one leading dimension, or ``tol`` is not positive.
    """
    check_batch(constraints, tol, single="frobenius_max_margin")
    B, m = constraints.rhs.shape
    batch = Batch(constraints)
    W, dual = (
        constraints.difference.new_zeros(B, constraints.difference.shape[-1], constraints.query.shape[-1]),
        batch.rhs.new_zeros(B, m),
    )
    entries = W[:1].numel()
    # If there are more constraints than entries of W, they are linearly dependent, and pivoting rarely
    # terminates. Small W then allow steps on W itself. The batch is split into parts that fit into the
    # processor's cache.
    pivoting = 0 < m <= min(BATCHED_SIZE, entries)
    if pivoting or (
        entries < m <= DIRECT_SIZE and entries <= PRIMAL_ENTRIES and not bool(constraints.equality.any())
    ):
        number = (
            math.ceil(B * m**2 / FROBENIUS_CACHE) if pivoting else math.ceil(B * m * entries / PRIMAL_CACHE)
        )
        for part in (slice(B * k // number, B * (k + 1) // number) for k in range(number)):
            problems = Batch(constraints.problem(part))
            W[part], dual[part] = problems.pivoted() if pivoting else problems.primal()
    # Pivoting may have stopped early with a wrong active set, which the residuals show. Problems with too
    # large a residual, or with NaN, go to the solver of single problems.
    margins = constraints.margins(W)
    kkt, gap = batch.residuals(W, dual)
    failures: list[Infeasible | NotConverged | None] = [None] * B
    for b in (~(kkt <= tol)).nonzero().squeeze(-1).tolist():
        try:
            solution = solve_problem(constraints, b, tol)
        except (Infeasible, NotConverged) as failure:
            failures[b] = failure.with_traceback(None)
            W[b], dual[b], margins[b], kkt[b], gap[b] = 0, 0, 0, torch.inf, torch.inf
            continue
        W[b], dual[b], margins[b], kkt[b], gap[b] = (
            solution.W,
            solution.dual,
            solution.margins,
            solution.kkt,
            solution.gap,
        )
    norm = torch.linalg.vector_norm(W, dim=(-2, -1))
    return MaxMargins(W, dual, margins, norm, kkt, gap, constraints.rhs, tuple(failures))


class Batch:
    """Problems ``[B, m]``, each scaled so that its right-hand sides are at most one in absolute value."""

    def __init__(self, constraints: Constraints):
        self.difference, self.query, self.free = (
            constraints.difference,
            constraints.query,
            constraints.equality,
        )
        self.length = self.difference.norm(dim=-1) * self.query.norm(dim=-1)
        counted = torch.where(self.length > 0, constraints.rhs.abs(), 0.0)
        self.scale = counted.amax(-1, keepdim=True) if len(constraints) else counted.new_ones(len(counted), 1)
        self.scale = torch.where(self.scale > 0, self.scale, 1.0)
        self.rhs = constraints.rhs / self.scale

    def slack(self, W: Tensor) -> Tensor:
        """Returns margins minus right-hand sides, ``[B, m]``."""
        return ((self.difference @ W) * self.query).sum(-1) - self.rhs

    def combine(self, weights: Tensor) -> Tensor:
        r"""Returns :math:`\sum_c \lambda_c d_c z_c^\top`, ``[B, d_x, d_z]``, for weights :math:`\lambda`
        ``[B, m]``.
        """
        return (self.difference * weights[..., None]).mT @ self.query

    def pivoted(self) -> tuple[Tensor, Tensor]:
        """Returns W ``[B, d_x, d_z]`` and multipliers ``[B, m]`` from block pivoting, not verified."""
        # Scale the constraints to length one: with a unit diagonal of G, RIDGE and SIGN_ATOL mean the same in
        # every problem of the batch.
        inverse_length = torch.where(self.length > 0, self.length, 1.0).reciprocal()
        unit = self.difference * inverse_length[..., None]
        gram = (unit @ unit.mT).mul_(self.query @ self.query.mT)
        active, factor, multipliers = _active_sets(
            gram, self.rhs * inverse_length, self.free & (self.length > 0)
        )
        multipliers = multipliers * inverse_length
        W, mask = self.combine(multipliers), active * inverse_length
        for _ in range(REFINEMENTS):
            # Iterative refinement on the active set. The correction is added to W itself: where constraints
            # nearly cancel, the multipliers are much larger than W, and a W formed from them would inherit
            # their rounding errors. It also removes the effect of the ridge.
            missing = -self.slack(W) * mask
            if not float(missing.abs().max()) > MARGIN_ATOL:
                break
            correction = _solve(factor, missing) * mask
            multipliers, W = multipliers + correction, W + self.combine(correction)
        return W * self.scale[..., None], multipliers * self.scale

    def primal(self) -> tuple[Tensor, Tensor]:
        """Returns W ``[B, d_x, d_z]`` and multipliers ``[B, m]`` from :mod:`.primal_interior`, not verified;
        inequalities only.
        """
        inverse_length = torch.where(self.length > 0, self.length, 1.0).reciprocal()
        rhs = self.rhs * inverse_length
        # W is measured in units in which the largest right-hand side of constraints of length one is one.
        size = rhs.abs().amax(-1, keepdim=True).clamp(min=1e-300)
        rows = ((self.difference * inverse_length[..., None])[..., None] * self.query[..., None, :]).flatten(
            -2
        )
        w, multipliers = active_set_solutions(
            rows.numpy(), (rhs / size).numpy(), (size / inverse_length).numpy()
        )
        W = (self.scale * size * torch.from_numpy(w)).view(
            len(w), self.difference.shape[-1], self.query.shape[-1]
        )
        return W, self.scale * size * torch.from_numpy(multipliers) * inverse_length

    def residuals(self, W: Tensor, multipliers: Tensor) -> tuple[Tensor, Tensor]:
        """Returns KKT residual and duality gap, each ``[B]``, as :func:`~.frobenius.residuals`
        defines them.
        """
        W, dual = W / self.scale[..., None], multipliers / self.scale
        square = W.square().sum((-2, -1))
        objective = torch.where(square > 0, square, 1.0)
        gap = (square - (self.rhs * dual).sum(-1)).abs() / objective
        terms = torch.maximum((dual.abs() * self.length).sum(-1), square.sqrt()).clamp(min=1e-300)
        distance = (W - self.combine(dual)).norm(dim=(-2, -1)) / terms
        arrays = (v.numpy() for v in (self.slack(W), dual, self.free))
        kkt = torch.from_numpy(kkt_residual(*arrays, scale=1.0, objective=objective.numpy()))
        return torch.stack([kkt, gap, distance]).amax(0), gap


@single_threaded
def many_dual_multipliers(
    gram: Float[Tensor, "B m m"], counted: Bool[Tensor, "B m"], *, tol: float = 1e-9
) -> tuple[Float[Tensor, "B m"], Bool[Tensor, " B"]]:
    """Computes the multipliers of B Frobenius problems from inner products alone, see
    :func:`~.frobenius.dual_multipliers`.

    Args:
        gram: inner products of the constraints, ``[B, m, m]``; all right-hand sides are one.
        counted: mask of the constraints, ``[B, m]``; the others are omitted and get the multiplier zero.
        tol: largest accepted KKT residual, rounding included.
    Returns:
        The multipliers, ``[B, m]``, and the mask of the problems whose multipliers meet the KKT conditions to
        ``tol``, ``[B]``.
    """
    multipliers, solved = (
        torch.zeros(counted.shape, dtype=gram.dtype),
        torch.zeros(len(gram), dtype=torch.bool),
    )
    number = math.ceil(len(gram) * gram.shape[-1] ** 2 / FROBENIUS_CACHE)
    for part in (slice(len(gram) * k // number, len(gram) * (k + 1) // number) for k in range(number)):
        # As in :meth:`Batch.pivoted`, the diagonal is scaled to one. Omitted constraints have zero rows and
        # zero right-hand sides, so they never become active.
        mask = counted[part].to(gram.dtype)
        length = torch.where(counted[part], gram[part].diagonal(dim1=-2, dim2=-1), 1.0).sqrt()
        inverse_length = mask / length
        unit = gram[part] * inverse_length[:, :, None] * inverse_length[:, None, :]
        active, factor, first = _active_sets(unit, inverse_length, torch.zeros_like(counted[part]))
        missing = inverse_length - (unit @ first[..., None]).squeeze(-1)
        first = first + _solve(factor, missing * active) * active  # one step of iterative refinement
        # W is never formed. Its margins are G l; their rounding error is proportional to the terms of these
        # sums, which may far exceed one. The entries of ``unit`` are at most one, which bounds the terms.
        margins, terms = (
            (unit @ first[..., None]).squeeze(-1) * length,
            first.abs().sum(-1, keepdim=True) * length,
        )
        valid = (first >= 0) & ((margins >= 1 - tol) & (1e-15 * terms <= tol) | (mask == 0))
        solved[part] = valid.all(-1)
        multipliers[part] = first * inverse_length
    return multipliers, solved


def _active_sets(gram: Tensor, rhs: Tensor, free: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Computes active sets by block pivoting. If the exchanges do not terminate or a factorisation fails, a
    problem keeps its last set.

    Returns:
        The active sets as zeros and ones ``[B, m]``, the Cholesky factors of their Gram matrices ``[B, m,
        m]`` (identity outside the set), and their multipliers ``[B, m]``.
    """
    B, m = rhs.shape
    active = ((rhs > 0) | free).to(gram.dtype)
    factor, multipliers, space = torch.empty_like(gram), torch.zeros_like(rhs), torch.empty_like(gram)
    unsolved, fewest, patience = torch.arange(B), torch.full((B,), m + 1), torch.full((B,), PATIENCE)
    # Finished problems leave the batch, so rounds become cheaper. A problem also leaves it after more than
    # PATIENCE rounds in a row without a new minimum of its number of wrong signs. The loop therefore ends:
    # the minimum can fall only finitely often.
    while len(unsolved):
        G, b, mask, signed = (v if len(unsolved) == B else v[unsolved] for v in (gram, rhs, active, ~free))
        # Outside the active set rows and columns are those of the identity, so the multipliers there are
        # zero. The ridge lets the factorisation succeed if active constraints are dependent. ``space`` is
        # reused: allocation would cost more than the product.
        block = torch.mul(G, mask[:, :, None], out=space[: len(unsolved)]).mul_(mask[:, None, :])
        block.diagonal(dim1=-2, dim2=-1).add_(1 + RIDGE - mask)
        lower, failed = torch.linalg.cholesky_ex(block)
        solution = _solve(lower, b * mask)
        # On the active set the multipliers must be non-negative, outside it the slacks.
        multiplier_or_slack = torch.where(mask > 0, solution, (G @ solution[..., None]).squeeze(-1) - b)
        wrong = (multiplier_or_slack < -SIGN_ATOL) & signed
        count = wrong.sum(-1)
        patience = torch.where(count < fewest, PATIENCE, patience - 1)
        fewest = torch.minimum(count, fewest)
        unfinished = (count > 0) & (failed == 0) & (patience >= 0)
        leaving = unsolved[~unfinished]
        factor[leaving], multipliers[leaving] = lower[~unfinished], solution[~unfinished]
        unsolved, fewest, patience, wrong = (
            unsolved[unfinished],
            fewest[unfinished],
            patience[unfinished],
            wrong[unfinished],
        )
        active[unsolved] = torch.where(wrong, 1 - mask[unfinished], mask[unfinished])
    return active, factor, multipliers


def _solve(lower: Tensor, right: Tensor) -> Tensor:
    """Solves L L^T x = ``right`` for Cholesky factors L ``[B, m, m]`` and right-hand sides ``[B, m]``."""
    half = torch.linalg.solve_triangular(lower, right[..., None], upper=False)
    return torch.linalg.solve_triangular(lower.mT, half, upper=True).squeeze(-1)
