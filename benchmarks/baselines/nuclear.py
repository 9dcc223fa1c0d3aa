"""The nuclear max-margin problem as written in the paper, by cvxpy."""

from typing import Any

import cvxpy as cp
import numpy as np


def constraint_by_constraint(tokens: np.ndarray, query: np.ndarray, select: np.ndarray) -> np.ndarray:
    """One cvxpy constraint for each token that is not selected, the default solver."""
    n, T, d = tokens.shape
    W = cp.Variable((d, query.shape[1]))
    scored = [(tokens[i, select[i]] - tokens[i, t]) @ W @ query[i] >= 1 for i in range(n) for t in range(T) if t != select[i]]
    cp.Problem(cp.Minimize(cp.normNuc(W)), scored).solve()
    return W.value  # pyright: ignore[reportReturnType]


def all_at_once(difference: np.ndarray, query: np.ndarray) -> np.ndarray:
    """A single vector-valued constraint, and the interior-point solver Clarabel: the strongest plain use of cvxpy."""
    W = cp.Variable((difference.shape[1], query.shape[1]))
    margins: Any = cp.sum(cp.multiply(difference @ W, query), axis=1)
    cp.Problem(cp.Minimize(cp.normNuc(W)), [margins >= 1]).solve(solver="CLARABEL")
    return W.value  # pyright: ignore[reportReturnType]
