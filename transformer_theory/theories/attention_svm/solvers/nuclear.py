r"""Maximum-margin token selection in the nuclear norm, the bias of descent on the factors of :math:`W = K Q^\top`.

.. math:: \min \|W\|_* \ \text{ subject to } d_c^\top W z_c \ge b_c, \qquad
    \text{dual: } \max\ b^\top\lambda \ \text{ subject to } \Big\|\sum_c \lambda_c d_c z_c^\top\Big\|_2 \le 1,\ \lambda \ge 0 .

The Frobenius problem decides feasibility and gives the start of an interior-point method (:mod:`.interior_point`), whose answer Newton's
method carries on to rounding (:mod:`.polish`); what is better by its KKT residual is kept. Where queries or differences span one dimension
only, W has rank one and the Frobenius solution is the answer. Problems that all this leaves short, mostly because constraints nearly cancel
one another, are settled one by one in better coordinates (:mod:`.nearly_dependent`), if need be from the answer of a general solver
(Clarabel, through cvxpy). Beyond a few hundred constraints, working sets are solved.

Source: problem (Att-SVM\ :math:`_\star`) of :cite:t:`tarzanagh2023transformers`.
"""

from dataclasses import replace

import torch
from torch import Tensor

from ....core.errors import NotConverged
from ..constraint_set import Constraints
from ..solution import NOT_CONVERGED, OPTIMAL, MaxMargin, MaxMargins
from .arguments import check_batch, check_single
from .frobenius import frobenius_max_margin
from .frobenius_batched import frobenius_max_margins
from .interior_point import inside, interior_point
from .polish import polish, square_root
from .reduced import Answer, Reduced

STAGES = (1e-5, 1e-7, 1e-9)  # accuracies of the interior point from which the polish starts, the next if it fails
NEAR = 1e-3  # residual of a Frobenius solution from which the others can start
LARGE = 300  # constraints from which working sets are faster
ADDED = 1e-3  # of the tolerance: constraints violated by more join the working set
CACHE = 2**18  # entries of the Gram matrices worked on at a time


def nuclear_max_margin(constraints: Constraints, *, tol: float = 1e-9) -> MaxMargin:
    r"""Smallest matrix, in nuclear norm (sum of singular values), that meets the constraints: that scores every selected token above the
    others by one.

    The solution need not be unique: the norm is not strictly convex. On generic data it is; otherwise any of several may come back, and
    descent may go to another. KKT residual: violated margins relative to the largest right-hand side; relative to the norm, the duality
    gap :math:`\|W\|_* - b^\top\lambda` (with :math:`\lambda` scaled to :math:`\|M\|_2 \le 1`, and the norm bounded from above by half the
    squares of two factors), the complementary products, and negative multipliers.

    Args:
        constraints: as for :func:`frobenius_max_margin`: a single problem, any right-hand sides, equations among them.
        tol: largest KKT residual accepted.
    Returns:
        The solution with its multipliers, residual, and rank by complementarity; W = 0 if nothing asks for more.
    Raises:
        Infeasible: no W meets the constraints; ``certificate`` is a :class:`Farkas`.
        NotConverged: the residual stayed above ``tol``; carries the best point found with its residual.
        TypeError: not :class:`~..constraint_set.Constraints`, or a tolerance that is not a number.
        ValueError: a batch of problems, which is for :func:`nuclear_max_margins`, or a tolerance that is not positive.

    Beyond 300 constraints, working sets are solved, and take long where many constraints bind: 2,900 constraints in 30 dimensions took 18
    to 34 seconds.

    Source: (Att-SVM\ :math:`_\star`) of :cite:t:`tarzanagh2023transformers`.
    """
    check_single(constraints, tol, instead="use nuclear_max_margins")
    near = _near(constraints, tol)
    solve = _solve if len(constraints) <= LARGE else _solve_large
    answer = solve(constraints.problem(None), near.W[None], near.dual[None], tol)
    norm, kkt, gap, rank = (v.item() for v in (answer.norm, answer.kkt, answer.gap, answer.rank))
    found = answer.W[0], answer.dual[0], answer.margins[0]
    solution = MaxMargin(*found, norm, kkt, gap, int(rank), status=OPTIMAL if kkt <= tol else NOT_CONVERGED, rhs=constraints.rhs)
    if not solution.kkt <= tol:
        raise NotConverged(
            f"KKT residual must be at most {tol:.0e}, got {solution.kkt:.1e} by every route: constraints nearly cancel one another, or the "
            f"solution is nearly not unique; {'pass a larger tol' if kkt < NEAR else 'choose other tokens or fewer inputs'}",
            state=solution,
            residuals=solution.kkt,
        )
    return solution


def nuclear_max_margins(constraints: Constraints, *, tol: float = 1e-9) -> MaxMargins:
    """:func:`nuclear_max_margin` for a batch of B problems, each with its own status: nothing is raised for one that has no solution.

    Args:
        constraints: a batch with one leading dimension, ``[B, m]``; problems of different length are one batch by :func:`stack`.
        tol: largest KKT residual accepted.
    Returns:
        One solution a problem; ``status`` says where there is none, and indexing such a problem raises the reason.
    Raises:
        TypeError: not :class:`~..constraint_set.Constraints`, or a tolerance that is not a number.
        ValueError: a single problem, more than one leading dimension, or a tolerance that is not positive.

    Source: (Att-SVM\\ :math:`_\\star`) of :cite:t:`tarzanagh2023transformers`.
    """
    check_batch(constraints, tol, single="nuclear_max_margin")
    near = frobenius_max_margins(constraints)
    W, dual, status = near.W, near.dual, list(near.status)
    for b in (b for b, one in enumerate(near.status) if one == NOT_CONVERGED):
        try:
            one = _near(constraints.problem(b), tol)
        except NotConverged:
            continue
        W[b], dual[b], status[b] = one.W, one.dual, OPTIMAL
    answer, m = Answer.none(constraints), len(constraints)
    solved = torch.tensor([b for b, one in enumerate(status) if one == OPTIMAL], dtype=torch.long)
    solve, most = (_solve, max(1, CACHE // max(1, m) ** 2)) if m <= LARGE else (_solve_large, 1)
    for part in solved.split(most) if len(solved) else ():
        answer.put(part, solve(constraints.problem(part), W[part], dual[part], tol))
    failed = solved[~(answer.kkt[solved] <= tol)]
    answer.put(failed, Answer.none(constraints.problem(failed)))
    for b in failed.tolist():
        status[b] = NOT_CONVERGED
    found = answer.W, answer.dual, answer.margins, answer.norm, answer.kkt, answer.gap
    return MaxMargins(*found, tuple(status), constraints, nuclear_max_margin, answer.rank)


def _near(constraints: Constraints, tol: float) -> MaxMargin:
    """The Frobenius solution, or, where W is too long to be verified, what comes near: it is a start, and decides nothing else."""
    try:
        return frobenius_max_margin(constraints)
    except NotConverged as refusal:
        if isinstance(refusal.state, MaxMargin) and refusal.state.kkt <= max(tol, NEAR):
            return refusal.state
        raise


def _solve(c: Constraints, W: Tensor, dual: Tensor, tol: float) -> Answer:
    """The best answers found to feasible problems, with their residuals, given their Frobenius solutions and the multipliers."""
    answer, size = Answer.none(c), torch.linalg.vector_norm(W, dim=(-2, -1))
    left, nothing = (size > 0).nonzero().squeeze(-1), (size == 0).nonzero().squeeze(-1)
    answer.kkt[nothing] = answer.gap[nothing] = 0.0  # W = 0 meets the constraints
    if not len(left):
        return answer
    problems = Reduced.of(c.problem(left), size[left])
    if problems.cone.query.shape[-1] == 1:  # weights of rank one have the same length in all norms
        answer.improve(left, problems.whole(W[left], dual[left] / size[left, None]))
        again = (~(answer.kkt[left] <= tol)).nonzero().squeeze(-1)
        left, problems = left[again], problems[again]
    point = inside(problems.cone, dual[left] / size[left, None])
    for stage in STAGES:
        if not len(left):
            return answer
        point = interior_point(problems.cone, point, tol=stage)
        answer.improve(left, problems.factored(*polish(problems.cone, point)))
        again = (~(answer.kkt[left] <= tol)).nonzero().squeeze(-1)
        left, point, problems = left[again], point[again], problems[again]
        answer.improve(left, problems.factored(point.multipliers, square_root(point.weight)))
    for at in range(len(left)):
        one, here = problems[at : at + 1], left[at : at + 1]
        _alone(one, answer, here, tol)
    return answer


def _alone(one: Reduced, answer: Answer, here: Tensor, tol: float) -> None:
    """Improves the answer to a single problem by what takes longer, as far as it is needed."""
    answer.improve(here, one.settled(answer[here], tol))
    for start in (one.approached, one.general):
        found = None if bool(answer.kkt[here] <= tol) else start()
        if found is not None:
            for better in (found, one.factored(*polish(one.cone, one.point(found))), one.settled(found, tol)):
                answer.improve(here, better)


def _solve_large(c: Constraints, W: Tensor, dual: Tensor, tol: float) -> Answer:
    """:func:`_solve` for one problem of many constraints, by working sets: first those that nearly bind in the Frobenius solution, then
    also what the answer violates, until it violates none. If an answer cannot be verified, the whole problem is solved at once."""
    m, scale = len(c), float(c.rhs.abs().amax()) or 1.0
    working = (dual[0] > 0) | c.equality[0]
    near = (c.margins(W) - c.rhs)[0].topk(min(m, max(LARGE // 2, int(1.5 * working.sum()))), largest=False).indices
    working[near] = True
    while int(working.sum()) < m / 2:
        where = working.nonzero().squeeze(-1)
        index = (slice(None), where)
        part = _solve(c.problem(index), W, dual[index], tol)
        if not bool(part.kkt <= tol):
            break
        margins = c.margins(part.W)
        short = torch.where(working, 0.0, c.rhs - margins)[0] / scale
        if not bool((short > ADDED * tol).any()):
            every = torch.zeros_like(dual).index_copy_(1, where, part.dual)
            return replace(part, dual=every, margins=margins, kkt=torch.maximum(part.kkt, short.amax()))
        working |= short >= max(ADDED * tol, float(short.topk(min(m, len(where))).values[-1]))  # the set at most doubles
    return _solve(c, W, dual, tol)
