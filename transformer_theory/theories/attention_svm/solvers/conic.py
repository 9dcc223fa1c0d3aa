r"""Max-margin problems in any norm by a general conic solver (Clarabel through cvxpy, :cite:t:`diamond2016cvxpy`), for small sizes.

.. math:: \min \|W\| \ \text{ subject to } d_c^\top W z_c \ge b_c, \qquad
    \text{dual: } \max\ b^\top\lambda \ \text{ subject to } \Big\|\sum_c\lambda_c d_c z_c^\top\Big\|_\circ \le 1,\ \lambda \ge 0,

with the dual norm :math:`\|\cdot\|_\circ`: the :math:`\ell_q` norm of the entries, :math:`1/p + 1/q = 1`, for their :math:`\ell_p` norm,
and the nuclear norm for the spectral norm. Mirror descent with the potential :math:`\|W\|_p^p` goes to the former
(:cite:t:`julistiono2024optimizing`); steepest descent in the spectral norm is conjectured to go to the latter. The problem is (Att-SVM) of
:cite:t:`tarzanagh2023transformers` with another norm.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch

from ....core.errors import NotConverged
from ....core.parallel import single_threaded
from ....core.validation import number
from ..constraint_set import HINT, Constraints
from ..solution import MaxMargin, kkt_residual
from ..validation import check_type
from .frobenius import check_single
from .nuclear import frobenius_start
from .tolerances import OTHER_KKT_TOL

# Tolerances of Clarabel. Its defaults of 1e-8 are too loose for OTHER_KKT_TOL, which is checked here by another measure.
TIGHT: Mapping[str, float] = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas", "tol_ktratio"), 1e-11)
NOTEBOOK_ATOL = 1e-7  # singular values above this count as rank in the released notebook

Norm = Callable[[np.ndarray], float]


@single_threaded
def lp_max_margin(constraints: Constraints, *, p: float, tol: float = OTHER_KKT_TOL) -> MaxMargin:
    r"""Find the smallest matrix, in the :math:`\ell_p` norm of its entries, that meets the constraints. Unique unless p is 1 or infinite.

    p = 2 is :func:`frobenius_max_margin`, which is faster.

    Args:
        constraints: as for :func:`frobenius_max_margin`.
        p: from 1 to infinity (``math.inf``).
        tol: largest KKT residual accepted.
    Returns:
        A verified solution. Its ``rank`` counts singular values above a bound on the error of W, from the uniform convexity of the norm.
    Raises:
        Infeasible: no W meets the constraints; ``certificate`` is a :class:`Farkas`.
        NotConverged: the residual stayed above ``tol``; ``state`` is the last iterate.
        TypeError: not :class:`~..constraint_set.Constraints`, or a power or tolerance that is no number.
        ValueError: p is less than 1, a tolerance is not positive, or a batch of problems.
    """
    if not number("p", p) >= 1:
        raise ValueError(f"p must be at least 1, got {p}; smaller powers are no norms")
    check_type("constraints", constraints, Constraints, hint=HINT)
    dual = math.inf if p == 1 else 1.0 if p == math.inf else p / (p - 1)

    def norm(W: Any) -> Any:
        import cvxpy as cp

        entries = cp.vec(W, order="C")
        return cp.norm(entries, p) if p in (1, 2, math.inf) else cp.pnorm(entries, p, approx=False)  # pyright: ignore[reportArgumentType]

    entries = constraints.difference.shape[-1] * constraints.query.shape[-1]
    return _solve(
        constraints,
        norm,
        lambda W: float(np.linalg.norm(W.ravel(), p)),
        lambda M: float(np.linalg.norm(M.ravel(), dual)),
        lambda excess: _distance(excess, p, entries),
        tol=tol,
    )


@single_threaded
def spectral_max_margin(constraints: Constraints, *, tol: float = OTHER_KKT_TOL) -> MaxMargin:
    """Find a smallest matrix, in spectral norm (largest singular value), that meets the constraints. It need not be unique.

    Args:
        constraints: as for :func:`frobenius_max_margin`.
        tol: largest KKT residual accepted.
    Returns:
        A verified solution, one of those with the smallest norm; it offers no ``rank``.
    Raises:
        Infeasible, NotConverged, TypeError, ValueError: as :func:`lp_max_margin`.
    """

    def norm(W: Any) -> Any:
        import cvxpy as cp

        return cp.sigma_max(W)

    return _solve(
        constraints, norm, lambda W: float(np.linalg.norm(W, 2)), lambda M: float(np.linalg.norm(M, "nuc")), lambda _: math.inf, tol=tol
    )


def _distance(excess: float, p: float, entries: int) -> float:
    r"""Bound on :math:`\|W - W_\star\|_F / \|W_\star\|_p` of a feasible W whose norm is larger than the smallest by the share ``excess``.

    The midpoint of W and :math:`W_\star` is feasible, so its norm is at least the norm of :math:`W_\star`; in a uniformly convex norm the
    two must then be close. For p >= 2 the bound is Clarkson's inequality, for 1 < p < 2 its analogue with the modulus p - 1.

    Args:
        excess: :math:`\|W\|_p / \|W_\star\|_p - 1`, at least 0.
        p: the exponent of the norm.
        entries: number of entries of W.
    """
    # expm1 and log1p: (1 + excess)^p - 1 would lose all digits of an excess near 1e-9.
    if p in (1, math.inf):
        return math.inf
    if p <= 2:
        return 2 * math.sqrt((math.expm1(2 * math.log1p(excess)) / 2) / (p - 1))
    return 2 * entries ** (0.5 - 1 / p) * (math.expm1(p * math.log1p(excess)) / 2) ** (1 / p)


def _solve(
    c: Constraints, expression: Callable[[Any], Any], norm: Norm, dual_norm: Norm, distance: Callable[[float], float], *, tol: float
) -> MaxMargin:
    """The verified solution in any norm.

    Args:
        expression: the norm of a cvxpy variable.
        norm, dual_norm: the norm and the dual norm of an array.
        distance: bound on the distance of W from the solution, given the relative excess of its norm, see :func:`_distance`.
        tol: largest KKT residual accepted.
    """
    check_single(c, tol, hint="solve its problems one by one, c.problem(b)")
    # The Frobenius solution decides feasibility, with a certificate, and gives the unit of W. W = 0 is the solution in every norm.
    near = frobenius_start(c)
    if near.norm == 0:
        return near
    difference, query, free = c.difference.numpy(), c.query.numpy(), c.equality.numpy()
    rhs = c.rhs.numpy() / near.norm
    answer = conic(difference, query, rhs, free, expression)
    if answer is None:
        raise NotConverged("the interior-point method stopped without a point; the problem may be too large or badly scaled", state=near)
    W, multipliers = answer
    # Multipliers divided by the dual norm of their combination are feasible for the dual, so that b^T lambda bounds the norm from below.
    multipliers = multipliers / max(1.0, dual_norm((difference * multipliers[:, None]).T @ query))
    slack, size, scale = ((difference @ W) * query).sum(1) - rhs, norm(W), float(np.abs(rhs).max())
    gap = abs(size - float(rhs @ multipliers)) / size
    kkt = max(gap, float(kkt_residual(slack, multipliers, free, scale=scale, objective=size)))
    # W may violate margins by the residual. Scaled up until it is feasible, its norm exceeds the smallest one by the gap and by what the
    # scaling adds, at most three times the residual in all. Singular values below the resulting error of W may be errors of the solver.
    rank_rtol = distance(3 * kkt) * size / max(float(np.linalg.norm(W, 2)), 1e-300) if kkt <= tol else math.inf
    W = near.norm * torch.from_numpy(W)
    solution = MaxMargin(
        W,
        torch.from_numpy(multipliers),
        c.margins(W),
        near.norm * size,
        kkt,
        gap,
        c.rhs,
        status="optimal" if kkt <= tol else "not converged",
        rank_rtol=rank_rtol,
    )
    if not kkt <= tol:
        raise NotConverged(f"the KKT residual must be at most {tol:.0e}, got {kkt:.1e}; pass a larger tol", state=solution, residuals=kkt)
    return solution


def conic(
    difference: np.ndarray,
    query: np.ndarray,
    rhs: np.ndarray,
    free: np.ndarray,
    norm: Callable[[Any], Any],
    *,
    solver: str = "CLARABEL",
    options: Mapping[str, Any] = TIGHT,
) -> tuple[np.ndarray, np.ndarray] | None:
    """W ``[d_x, d_z]`` and multipliers ``[m]`` of ``min norm(W)``, not verified; None if the solver stops without a point.

    Args:
        difference, query: ``[m, d_x]`` and ``[m, d_z]``.
        rhs: ``[m]``, of the order of the margins of a W of norm one.
        free: the equations, ``[m]``.
        norm: a convex function of a cvxpy variable ``[d_x, d_z]``.
        solver, options: of cvxpy.
    """
    import cvxpy as cp

    W = cp.Variable((difference.shape[1], query.shape[1]))
    margins: Any = cp.sum(cp.multiply(difference @ W, query), axis=1)
    met: list[Any] = [margins[~free] >= rhs[~free]] if not free.all() else []
    met += [margins[free] == rhs[free]] if free.any() else []
    if not _ends(cp.Problem(cp.Minimize(norm(W)), met), solver=solver, **options) or W.value is None:
        return None
    multipliers = np.zeros(len(rhs))
    # The multiplier of an equation counts against the objective in cvxpy, hence the sign.
    for constraint, where, sign in zip(met, [~free] * (not free.all()) + [free], (1, -1) if not free.all() else (-1,)):
        multipliers[where] = sign * constraint.dual_value
    return np.asarray(W.value), multipliers


def official_rank(constraints: Constraints, *, norm: Literal["nuclear", "frobenius"] = "nuclear") -> int:
    """The rank that the notebook released with :cite:t:`tarzanagh2023transformers` prints: not the rank of the solution.

    The notebook solves the problem with cvxpy's default solver, whose nuclear-norm answer (SCS) is good to about 1e-5, counts the singular
    values above 1e-7, and reports 1 where the solver returns nothing, as for infeasible problems. So errors of the solver count as rank.
    Here all constraints are one vector; the notebook passes one per token, for which the solver may stop at another error. The number may
    also differ between versions of cvxpy. The true rank is ``nuclear_max_margin(constraints).rank``.

    Args:
        constraints: of a single problem without equations.
        norm: that W minimises.
    Returns:
        The number of singular values above 1e-7.
    Raises:
        TypeError: not :class:`~..constraint_set.Constraints`.
        ValueError: another ``norm``, a batch of problems, or equations among the constraints.
    """
    import cvxpy as cp

    check_type("constraints", constraints, Constraints, hint=HINT)
    if norm not in ("nuclear", "frobenius"):
        raise ValueError(f"norm must be 'nuclear' or 'frobenius', got {norm!r}")
    if constraints.batch or bool(constraints.equality.any()):
        raise ValueError(f"constraints must be the inequalities of one problem, got {constraints}; select one with problem(b)")
    W: Any = cp.Variable((constraints.difference.shape[-1], constraints.query.shape[-1]))
    margins: Any = cp.sum(cp.multiply(constraints.difference.numpy() @ W, constraints.query.numpy()), axis=1)
    problem = cp.Problem(cp.Minimize(cp.norm(W, "nuc" if norm == "nuclear" else "fro")), [margins >= constraints.rhs.numpy()])
    if not _ends(problem) or W.value is None:
        return 1
    return int(np.linalg.matrix_rank(W.value, tol=NOTEBOOK_ATOL))


def _ends(problem: Any, **options: Any) -> bool:
    """Solves a cvxpy ``problem``, and returns whether the solver came to an end. Its point may be inaccurate."""
    import cvxpy as cp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            problem.solve(**options)
        except cp.SolverError:
            return False
    return True
