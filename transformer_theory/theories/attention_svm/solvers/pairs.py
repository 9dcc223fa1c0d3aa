"""The constraints of one problem as numpy arrays, whose calls cost less than torch's on small matrices."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Pairs:
    """Constraints of one problem as arrays.

    Attributes:
        difference, query: d ``[m, d_x]`` and z ``[m, d_z]``.
        rhs: b, ``[m]``.
        free: the equations, ``[m]``: their multipliers have either sign.
    """

    difference: np.ndarray
    query: np.ndarray
    rhs: np.ndarray
    free: np.ndarray

    def __len__(self) -> int:
        return len(self.rhs)

    def take(self, where: np.ndarray) -> "Pairs":
        """The constraints with these numbers, or where a mask is true."""
        return Pairs(self.difference[where], self.query[where], self.rhs[where], self.free[where])

    @cached_property
    def length(self) -> np.ndarray:
        r""":math:`\|F_c\| = \|d_c\| \|z_c\|`."""
        # The product of two roots, not the root of a product: the product of the squares may leave the range of float64.
        squares = np.einsum("cd,cd->c", self.difference, self.difference), np.einsum("cd,cd->c", self.query, self.query)
        return np.sqrt(squares[0]) * np.sqrt(squares[1])

    @cached_property
    def gram(self) -> np.ndarray:
        r""":math:`G_{ce} = \langle F_c, F_e\rangle = (d_c^\top d_e)(z_c^\top z_e)`, ``[m, m]``."""
        return (self.difference @ self.difference.T) * (self.query @ self.query.T)

    def rows(self) -> np.ndarray:
        """The :math:`F_c` as rows ``[m, d_x d_z]``, scaled to length one."""
        outer = self.difference[:, :, None] * self.query[:, None, :]
        return outer.reshape(len(self), -1) / self.length[:, None]

    def slack(self, W: np.ndarray) -> np.ndarray:
        """Margins minus right-hand sides, ``[m]``."""
        return np.einsum("cd,cd->c", self.difference @ W, self.query) - self.rhs

    def combine(self, weights: np.ndarray) -> np.ndarray:
        r""":math:`\sum_c \lambda_c F_c`, without forming the F_c."""
        return (self.difference * weights[:, None]).T @ self.query


def spread(weights: np.ndarray, where: np.ndarray) -> np.ndarray:
    """The weights in their places ``where`` among all constraints ``[m]``, zero elsewhere."""
    full = np.zeros(len(where))
    full[where] = weights
    return full
