"""Instances of maximal coding rate reduction: features at the optimum, features without any rate reduction,
and ReduNet's Gaussian toy.

Source: :cite:t:`yu2020learning` (the optimum), :cite:t:`chan2022redunet` (the toy).
"""

from collections.abc import Sequence
from numbers import Integral

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.sources import Source
from ...maths.linalg import orthonormalise
from ...metrics.coding import unit_norm

NAME = "rate_reduction"  # name of the theory in measurements, and prefix of arrays
# the setting, for statements and measurements of this library
MCR2, REDUNET, LANDSCAPE = (Source(key) for key in ("yu2020learning", "chan2022redunet", "wang2024global"))
OPTIMUM_THEOREM = Source("yu2020learning", "Thm. 2.1", "second-hand")


def sorted_labels(sizes: Sequence[int]) -> Int[Tensor, " n"]:
    """Returns the labels of samples sorted by class, ``[n]``."""
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(list(sizes)))


def check_integers(sizes: Sequence[int], ranks: Sequence[int]) -> None:
    """Checks the types of sizes and ranks.

    Raises:
        ValueError: a size or a rank is not an integer.
    """
    if any(not isinstance(value, Integral) for value in (*sizes, *ranks)):
        raise ValueError(
            f"class sizes and ranks must be integers, got sizes {list(sizes)} and ranks {list(ranks)}"
        )


def check_ranks(sizes: Sequence[int], ranks: Sequence[int], dim: int) -> None:
    """Checks that classes of these ranks fit into orthogonal subspaces.

    Raises:
        ValueError: sizes or ranks are not integers, there is not one rank per class between 1 and its number
            of samples, or their sum exceeds ``dim``.
    """
    check_integers(sizes, ranks)
    if len(sizes) != len(ranks) or sum(ranks) > dim or any(not 1 <= r <= n for r, n in zip(ranks, sizes)):
        raise ValueError(
            f"ranks must be between 1 and the samples of their class, with a sum <= {dim}, got "
            f"{list(ranks)} for classes of {list(sizes)}"
        )


def orthogonal_classes(
    sizes: Sequence[int], ranks: Sequence[int], dim: int, *, generator: torch.Generator
) -> tuple[Float[Tensor, "n d"], Int[Tensor, " n"]]:
    """Draws features at the optimum: random orthogonal subspaces, flat spectra, squared Frobenius norm n_j in
    each class.

    Returns:
        Features ``[n, d]`` float64 sorted by class, and labels ``[n]``.
    Raises:
        ValueError: the ranks do not fit (see :func:`check_ranks`).
    """
    check_ranks(sizes, ranks, dim)
    spectra = [[size / rank] * rank for size, rank in zip(sizes, ranks)]
    return with_spectra(sizes, spectra, dim, generator=generator), sorted_labels(sizes)


def with_spectra(
    sizes: Sequence[int], spectra: Sequence[Sequence[float]], dim: int, *, generator: torch.Generator
) -> Float[Tensor, "n d"]:
    """Draws classes in random orthogonal subspaces with the squared singular values ``spectra``; all other
    singular values are 0.

    Args:
        sizes: number of samples of each class.
        spectra: non-zero squared singular values of each class; may be empty.
        dim: dimension d.
        generator: random generator of the subspaces.
    Returns:
        Features ``[n, d]`` float64, sorted by class.
    Raises:
        ValueError: a class has fewer samples than singular values, or all values together exceed the
            dimension.
    """
    ranks = [len(values) for values in spectra]
    if len(ranks) != len(sizes) or sum(ranks) > dim or any(r > n for r, n in zip(ranks, sizes)):
        raise ValueError(
            f"{ranks} singular values do not fit into classes of {list(sizes)} in {dim} dimensions"
        )
    # The classes divide a random orthonormal frame of R^d, their right singular vectors; the left ones are
    # drawn for each class.
    frame = orthonormalise(torch.randn(dim, dim, dtype=torch.float64, generator=generator))
    parts = []
    for size, values, basis in zip(sizes, spectra, frame[:, : sum(ranks)].split(ranks, dim=1)):
        columns = orthonormalise(torch.randn(size, len(values), dtype=torch.float64, generator=generator))
        parts.append(columns * torch.tensor(values, dtype=torch.float64).sqrt() @ basis.mT)
    return torch.cat(parts)


def equal_moments(
    sizes: Sequence[int], dim: int, *, generator: torch.Generator
) -> tuple[Float[Tensor, "n d"], Int[Tensor, " n"]]:
    r"""Draws classes of different features with the same second moment :math:`X_j^\top X_j / n_j`, the case
    ΔR = 0.

    Args:
        sizes: number of samples of each class, each >= dim.
        dim: dimension d.
        generator: random generator of the features.
    Returns:
        Features ``[n, d]`` float64 sorted by class, and labels ``[n]``.
    Raises:
        ValueError: a class has fewer samples than dimensions.
    """
    if min(sizes) < dim:
        raise ValueError(
            f"classes need at least {dim} samples to share a second moment of full rank, got {min(sizes)}"
        )
    # With orthonormal columns Q_j the class sqrt(n_j) Q_j A has the second moment A^T A, which does not
    # depend on Q_j.
    root = torch.randn(dim, dim, dtype=torch.float64, generator=generator)
    parts = [
        n**0.5 * orthonormalise(torch.randn(n, dim, dtype=torch.float64, generator=generator)) @ root
        for n in sizes
    ]
    return torch.cat(parts), sorted_labels(sizes)


def gaussian_toy(
    dim: int, per_class: int, *, noise: float = 0.1, generator: torch.Generator
) -> tuple[Float[Tensor, "n d"], Int[Tensor, " n"]]:
    """Draws ReduNet's toy: one class around each coordinate axis, Gaussian noise, projected to the unit
    sphere.

    Args:
        dim: number of dimensions and of classes (2 and 3 in the paper).
        per_class: number of samples of each class.
        noise: standard deviation before the projection.
        generator: random generator of the noise.
    Returns:
        Features ``[dim * per_class, dim]`` float64 of norm 1, sorted by class, and labels.
    """
    labels = torch.arange(dim).repeat_interleave(per_class)
    centres = torch.eye(dim, dtype=torch.float64)[labels]
    return unit_norm(
        centres + noise * torch.randn(centres.shape, dtype=torch.float64, generator=generator)
    ), labels
