r"""The rank of the nuclear-norm solution: the true one, and the number that the released notebook prints.

The notebook solves the problem with cvxpy's default solver (SCS for the nuclear norm), whose answer is good to about 1e-5, counts the
singular values above 1e-7, and takes an infeasible problem, for which the solver returns nothing, as rank one (``matrix_rank(None)`` is 1).
So what it prints for large d is the rank of the solver's error, and what it prints for small d is a mixture with ones.

Source: the notebook on ranks released with :cite:t:`tarzanagh2023transformers`.
"""

import warnings
from typing import Any, Literal

import numpy as np

from ..constraint_set import Constraints, check_constraints
from .frobenius import frobenius_max_margin
from .nuclear import nuclear_max_margin

THRESHOLD = 1e-7

Convention = Literal["truth", "official"]
NormName = Literal["nuclear", "frobenius"]


def rank(constraints: Constraints, *, norm: NormName = "nuclear", compat: Convention = "truth") -> int:
    """Rank of the max-margin solution.

    Args:
        constraints: of a single problem.
        norm: that W minimises.
        compat: ``"truth"``: the rank of a verified solution, by complementarity for the nuclear norm, from singular values above 1e-10 of
            the first for the Frobenius norm. ``"official"``: the number of the released notebook (:func:`official_rank`), which counts
            errors of its solver and takes infeasible problems as 1.
    Returns:
        The rank; 0 if nothing asks for more than W = 0.
    Raises:
        Infeasible: no W meets the constraints (``"truth"`` only: the notebook says 1).
        NotConverged: the solution could not be verified (``"truth"`` only).
        TypeError: not :class:`~..constraint_set.Constraints`.
        ValueError: another ``norm`` or ``compat``, or a batch of problems.

    Source: (Att-SVM) and (Att-SVM\\ :math:`_\\star`) of :cite:t:`tarzanagh2023transformers`.
    """
    check_constraints(constraints)
    if compat not in ("truth", "official"):
        raise ValueError(f"compat must be 'truth' or 'official', got {compat!r}")
    _check_norm(norm)
    if compat == "official":
        return official_rank(constraints, norm=norm)
    return (nuclear_max_margin(constraints) if norm == "nuclear" else frobenius_max_margin(constraints)).rank


def official_rank(constraints: Constraints, *, norm: NormName = "nuclear") -> int:
    """The number of the released notebook: singular values above 1e-7 of what cvxpy's default solver returns, 1 if it returns nothing.

    Reproduced are the problem, the choice of the solver (``problem.solve()`` without options), the absolute threshold and the 1 for no
    answer. Not reproduced is that the notebook hands over one constraint a token, here all are one vector: the same problem, whose solver
    may stop at another error. That error, and so the number, may also differ between versions of cvxpy and of its solvers. Takes 40 to
    100 ms at the sizes of the paper.

    Args:
        constraints: of a single problem without equations.
        norm: that W minimises.
    Returns:
        The number, whatever it is worth: see :func:`rank` for the truth.
    Raises:
        TypeError: not :class:`~..constraint_set.Constraints`.
        ValueError: another ``norm``, a batch of problems, or equations among the constraints, which the notebook does not have.

    Source: the notebook on ranks released with :cite:t:`tarzanagh2023transformers`.
    """
    import cvxpy as cp

    check_constraints(constraints)
    _check_norm(norm)
    if constraints.batch or bool(constraints.equality.any()):
        raise ValueError(f"constraints must be the inequalities of one problem, got {constraints}; pick one by constraints.problem(b)")
    W: Any = cp.Variable((constraints.difference.shape[-1], constraints.query.shape[-1]))
    margins: Any = cp.sum(cp.multiply(constraints.difference.numpy() @ W, constraints.query.numpy()), axis=1)
    problem = cp.Problem(cp.Minimize(cp.norm(W, "nuc" if norm == "nuclear" else "fro")), [margins >= constraints.rhs.numpy()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            problem.solve()
        except cp.SolverError:
            return 1
    return int(np.linalg.matrix_rank(W.value, tol=THRESHOLD)) if W.value is not None else 1


def _check_norm(norm: str) -> None:
    if norm not in ("nuclear", "frobenius"):
        raise ValueError(f"norm must be 'nuclear' or 'frobenius', got {norm!r}")
