r"""Max-margin problems in any norm by a general solver (Clarabel unless said otherwise, through cvxpy), one at a time, for small sizes.

Source: the problem is (Att-SVM) of :cite:t:`tarzanagh2023transformers` with another norm; cvxpy: :cite:t:`diamond2016cvxpy`.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

TIGHT: Mapping[str, float] = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas", "tol_ktratio"), 1e-11)


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
    """W and multipliers of ``min norm(W)``, unchecked; None if the solver stops without a point.

    Args:
        difference, query: ``[m, d_x]`` and ``[m, d_z]``.
        rhs: ``[m]``; of the order of the margins of a W of norm one.
        free: the equations, ``[m]``.
        norm: a convex function of a cvxpy variable ``[d_x, d_z]``.
        solver, options: of cvxpy.
    """
    import cvxpy as cp

    W = cp.Variable((difference.shape[1], query.shape[1]))
    margins: Any = cp.sum(cp.multiply(difference @ W, query), axis=1)
    held: list[Any] = [margins[~free] >= rhs[~free]] if not free.all() else []
    held += [margins[free] == rhs[free]] if free.any() else []
    if not solved(cp.Problem(cp.Minimize(norm(W)), held), solver=solver, options=options) or W.value is None:
        return None
    multipliers = np.zeros(len(rhs))
    for constraint, where, sign in zip(held, [~free] * (not free.all()) + [free], (1, -1) if not free.all() else (-1,)):
        multipliers[where] = sign * constraint.dual_value  # an equation's multiplier counts against the objective in cvxpy
    return np.asarray(W.value), multipliers


def solved(problem: Any, *, solver: str = "CLARABEL", options: Mapping[str, Any] = TIGHT) -> bool:
    """Whether the solver came to an end with a cvxpy ``problem``; that its point may be inaccurate is for the caller to find."""
    import cvxpy as cp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            problem.solve(solver=solver, **options)
        except cp.SolverError:
            return False
    return True
