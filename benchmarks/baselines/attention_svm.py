"""Attention-SVM as one would write it down: one cvxpy constraint a token, and descent by autograd."""

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor


def constraint_by_constraint(tokens: np.ndarray, query: np.ndarray, select: np.ndarray) -> np.ndarray:
    """The max-margin problem with one cvxpy constraint for each token that is not selected."""
    n, T, d = tokens.shape
    W = cp.Variable((d, query.shape[1]))
    scored = [(tokens[i, select[i]] - tokens[i, t]) @ W @ query[i] >= 1 for i in range(n) for t in range(T) if t != select[i]]
    cp.Problem(cp.Minimize(cp.norm(W, "fro")), scored).solve()
    return W.value  # pyright: ignore[reportReturnType]


def all_at_once(difference: np.ndarray, query: np.ndarray) -> np.ndarray:
    """The same with a single vector-valued constraint and a quadratic objective: the strongest plain use of cvxpy."""
    W = cp.Variable((difference.shape[1], query.shape[1]))
    margins = cp.sum(cp.multiply(difference @ W, query), axis=1)
    cp.Problem(cp.Minimize(cp.sum_squares(W)), [margins >= 1]).solve(solver="CLARABEL")  # pyright: ignore[reportArgumentType]
    return W.value  # pyright: ignore[reportReturnType]


def autograd_descent(tokens: Tensor, query: Tensor, scores: Tensor, W: Tensor, *, steps: int, rate: float) -> Tensor:
    """Normalised descent of one trial, or of a batch if the tensors have a leading dimension, by automatic differentiation."""
    W = W.clone().requires_grad_()
    for _ in range(steps):
        attention = torch.softmax((tokens @ (query @ W.mT)[..., None]).squeeze(-1), -1)
        loss = torch.nn.functional.softplus(-(attention * scores).sum(-1)).mean(-1).sum()
        (gradient,) = torch.autograd.grad(loss, W)
        with torch.no_grad():
            W -= rate * gradient / (torch.linalg.matrix_norm(gradient)[..., None, None] + torch.finfo(W.dtype).eps)
    return W.detach()
