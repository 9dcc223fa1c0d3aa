r"""The results of the max-margin solvers: a verified solution, a batch of solutions, or a proof of
infeasibility.

.. math:: \min \|W\| \quad \text{subject to} \quad d_c^\top W z_c \ge b_c \ (\text{or } = b_c)

These are problems (Att-SVM) and (Att-SVM\ :math:`_\star`) of :cite:t:`tarzanagh2023transformers`.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.errors import Infeasible, NotConverged

Status = Literal["optimal", "infeasible", "not converged"]
# singular values up to this share of the first count as rounding errors; it suits KKT residuals near 1e-12
RANK_RTOL = 1e-10


@dataclass(frozen=True)
class MaxMargin:
    r"""A verified solution of a max-margin problem.

    Attributes:
        W: the solution, ``[d_x, d_z]``.
        dual: the multipliers :math:`\lambda`, ``[m]``; non-negative for inequalities.
        margins: :math:`d_c^\top W z_c`, ``[m]``.
        norm: the minimised norm of W; ``1 / norm`` is the largest possible smallest margin of a matrix of
            norm one.
        kkt: the dimensionless KKT residual of this W and these multipliers: the largest of
            :func:`kkt_residual`, the gap and, in the Frobenius norm, the relative distance of W from
            :math:`\sum_c \lambda_c d_c z_c^\top`.
        gap: the duality gap relative to the norm (Frobenius: to its square); it bounds the relative excess
            over the smallest norm.
        rhs: the right-hand sides b, ``[m]``.
        status: ``"optimal"``; or ``"not converged"`` for the last iterate in the ``state`` of an exception.
        complementary_rank: the rank by complementarity (nuclear norm only): a direction counts if its
            singular value, relative to the first, exceeds the slack of the dual constraint in that direction.
            This needs no threshold.
        rank_rtol: largest singular value, as a share of the first, that may be an error of the solver;
            infinite if the error has no bound.
    """

    W: Float[Tensor, "d_x d_z"]
    dual: Float[Tensor, " m"]
    margins: Float[Tensor, " m"]
    norm: float
    kkt: float
    gap: float
    rhs: Float[Tensor, " m"]
    status: Status = "optimal"
    complementary_rank: int | None = None
    rank_rtol: float = RANK_RTOL

    def __repr__(self) -> str:
        """Returns sizes, norm, rank and residuals in one line."""
        rank = "" if self.complementary_rank is None and self.rank_rtol == math.inf else f", rank={self.rank}"
        return (
            f"MaxMargin(W={list(self.W.shape)}, m={len(self.dual)}, norm={self.norm:.6g}{rank}, "
            f"kkt={self.kkt:.1e}, gap={self.gap:.1e}, status={self.status!r})"
        )

    @cached_property
    def rank(self) -> int:
        """Rank of W: by complementarity if that is known, otherwise the number of singular values above
        ``rank_rtol`` times the first.

        A non-zero W has at least rank one, however large ``rank_rtol`` is.

        Raises:
            ValueError: the norm is not strictly convex (p = 1, p infinite, spectral), so the error of W has
                no bound.
        """
        if self.complementary_rank is not None:
            return self.complementary_rank
        if self.rank_rtol == math.inf:
            raise ValueError(
                "rank needs a unique solution, but this norm is not strictly convex; count the singular "
                "values of W"
            )
        return int(_rank(self.W, min(self.rank_rtol, 1 - 1e-12)))

    def support(self, *, tol: float = 1e-6) -> Int[Tensor, " s"]:
        """Returns the numbers of the constraints that are support vectors (:meth:`binding`)."""
        return self.binding(tol=tol).nonzero().squeeze(-1)

    def binding(self, *, tol: float = 1e-6) -> Bool[Tensor, " m"]:
        """Returns the mask of the support vectors: their margins exceed b by at most ``tol`` times the
        largest right-hand side.
        """
        return self.margins <= self.rhs + tol * _scale(self.rhs)


@dataclass(frozen=True)
class MaxMargins:
    r"""Solutions of a batch of B problems. For a problem without a solution, tensors hold zeros and residuals
    are infinite.

    Attributes:
        W: the solutions, ``[B, d_x, d_z]``.
        dual, margins, rhs: as in :class:`MaxMargin`, ``[B, m]``.
        norm, kkt, gap: as in :class:`MaxMargin`, ``[B]``.
        failures: per problem, the exception that the solver of a single problem would raise, or None if the
            problem was solved.
        complementary_rank: as in :class:`MaxMargin`, ``[B]``; nuclear norm only.
    """

    W: Float[Tensor, "B d_x d_z"]
    dual: Float[Tensor, "B m"]
    margins: Float[Tensor, "B m"]
    norm: Float[Tensor, " B"]
    kkt: Float[Tensor, " B"]
    gap: Float[Tensor, " B"]
    rhs: Float[Tensor, "B m"]
    failures: tuple[Infeasible | NotConverged | None, ...]
    complementary_rank: Int[Tensor, " B"] | None = None

    def __repr__(self) -> str:
        """Returns the sizes, the number of problems per status, and the largest residual of a solution in one
        line.
        """
        counts = ", ".join(
            f"{status!r}: {self.status.count(status)}" for status in dict.fromkeys(self.status)
        )
        worst = f", kkt<={float(self.kkt[self.solved].max()):.1e}" if bool(self.solved.any()) else ""
        return f"MaxMargins(W={list(self.W.shape)}, m={self.dual.shape[-1]}, status={{{counts}}}{worst})"

    @cached_property
    def status(self) -> tuple[Status, ...]:
        """``"optimal"``, ``"infeasible"`` or ``"not converged"`` for each problem."""
        return tuple(
            "optimal"
            if failure is None
            else "infeasible"
            if isinstance(failure, Infeasible)
            else "not converged"
            for failure in self.failures
        )

    @cached_property
    def solved(self) -> Bool[Tensor, " B"]:
        """Mask of the problems whose status is ``"optimal"``."""
        return torch.tensor([failure is None for failure in self.failures], dtype=torch.bool)

    @cached_property
    def rank(self) -> Int[Tensor, " B"]:
        """Ranks as in :attr:`MaxMargin.rank`; 0 for unsolved problems."""
        if self.complementary_rank is not None:
            return self.complementary_rank
        return _rank(self.W, RANK_RTOL)

    def binding(self, *, tol: float = 1e-6) -> Bool[Tensor, "B m"]:
        """Returns the mask of the support vectors (:meth:`MaxMargin.binding`); all False for unsolved
        problems.
        """
        return (self.margins <= self.rhs + tol * _scale(self.rhs)) & self.solved[:, None]

    def __len__(self) -> int:
        return len(self.failures)

    def __getitem__(self, problem: int) -> MaxMargin:
        """Returns the solution of one problem.

        Raises:
            Infeasible, NotConverged: the problem has no verified solution; the error is its entry in
                ``failures``.
        """
        failure = self.failures[problem]
        if failure is not None:
            raise failure.with_traceback(None)
        rank = None if self.complementary_rank is None else int(self.complementary_rank[problem])
        return MaxMargin(
            self.W[problem],
            self.dual[problem],
            self.margins[problem],
            float(self.norm[problem]),
            float(self.kkt[problem]),
            float(self.gap[problem]),
            self.rhs[problem],
            complementary_rank=rank,
        )


@dataclass(frozen=True)
class Farkas:
    r"""A certificate of infeasibility: weights that combine the constraints to :math:`0 \ge 1`.

    Attributes:
        weights: :math:`u` with :math:`b^\top u = 1`, ``[m]``; :math:`u_c \ge 0` for inequalities, either sign
            for equations.
        residual: :math:`\|\sum_c u_c d_c z_c^\top\|_F` relative to :math:`\sum_c |u_c| \|d_c z_c^\top\|_F`;
            zero up to rounding.
        norm_at_least: lower bound that the weights imply on the Frobenius norm of any W that meets the
            constraints; infinite if the combination is exactly zero.
        constraints: pairs (input, token) of the constraints with a non-zero weight.
    """

    weights: Float[Tensor, " m"]
    residual: float
    norm_at_least: float
    constraints: tuple[tuple[int, int], ...]

    def __repr__(self) -> str:
        """Returns the first constraints involved, and the residual, in one line."""
        names = ", ".join(f"input {i} token {t}" for i, t in self.constraints[:3]) + (
            ", ..." if len(self.constraints) > 3 else ""
        )
        return (
            f"Farkas({len(self.constraints)} of m={len(self.weights)} constraints: {names}; "
            f"residual={self.residual:.1e})"
        )


def kkt_residual(
    slack: np.ndarray,
    dual: np.ndarray,
    free: np.ndarray,
    *,
    scale: np.ndarray | float,
    objective: np.ndarray | float,
) -> np.ndarray:
    r"""Returns the largest violation of primal feasibility, dual feasibility and complementary slackness, per
    problem of a batch.

    Args:
        slack: :math:`d_c^\top W z_c - b_c`, ``[..., m]``.
        dual: :math:`\lambda`, ``[..., m]``.
        free: mask of the equations, ``[..., m]``; they have zero slack and multipliers of either sign.
        scale: the largest right-hand side, ``[...]``, which is the unit of violated margins.
        objective: :math:`b^\top\lambda` at the optimum, ``[...]``, which is the unit of negative multipliers
            times ``scale`` and of the products :math:`|\lambda_c s_c|`.
    Returns:
        The residual, ``[...]``; NaN if a number is not finite.
    """
    parts = (
        np.where(free, np.abs(slack), -slack).max(-1, initial=0) / scale,
        np.where(free, 0.0, -dual).max(-1, initial=0) * scale / objective,
        np.abs(dual * slack).max(-1, initial=0) / objective,
    )
    return np.asarray(np.maximum.reduce(parts))


def _rank(W: Tensor, rtol: float) -> Tensor:
    """Returns the number of singular values above ``rtol`` times the first, ``[...]``."""
    sigma = torch.linalg.svdvals(W)
    return (sigma > rtol * sigma[..., :1]).sum(-1)


def _scale(rhs: Tensor) -> Tensor | float:
    """Returns the largest right-hand side of each problem, ``[..., 1]``; 1 if all are zero."""
    if not rhs.shape[-1]:
        return 1.0
    largest = rhs.abs().amax(-1, keepdim=True)
    return torch.where(largest > 0, largest, 1.0)
