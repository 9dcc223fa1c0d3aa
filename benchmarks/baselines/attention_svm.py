"""The Frobenius max-margin problem in cvxpy: as written in the paper, and with vectorised constraints."""

import cvxpy as cp
import numpy as np


def constraint_by_constraint(tokens: np.ndarray, query: np.ndarray, select: np.ndarray) -> np.ndarray:
    """Solves the problem with one cvxpy constraint per token that is not selected; returns W."""
    n, T, d = tokens.shape
    W = cp.Variable((d, query.shape[1]))
    margins = [
        (tokens[i, select[i]] - tokens[i, t]) @ W @ query[i] >= 1
        for i in range(n)
        for t in range(T)
        if t != select[i]
    ]
    cp.Problem(cp.Minimize(cp.norm(W, "fro")), margins).solve()
    return W.value  # pyright: ignore[reportReturnType]


def all_at_once(difference: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Solves it with one vector-valued constraint and a quadratic objective, the strongest plain use of
    cvxpy; returns W.
    """
    W = cp.Variable((difference.shape[1], query.shape[1]))
    margins = cp.sum(cp.multiply(difference @ W, query), axis=1)
    cp.Problem(cp.Minimize(cp.sum_squares(W)), [margins >= 1]).solve(solver="CLARABEL")  # pyright: ignore[reportArgumentType]
    return W.value  # pyright: ignore[reportReturnType]
