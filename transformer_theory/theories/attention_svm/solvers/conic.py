r"""Small max-margin problems in any norm, solved by a general conic solver (Clarabel through cvxpy,
:cite:t:`diamond2016cvxpy`).

.. math:: \min \|W\| \ \text{ subject to } d_c^\top W z_c \ge b_c, \qquad
    \text{dual: } \max\ b^\top\lambda \ \text{ subject to } \Big\|\sum_c\lambda_c d_c z_c^\top\Big\|_\circ \le
    1,\ \lambda \ge 0,

where :math:`\|\cdot\|_\circ` is the dual norm. The dual of the entrywise :math:`\ell_p` norm is the
:math:`\ell_q` norm with :math:`1/p + 1/q = 1`; the dual of the spectral norm is the nuclear norm. Mirror
descent with the potential :math:`\|W\|_p^p` converges in direction to the :math:`\ell_p` solution
(:cite:t:`julistiono2024optimizing`). Steepest descent in the spectral norm is conjectured to converge to the
spectral one. The problem is (Att-SVM) of :cite:t:`tarzanagh2023transformers` with a different norm.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch

from ....core.errors import NotConverged
from ....core.threads import single_threaded
from ....core.validation import number
from ..constraint_set import HINT, Constraints
from ..solution import MaxMargin, kkt_residual
from ..validation import check_type
from .frobenius import check_single
from .nuclear import frobenius_start
from .tolerances import OTHER_KKT_TOL

# Tolerances of Clarabel. Its defaults of 1e-8 are too loose: the KKT residual that OTHER_KKT_TOL bounds is
# defined differently.
TIGHT: Mapping[str, float] = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas", "tol_ktratio"), 1e-11)
NOTEBOOK_ATOL = 1e-7  # the released notebook counts the singular values above this as rank

Norm = Callable[[np.ndarray], float]
LARGEST_P = 1e6  # a larger power leaves no digits between the dual power and 1


@single_threaded
def lp_max_margin(constraints: Constraints, *, p: float, tol: float = OTHER_KKT_TOL) -> MaxMargin:
    r"""Finds the smallest matrix, in the :math:`\ell_p` norm of its entries, that meets the constraints.

    It is unique unless p is 1 or infinite. For p = 2, :func:`frobenius_max_margin` is faster.

    Args:
        constraints: as for :func:`frobenius_max_margin`.
        p: exponent of the norm, from 1 to infinity (``math.inf``).
        tol: largest accepted KKT residual.
    Returns:
        A verified solution. Its ``rank`` counts the singular values above a bound on the error of W; the
        bound follows from the uniform convexity of the norm.
    Raises:
        Infeasible: no W meets the constraints; ``certificate`` is a :class:`Farkas`.
        NotConverged: the residual stayed above ``tol``; ``state`` is the last iterate.
        TypeError: ``constraints`` is not :class:`~..constraint_set.Constraints`, or ``p`` or ``tol`` is not a
            number.
        ValueError: ``p`` is less than 1, or finite but above 1e6, ``tol`` is not positive, or ``constraints``
            is a batch.
    """
    if not number("p", p) >= 1:
        raise ValueError(f"p must be at least 1, got {p}; smaller powers do not define norms")
    if LARGEST_P < p < math.inf:
        raise ValueError(f"p must be at most {LARGEST_P:g} or infinite, got {p:g}; pass math.inf")
    check_type("constraints", constraints, Constraints, hint=HINT)
    dual_p = math.inf if p == 1 else 1.0 if p == math.inf else p / (p - 1)

    def norm(W: Any) -> Any:
        import cvxpy as cp

        entries = cp.vec(W, order="C")
        return cp.norm(entries, p) if p in (1, 2, math.inf) else cp.pnorm(entries, p, approx=False)  # pyright: ignore[reportArgumentType]

    entries = constraints.difference.shape[-1] * constraints.query.shape[-1]
    return _solve(
        constraints,
        norm,
        lambda W: float(np.linalg.norm(W.ravel(), p)),
        lambda M: float(np.linalg.norm(M.ravel(), dual_p)),
        lambda excess: _distance(excess, p, entries),
        tol=tol,
    )


@single_threaded
def spectral_max_margin(constraints: Constraints, *, tol: float = OTHER_KKT_TOL) -> MaxMargin:
    """Finds a matrix of smallest spectral norm (largest singular value) that meets the constraints. It need
    not be unique.

    Args:
        constraints: as for :func:`frobenius_max_margin`.
        tol: largest accepted KKT residual.
    Returns:
        A verified solution without ``rank``, since other solutions may have the same norm.
    Raises:
        Infeasible, NotConverged, TypeError, ValueError: as for :func:`lp_max_margin`.
    """

    def norm(W: Any) -> Any:
        import cvxpy as cp

        return cp.sigma_max(W)

    return _solve(
        constraints,
        norm,
        lambda W: float(np.linalg.norm(W, 2)),
        lambda M: float(np.linalg.norm(M, "nuc")),
        lambda _: math.inf,
        tol=tol,
    )


def _distance(excess: float, p: float, entries: int) -> float:
    r"""Bounds :math:`\|W - W_\star\|_F / \|W_\star\|_p` for a feasible W whose norm exceeds the smallest one
    by the share ``excess``.

    The midpoint of W and :math:`W_\star` is feasible, so its norm is at least the norm of :math:`W_\star`. In
    a uniformly convex norm the two matrices are then close. For p >= 2 the bound is Clarkson's inequality,
    for 1 < p < 2 its analogue with the modulus p - 1.

    Args:
        excess: :math:`\|W\|_p / \|W_\star\|_p - 1`, at least 0.
        p: the exponent of the norm.
        entries: number of entries of W.
    """
    # expm1 and log1p compute (1 + excess)^p - 1 without cancellation; the excess is near 1e-9.
    if p in (1, math.inf):
        return math.inf
    if p <= 2:
        return 2 * math.sqrt((math.expm1(2 * math.log1p(excess)) / 2) / (p - 1))
    return 2 * entries ** (0.5 - 1 / p) * (math.expm1(p * math.log1p(excess)) / 2) ** (1 / p)


def _solve(
    c: Constraints,
    expression: Callable[[Any], Any],
    norm: Norm,
    dual_norm: Norm,
    distance: Callable[[float], float],
    *,
    tol: float,
) -> MaxMargin:
    """Returns the verified solution in any norm.

    Args:
        expression: function from a cvxpy variable to its norm.
        norm, dual_norm: functions from an array to its norm and dual norm.
        distance: function from the relative excess of the norm of W to a bound on the error of W
            (:func:`_distance`).
        tol: largest accepted KKT residual.
    """
    check_single(c, tol, hint="solve its problems one by one, c.problem(b)")
    # The Frobenius solver decides feasibility, with a certificate, and its norm is the unit of W. If it
    # returns W = 0, that is the solution in every norm.
    start = frobenius_start(c)
    if start.norm == 0:
        return start
    difference, query, free = c.difference.numpy(), c.query.numpy(), c.equality.numpy()
    rhs = c.rhs.numpy() / start.norm
    answer = conic(difference, query, rhs, free, expression)
    if answer is None:
        raise NotConverged(
            "the interior-point method stopped without a point; the problem may be too large or badly scaled",
            state=start,
        )
    W, multipliers = answer
    # Multipliers divided by the dual norm of their combination are feasible for the dual, and b^T lambda
    # bounds the norm from below.
    multipliers = multipliers / max(1.0, dual_norm((difference * multipliers[:, None]).T @ query))
    slack, size, scale = ((difference @ W) * query).sum(1) - rhs, norm(W), float(np.abs(rhs).max())
    gap = abs(size - float(rhs @ multipliers)) / size
    kkt = max(gap, float(kkt_residual(slack, multipliers, free, scale=scale, objective=size)))
    # W may violate margins by the residual. After scaling W up until it is feasible, its norm exceeds the
    # smallest one by the gap plus the effect of the scaling: at most three times the residual. Singular
    # values below the resulting error of W may be errors of the solver.
    rank_rtol = (
        distance(3 * kkt) * size / max(float(np.linalg.norm(W, 2)), 1e-300) if kkt <= tol else math.inf
    )
    W = start.norm * torch.from_numpy(W)
    solution = MaxMargin(
        W,
        torch.from_numpy(multipliers),
        c.margins(W),
        start.norm * size,
        kkt,
        gap,
        c.rhs,
        status="optimal" if kkt <= tol else "not converged",
        rank_rtol=rank_rtol,
    )
    if not kkt <= tol:
        raise NotConverged(
            f"the KKT residual must be at most {tol:.0e}, got {kkt:.1e}; pass a larger tol",
            state=solution,
            residuals=kkt,
        )
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
    """Returns W ``[d_x, d_z]`` and multipliers ``[m]`` of ``min norm(W)``, not verified; None if the solver
    stops without a point.

    Args:
        difference, query: the constraints, ``[m, d_x]`` and ``[m, d_z]``.
        rhs: right-hand sides, ``[m]``, of the order of the margins of a W of norm one.
        free: mask of the equations, ``[m]``.
        norm: convex function of a cvxpy variable ``[d_x, d_z]``.
        solver, options: solver that cvxpy calls, and its options.
    """
    import cvxpy as cp

    W = cp.Variable((difference.shape[1], query.shape[1]))
    margins: Any = cp.sum(cp.multiply(difference @ W, query), axis=1)
    conditions: list[Any] = [margins[~free] >= rhs[~free]] if not free.all() else []
    conditions += [margins[free] == rhs[free]] if free.any() else []
    if (
        not _terminates(cp.Problem(cp.Minimize(norm(W)), conditions), solver=solver, **options)
        or W.value is None
    ):
        return None
    multipliers = np.zeros(len(rhs))
    # cvxpy gives the multipliers of equations the opposite sign.
    for constraint, mask, sign in zip(
        conditions, [~free] * (not free.all()) + [free], (1, -1) if not free.all() else (-1,)
    ):
        multipliers[mask] = sign * constraint.dual_value
    return np.asarray(W.value), multipliers


def official_rank(constraints: Constraints, *, norm: Literal["nuclear", "frobenius"] = "nuclear") -> int:
    """Returns the rank that the notebook released with :cite:t:`tarzanagh2023transformers` prints, which is
    not the rank of the solution.

    The notebook uses cvxpy's default solver, counts the singular values above 1e-7, and reports 1 if the
    solver returns no matrix, as for infeasible problems. In the nuclear norm the default solver (SCS) is
    accurate to about 1e-5, so its errors count as rank. The number may differ from the notebook's: here all
    constraints form one vector, while the notebook passes one per token, and versions of cvxpy differ. The
    true rank is ``nuclear_max_margin(constraints).rank``.

    Args:
        constraints: inequalities of a single problem.
        norm: norm that W minimises.
    Returns:
        The number of singular values above 1e-7.
    Raises:
        TypeError: ``constraints`` is not :class:`~..constraint_set.Constraints`.
        ValueError: ``norm`` is unknown, or ``constraints`` is a batch or contains equations.
    """
    import cvxpy as cp

    check_type("constraints", constraints, Constraints, hint=HINT)
    if norm not in ("nuclear", "frobenius"):
        raise ValueError(f"norm must be 'nuclear' or 'frobenius', got {norm!r}")
    if constraints.batch or bool(constraints.equality.any()):
        raise ValueError(
            f"constraints must be the inequalities of one problem, got {constraints}; select one with "
            "problem(b)"
        )
    W: Any = cp.Variable((constraints.difference.shape[-1], constraints.query.shape[-1]))
    margins: Any = cp.sum(cp.multiply(constraints.difference.numpy() @ W, constraints.query.numpy()), axis=1)
    problem = cp.Problem(
        cp.Minimize(cp.norm(W, "nuc" if norm == "nuclear" else "fro")), [margins >= constraints.rhs.numpy()]
    )
    if not _terminates(problem) or W.value is None:
        return 1
    return int(np.linalg.matrix_rank(W.value, tol=NOTEBOOK_ATOL))


def _terminates(problem: Any, **options: Any) -> bool:
    """Solves a cvxpy ``problem`` and returns whether the solver terminated without an error. Its point may be
    inaccurate.
    """
    import cvxpy as cp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            problem.solve(**options)
        except cp.SolverError:
            return False
    return True
