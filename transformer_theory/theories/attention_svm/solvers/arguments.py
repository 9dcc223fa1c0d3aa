r"""What every solver refuses: anything but :class:`~..constraint_set.Constraints`, one problem in place of a batch, a tolerance of no size.

Source: the problems are (Att-SVM) of :cite:t:`tarzanagh2023transformers` in several norms.
"""

import math

from ..constraint_set import Constraints, check_constraints


def check_single(constraints: Constraints, tol: float, *, instead: str) -> None:
    """Refuses what is not one problem with a positive tolerance; ``instead`` says what to do with a batch.

    Raises:
        TypeError: not constraints, or a tolerance that is not a number.
        ValueError: a batch, or a tolerance that is not positive and finite.
    """
    check_constraints(constraints)
    check_tolerance(tol)
    if constraints.batch:
        raise ValueError(f"constraints must be those of one problem, got a batch {list(constraints.batch)}; {instead}")


def check_batch(constraints: Constraints, tol: float, *, single: str) -> None:
    """Refuses what is not a batch ``[B, m]`` with a positive tolerance; ``single`` is the function for one problem.

    Raises:
        TypeError: not constraints, or a tolerance that is not a number.
        ValueError: another number of leading dimensions, or a tolerance that is not positive and finite.
    """
    check_constraints(constraints)
    check_tolerance(tol)
    if len(constraints.batch) != 1:
        say = f"use {single}" if not constraints.batch else "flatten its leading dimensions to one"
        raise ValueError(f"constraints must be a batch [B, m] of problems, got leading dimensions {list(constraints.batch)}; {say}")


def check_tolerance(tol: float) -> None:
    """Refuses a tolerance that is not a positive, finite number.

    Raises:
        TypeError, ValueError: says what came.
    """
    if isinstance(tol, bool) or not isinstance(tol, (int, float)):
        raise TypeError(f"tol must be a number such as 1e-9, got {type(tol).__name__}")
    if not 0 < tol < math.inf:
        raise ValueError(f"tol must be positive and finite, got {tol}; it bounds a relative residual, 1e-9 is usual")
