"""Problems of sparse rate reduction whose answers are known, and the textbook way to compute each step."""

import math

import torch
from torch import Tensor


def axis_subspaces(K: int, p: int) -> Tensor:
    """K subspaces of dimension p spanned by coordinate axes: orthonormal, orthogonal and complete, [K, K p, p]."""
    return torch.eye(K * p, dtype=torch.float64).unflatten(1, (K, p)).transpose(0, 1).contiguous()


def flat_tokens(K: int, p: int, sigma: float) -> Tensor:
    """Tokens whose coordinates in every axis subspace have p equal singular values sigma, [p, K p]."""
    return sigma * torch.eye(p, dtype=torch.float64).repeat(1, K)


def flat_subspace_rate(K: int, p: int, sigma: float, eps: float) -> float:
    """R^c of :func:`flat_tokens` in :func:`axis_subspaces`: K p / 2 log(1 + sigma^2 / eps^2), since beta = p / (p eps^2)."""
    return K * p / 2 * math.log(1 + sigma**2 / eps**2)


def flat_step(sigma: float, eps: float, kappa: float) -> float:
    """Singular value of :func:`flat_tokens` after an exact gradient step: the slope is sigma / (eps^2 + sigma^2)."""
    return sigma - kappa * sigma / (eps**2 + sigma**2)


def mssa_by_loops(tokens: Tensor, bases: Tensor, *, eps: float, scale: float) -> Tensor:
    """MSSA token by token and head by head, with explicit softmax sums; tokens [n, d]."""
    n = len(tokens)
    p = bases.shape[-1]
    out = torch.zeros_like(tokens)
    for U in bases:
        coords = [U.T @ z for z in tokens]
        for i in range(n):
            scores = [math.exp(scale * float(coords[j] @ coords[i])) for j in range(n)]
            mixed = sum(score / sum(scores) * coord for score, coord in zip(scores, coords))
            out[i] += U @ mixed
    return p / (n * eps**2) * out


def soft_threshold(tokens: Tensor, lam: float) -> Tensor:
    """Minimiser of the non-negative LASSO for an orthonormal dictionary with both signs, D = [I, -I]: relu(+-y - lambda), side by side."""
    return torch.cat([(tokens - lam).clamp(min=0), (-tokens - lam).clamp(min=0)], dim=-1)
