"""Textbook tools that several programs share: published data, descent by automatic differentiation, and
max-margin problems in cvxpy.

Tokens are ``[n, T, d]``, queries ``[n, d]`` and scores ``[n, T]``, all in float64, with a leading dimension
for several trials.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

TIGHT = {"solver": "CLARABEL", "tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}


def unit(x: Tensor) -> Tensor:
    """Scales vectors along the last dimension to length one."""
    return x / x.norm(dim=-1, keepdim=True)


def published(seeds: Iterable[int], n: int, T: int, d: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draws the random problems of the released notebooks in single precision: head, labels, tokens, queries,
    in this order.

    Returns tokens ``[trials, n, T, d]``, queries ``[trials, n, d]`` and scores ``[trials, n, T]``.
    """
    drawn = []
    for seed in seeds:
        g = torch.Generator().manual_seed(seed)
        head, label = unit(torch.randn(d, generator=g)), 2.0 * (torch.randn(n, generator=g) > 0) - 1
        x, z = unit(torch.randn(n, T, d, generator=g)).double(), unit(torch.randn(n, d, generator=g)).double()
        drawn.append((x, z, label.double()[:, None] * (x @ head.double())))
    return tuple(torch.stack(v) for v in zip(*drawn))  # pyright: ignore[reportReturnType]


def logistic(attention: Tensor, scores: Tensor) -> Tensor:
    """Returns the mean logistic loss over inputs, summed over trials."""
    return torch.log1p(torch.exp(-(attention * scores).sum(-1))).mean(-1).sum()


def shifted_logistic(logits: Tensor, scores: Tensor) -> Tensor:
    """Returns the same loss from logits, with scores relative to that of the most attended token.

    The differentiated expression then subtracts no nearly equal numbers, so the gradient keeps its digits
    after attention has saturated.
    """
    top = logits.detach().argmax(-1, keepdim=True)
    best = scores.gather(-1, top)
    excess = (logits.softmax(-1) * (scores - best)).sum(-1)
    return torch.log1p(torch.exp(-(best[..., 0] + excess))).mean(-1).sum()


def descend(
    loss: Callable[..., Tensor],
    weights: Sequence[Tensor],
    *,
    steps: int,
    rate: float,
    eps: float | Sequence[float] = 0.0,
    normalised: bool = True,
    matrix: bool = True,
    watch: Callable[..., None] | None = None,
) -> list[Tensor]:
    """Runs gradient descent by automatic differentiation; each weight's gradient is divided by its own norm
    plus eps.

    Args:
        loss: function of the weights, summed over trials.
        weights: first weights; the norm is over the last two dimensions if ``matrix``, otherwise over the
            last one.
        watch: called with the step and the weights before each step and after the last one.
    """
    weights = [w.clone().requires_grad_() for w in weights]
    offsets = eps if isinstance(eps, Sequence) else [eps] * len(weights)
    for step in range(steps + 1):
        if watch is not None:
            watch(step, *(w.detach() for w in weights))
        if step == steps:
            break
        gradients = torch.autograd.grad(loss(*weights), weights)
        with torch.no_grad():
            for w, g, offset in zip(weights, gradients, offsets):
                size = g.norm(dim=(-2, -1) if matrix else -1, keepdim=True) + offset if normalised else 1.0
                w -= rate * g / size
    return [w.detach() for w in weights]


def pairs(tokens: Tensor, query: Tensor, select: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Returns differences x_a - x_t and queries of all constraints of one problem, ``[m, d]`` each."""
    rows = [
        (tokens[i, select[i]] - tokens[i, t], query[i])
        for i in range(len(tokens))
        for t in range(tokens.shape[1])
        if t != int(select[i])
    ]
    return tuple(torch.stack(v).numpy() for v in zip(*rows))  # pyright: ignore[reportReturnType]


def max_margin(
    difference: np.ndarray,
    query: np.ndarray,
    norm: Callable[[Any], Any],
    *,
    rhs: np.ndarray | float = 1.0,
    equal: tuple[np.ndarray, np.ndarray] | None = None,
) -> np.ndarray | None:
    """Minimises a norm of W subject to d_c^T W z_c >= rhs and, if given, d_c^T W z_c = 0 for the pairs
    ``equal``; None if infeasible.
    """
    W: Any = cp.Variable((difference.shape[1], query.shape[1]))
    conditions: list[Any] = [cp.sum(cp.multiply(difference @ W, query), axis=1) >= rhs]
    if equal is not None and len(equal[0]):
        conditions.append(cp.sum(cp.multiply(equal[0] @ W, equal[1]), axis=1) == 0)
    problem = cp.Problem(cp.Minimize(norm(W)), conditions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Clarabel may stop just short of these tolerances
        problem.solve(**TIGHT)
    return None if problem.status not in ("optimal", "optimal_inaccurate") else np.asarray(W.value)


def frobenius(difference: np.ndarray, query: np.ndarray, **more: Any) -> np.ndarray | None:
    """Solves the problem in the Frobenius norm."""
    return max_margin(difference, query, cp.sum_squares, **more)


def nuclear(difference: np.ndarray, query: np.ndarray) -> np.ndarray | None:
    """Solves the problem in the nuclear norm."""
    return max_margin(difference, query, lambda W: cp.norm(W, "nuc"))


def cosine(a: np.ndarray | Tensor, b: np.ndarray | Tensor) -> float:
    """Returns the cosine between two arrays of equal size."""
    a, b = np.asarray(a).ravel(), np.asarray(b).ravel()
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
