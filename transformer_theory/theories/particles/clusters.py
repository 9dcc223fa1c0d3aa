r"""What one measures of a sequence of unit vectors: energy, mean cosine, clusters, and whether it lies in a
half-space.

The energy :math:`E(X) = n^{-2} \sum_{ij} e^{\beta (\langle x_i, x_j \rangle - 1)}` lies in (0, 1] and is 1
only if all tokens are equal. It never falls along SA and USA. Tokens in an open half-space end in one
cluster, whatever the scores. Independent tokens with a symmetric law in general position (any d of them
independent) lie in one with the probability of Wendel, :math:`2^{-(n-1)} \sum_{k<d} \binom{n-1}{k}`. Sources:
:cite:t:`geshkovski2025mathematical`, :cite:t:`wendel1962problem`.
"""

import math

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.validation import converted, finite, in_range, integers, number
from .dynamics import unit

SAME = 0.999  # cosine above which two tokens belong to one cluster


@in_range
@converted(floats=("X",))
def energy(X: Float[Tensor, "*batch n d"], *, beta: float) -> Float[Tensor, "*batch"]:
    """Computes E(X) of the directions of the tokens, ``[*batch]``.

    Raises:
        ValueError: there is no token, or beta or a token is not finite.
    """
    X = unit(X)
    # Rounding moves a cosine beyond 1, and that of a token with itself away from 1, which a large beta shows.
    same = torch.eye(X.shape[-2], dtype=torch.bool, device=X.device)
    return torch.exp(beta * (X @ X.mT - 1).clamp(max=0).masked_fill(same, 0)).mean((-2, -1))


@in_range
@converted(floats=("X",))
def mean_cosine(X: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
    """Computes the mean cosine of the pairs of different tokens, at least two, ``[*batch]``."""
    X, n = unit(X), X.shape[-2]
    integers(tokens=n, minimum=2)
    return (X.sum(-2).square().sum(-1) - X.square().sum((-2, -1))) / (n * (n - 1))


@converted(floats=("X",), masks=("valid",))
def count_clusters(
    X: Float[Tensor, "batch n d"], *, same: float = SAME, valid: Bool[Tensor, "batch n"] | None = None
) -> Int[Tensor, " batch"]:
    """Counts the clusters of each sequence: connected components of the pairs of tokens with a cosine above
    ``same``.

    Args:
        X: tokens, ``[batch, n, d]``.
        same: smallest cosine of neighbours.
        valid: tokens that count, ``[batch, n]``; None: all.
    Raises:
        ValueError: the tokens are not finite, or not ``[batch, n, d]``, or ``same`` is no cosine.
    """
    from scipy.sparse.csgraph import connected_components

    if X.ndim != 3:
        raise ValueError(
            f"tokens must be [batch, n, d], got the shape {tuple(X.shape)}; add the batch by X[None]"
        )
    if not -1 <= number("same", same) <= 1:
        raise ValueError(f"same must be a cosine, in [-1, 1], got {same}")
    finite(tokens=X)
    X = unit(X)
    near = (X @ X.mT > same).cpu().numpy()
    kept = np.ones(near.shape[:2], dtype=bool) if valid is None else valid.cpu().numpy()
    counts = [
        connected_components(one[np.ix_(row, row)], directed=False)[0] if row.any() else 0
        for one, row in zip(near, kept)
    ]
    return torch.tensor(counts)


def half_space_probability(n: int, d: int) -> float:
    """Computes the probability that n independent points of dimension d lie in an open half-space.

    Their law is symmetric, and any d of them are linearly independent with probability 1.
    """
    integers(n=n, d=d)
    return sum(math.comb(n - 1, k) for k in range(min(d, n))) / 2 ** (n - 1)


@converted(floats=("X",))
def in_half_space(X: Float[Tensor, "n d"]) -> bool:
    """Returns whether all tokens have a positive inner product with some vector: the linear program X w >= 1
    has a solution.

    A zero token has no positive inner product.

    Raises:
        ValueError: the tokens are not finite, or not ``[n, d]``.
    """
    from scipy.optimize import linprog

    if X.ndim != 2:
        raise ValueError(f"tokens must be [n, d], got the shape {tuple(X.shape)}; pass one sequence")
    finite(tokens=X)
    x = unit(X).double().cpu().numpy()
    if bool((x @ x.sum(0) > 1e-9).all()):
        return True  # their mean will do
    found = linprog(np.zeros(x.shape[1]), A_ub=-x, b_ub=-np.ones(len(x)), bounds=(None, None), method="highs")
    return found.status == 0
