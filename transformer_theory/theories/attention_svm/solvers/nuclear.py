r"""Maximum-margin token selection in the nuclear norm, the bias of descent on the factors of :math:`W = K Q^\top`.

.. math:: \min \|W\|_* \ \text{ subject to } d_c^\top W z_c \ge b_c, \qquad
    \text{dual: } \max\ b^\top\lambda \ \text{ subject to } \Big\|\sum_c \lambda_c d_c z_c^\top\Big\|_2 \le 1,\ \lambda \ge 0 .

The Frobenius problem decides feasibility and gives the start of an interior-point method (:mod:`.interior_point`), whose answer Newton's
method carries on to rounding (:mod:`.polish`); what is better by its KKT residual is kept. Problems on which both stay short go to a
general solver (Clarabel, through cvxpy), one by one.

Source: problem (Att-SVM\ :math:`_\star`) of :cite:t:`tarzanagh2023transformers`.
"""

import torch
from torch import Tensor

from ....errors import NotConverged
from ..constraint_set import Constraints
from ..solution import NOT_CONVERGED, MaxMargin, MaxMargins
from .frobenius import frobenius_max_margin
from .frobenius_batched import frobenius_max_margins
from .interior_point import inside, interior_point
from .polish import polish, square_root
from .reduced import Answer, Reduced

STAGES = (1e-5, 1e-7, 1e-9)  # accuracies of the interior point from which the polish starts, the next if it fails
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
        ValueError: a batch of problems, which is for :func:`nuclear_max_margins`.

    Source: (Att-SVM\ :math:`_\star`) of :cite:t:`tarzanagh2023transformers`.
    """
    if constraints.batch:
        raise ValueError(f"constraints must be those of one problem, got a batch {list(constraints.batch)}; use nuclear_max_margins")
    near = frobenius_max_margin(constraints)
    answer = _solve(constraints.problem(None), torch.tensor([near.norm], dtype=torch.float64), near.dual[None], tol)
    norm, kkt, gap, rank = (v.item() for v in (answer.norm, answer.kkt, answer.gap, answer.rank))
    solution = MaxMargin(answer.W[0], answer.dual[0], answer.margins[0], norm, kkt, gap, int(rank), rhs=constraints.rhs)
    if not solution.kkt <= tol:
        raise NotConverged(
            f"KKT residual must be at most {tol:.0e}, got {solution.kkt:.1e}: the problem is nearly degenerate; pass a larger tol",
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
        ValueError: a single problem, or more than one leading dimension.

    Source: (Att-SVM\\ :math:`_\\star`) of :cite:t:`tarzanagh2023transformers`.
    """
    near = frobenius_max_margins(constraints)
    answer = Answer.none(constraints)
    for part in near.solved.nonzero().squeeze(-1).split(max(1, CACHE // max(1, len(constraints)) ** 2)):
        answer.put(part, _solve(constraints.problem(part), near.norm[part], near.dual[part], tol))
    failed = (near.solved & ~(answer.kkt <= tol)).nonzero().squeeze(-1)
    answer.put(failed, Answer.none(constraints.problem(failed)))
    status = tuple(NOT_CONVERGED if b in set(failed.tolist()) else one for b, one in enumerate(near.status))
    found = answer.W, answer.dual, answer.margins, answer.norm, answer.kkt, answer.gap
    return MaxMargins(*found, status, constraints, nuclear_max_margin, answer.rank)


def _solve(c: Constraints, size: Tensor, dual: Tensor, tol: float) -> Answer:
    """The best answers found to feasible problems, with their residuals, given norms and multipliers of their Frobenius solutions."""
    answer = Answer.none(c)
    left, nothing = (size > 0).nonzero().squeeze(-1), (size == 0).nonzero().squeeze(-1)
    answer.kkt[nothing] = answer.gap[nothing] = 0.0  # W = 0 meets the constraints
    if not len(left):
        return answer
    problems = Reduced.of(c.problem(left), size[left])
    point = inside(problems.cone, dual[left] / size[left, None])
    for stage in STAGES:
        point = interior_point(problems.cone, point, tol=stage)
        answer.improve(left, problems.factored(*polish(problems.cone, point)))
        again = (~(answer.kkt[left] <= tol)).nonzero().squeeze(-1)
        if not len(again):
            return answer
        left, point, problems = left[again], point[again], problems[again]
        answer.improve(left, problems.factored(point.multipliers, square_root(point.weight)))
    for at in range(len(left)):
        one, here = problems[at : at + 1], left[at : at + 1]
        found = one.general()
        if found is not None:
            answer.improve(here, found)
            answer.improve(here, one.factored(*polish(one.cone, one.point(found))))
    return answer
