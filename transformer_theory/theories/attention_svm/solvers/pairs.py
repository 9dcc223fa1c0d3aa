"""The constraints of one problem as numpy arrays. On small matrices, calls of numpy cost less than calls of
torch.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Pairs:
    r"""Constraints of one problem as arrays, with the matrices :math:`F_c = d_c z_c^\top`.

    Attributes:
        difference, query: d ``[m, d_x]`` and z ``[m, d_z]``.
        rhs: right-hand sides b, ``[m]``.
        free: mask of the equations, ``[m]``; their multipliers have either sign.
    """

    difference: np.ndarray
    query: np.ndarray
    rhs: np.ndarray
    free: np.ndarray

    def __len__(self) -> int:
        return len(self.rhs)

    def take(self, index: np.ndarray) -> "Pairs":
        """Returns the constraints that ``index`` selects, an array of numbers or a mask."""
        return Pairs(self.difference[index], self.query[index], self.rhs[index], self.free[index])

    @cached_property
    def length(self) -> np.ndarray:
        r"""Frobenius norms :math:`\|F_c\| = \|d_c\| \|z_c\|`, ``[m]``."""
        # The product of the roots, not the root of the product: the product of the squares may overflow or
        # underflow.
        squares = (
            np.einsum("cd,cd->c", self.difference, self.difference),
            np.einsum("cd,cd->c", self.query, self.query),
        )
        return np.sqrt(squares[0]) * np.sqrt(squares[1])

    @cached_property
    def gram(self) -> np.ndarray:
        r"""Gram matrix :math:`G_{ce} = \langle F_c, F_e\rangle = (d_c^\top d_e)(z_c^\top z_e)`,
        ``[m, m]``.
        """
        return (self.difference @ self.difference.T) * (self.query @ self.query.T)

    def rows(self) -> np.ndarray:
        """Returns the :math:`F_c` as rows ``[m, d_x d_z]``, scaled to length one."""
        outer = self.difference[:, :, None] * self.query[:, None, :]
        return outer.reshape(len(self), -1) / self.length[:, None]

    def slack(self, W: np.ndarray) -> np.ndarray:
        """Returns margins minus right-hand sides, ``[m]``."""
        return np.einsum("cd,cd->c", self.difference @ W, self.query) - self.rhs

    def combine(self, weights: np.ndarray) -> np.ndarray:
        r"""Returns :math:`\sum_c \lambda_c F_c` for weights :math:`\lambda`, without forming the F_c."""
        return (self.difference * weights[:, None]).T @ self.query


def spread(weights: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Returns an array ``[m]`` with the weights where the mask ``[m]`` is true and zeros elsewhere."""
    full = np.zeros(len(mask))
    full[mask] = weights
    return full
