"""How features are judged by a classifier that learns next to nothing: the nearest of the classes' principal subspaces.

Source: :cite:t:`yu2020learning`.
"""

from numbers import Integral

import torch
from jaxtyping import Float, Int
from torch import Tensor


def nearest_subspace(train: Float[Tensor, "n d"], labels: Int[Tensor, " n"], test: Float[Tensor, "m d"], *, rank: int) -> Int[Tensor, " m"]:
    """Class whose principal subspace (through the origin) holds most of a sample: the largest ``||x U_j||``.

    Args:
        train: ``[n, d]``.
        labels: ``[n]``; classes without samples are never chosen.
        test: ``[m, d]``.
        rank: dimensions of each subspace, cut to what a class can span.
    Returns:
        ``[m]`` classes.
    Raises:
        ValueError: rank is no whole number >= 1.
    Source: :cite:t:`yu2020learning` (evaluation).
    """
    bases = principal_subspaces(train, labels, rank=rank)
    inside = torch.stack([torch.linalg.vector_norm(test @ basis.mT, dim=-1) for basis in bases.values()])
    return torch.tensor([*bases], device=test.device)[inside.argmax(0)]


def principal_subspaces(train: Float[Tensor, "n d"], labels: Int[Tensor, " n"], *, rank: int) -> dict[int, Float[Tensor, "r d"]]:
    """Orthonormal rows that span most of each class, through the origin: the first right singular vectors of its samples.

    Args:
        train: ``[n, d]``.
        labels: ``[n]``.
        rank: dimensions of each subspace, cut to what a class can span.
    Returns:
        ``[r, d]`` for each class with samples.
    Raises:
        ValueError: rank is no whole number >= 1.
    Source: :cite:t:`yu2020learning` (evaluation).
    """
    if not (isinstance(rank, Integral) and rank >= 1):
        raise ValueError(f"rank must be a whole number, at least 1, got {rank}")
    return {j: torch.linalg.svd(train[labels == j], full_matrices=False).Vh[:rank] for j in labels.unique().tolist()}
