"""Batches of small dense matrices as numpy arrays ``[..., q, q]``: on them, calls of numpy cost a third of
calls of torch.
"""

import numpy as np
import torch


def transposed(A: np.ndarray) -> np.ndarray:
    """Returns the transposes of A ``[..., m, n]``, as a view."""
    return A.swapaxes(-1, -2)


def symmetric(A: np.ndarray) -> np.ndarray:
    """Returns (A + A^T) / 2 for A ``[..., q, q]``."""
    return 0.5 * (A + A.swapaxes(-1, -2))


def dot(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Returns inner products along the last dimension of ``[..., k]``."""
    return (left * right).sum(-1)


def add_to_diagonal(A: np.ndarray, values: np.ndarray | float) -> None:
    """Adds ``values`` ``[..., q]`` to the diagonals of A ``[..., q, q]``, in place."""
    diagonal = np.einsum("...ii->...i", A)  # a view
    diagonal += values


def cholesky(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns lower Cholesky factors ``[..., q, q]`` and the mask ``[...]`` of the matrices that have none,
    with identities for these.
    """
    try:
        return np.linalg.cholesky(matrices), np.zeros(matrices.shape[:-2], dtype=bool)
    except np.linalg.LinAlgError:
        lower, info = torch.linalg.cholesky_ex(torch.from_numpy(matrices))
        failed = info.numpy() != 0
        return np.where(
            failed[..., None, None], np.eye(matrices.shape[-1], dtype=matrices.dtype), lower.numpy()
        ), failed


def solve_cholesky(lower: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solves L L^T x = ``right`` for Cholesky factors L ``[..., q, q]`` and vectors ``[..., q]``."""
    factor = torch.from_numpy(lower)
    half = torch.linalg.solve_triangular(factor, torch.from_numpy(right[..., None]), upper=False)
    return torch.linalg.solve_triangular(factor.mT, half, upper=True).numpy()[..., 0]


def inverse_of_lower(lower: np.ndarray) -> np.ndarray:
    """Returns the inverses of lower triangular matrices ``[..., q, q]``."""
    eye = torch.eye(lower.shape[-1], dtype=torch.float64).expand(lower.shape)
    return torch.linalg.solve_triangular(torch.from_numpy(lower), eye, upper=False).numpy()
