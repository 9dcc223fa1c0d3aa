"""How features are judged by a classifier that learns next to nothing: the nearest of the classes' principal subspaces.

Source: :cite:t:`yu2020learning`.
"""

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
        ValueError: rank < 1.
    Source: :cite:t:`yu2020learning` (evaluation).
    """
    inside = test.new_full((int(labels.max()) + 1, len(test)), -1.0)
    for j, basis in principal_subspaces(train, labels, rank=rank).items():
        inside[j] = torch.linalg.vector_norm(test @ basis.mT, dim=-1)
    return inside.argmax(0)


def principal_subspaces(train: Float[Tensor, "n d"], labels: Int[Tensor, " n"], *, rank: int) -> dict[int, Float[Tensor, "r d"]]:
    """Orthonormal rows that span most of each class, through the origin: the first right singular vectors of its samples.

    Args:
        train: ``[n, d]``.
        labels: ``[n]``.
        rank: dimensions of each subspace, cut to what a class can span.
    Returns:
        ``[r, d]`` for each class with samples.
    Raises:
        ValueError: rank < 1.
    Source: :cite:t:`yu2020learning` (evaluation).
    """
    if rank < 1:
        raise ValueError(f"rank must be at least 1, got {rank}")
    return {j: torch.linalg.svd(train[labels == j], full_matrices=False).Vh[:rank] for j in labels.unique().tolist()}
