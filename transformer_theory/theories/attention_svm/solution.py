r"""What a max-margin solver returns: a verified solution, a batch of them, or the reason why there is none.

.. math:: \min \|W\| \quad \text{subject to} \quad d_c^\top W z_c \ge b_c \ (\text{or } = b_c)

Source: problems (Att-SVM) and (Att-SVM\ :math:`_\star`) of :cite:t:`tarzanagh2023transformers`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .constraint_set import Constraints

OPTIMAL, INFEASIBLE, NOT_CONVERGED = "optimal", "infeasible", "not converged"
BELOW = 1 - 1e-12  # of the first singular value: a matrix other than zero keeps it, whatever is cut
CUT = 1e-10  # singular values up to this share of the first are zero, in solutions to rounding


@dataclass(frozen=True)
class MaxMargin:
    r"""A verified solution of a max-margin problem. Margins are scaled to one, so residuals have no unit.

    Attributes:
        W: the solution, ``[d_x, d_z]``.
        dual: the multipliers :math:`\lambda`, ``[m]``; not negative where the constraint is an inequality.
        margins: :math:`d_c^\top W z_c`, ``[m]``; at least the right-hand sides, which are one unless said otherwise.
        norm: the minimised norm of W; the largest possible margin of a W of norm one is ``1 / norm``.
        kkt: the largest of the KKT residuals of this very W and these multipliers: violated margins relative to the largest right-hand
            side; relative to the objective (the squared norm, for Frobenius), the complementary products, negative multipliers and the
            duality gap; for Frobenius also the distance of W from what the multipliers combine to, relative to the larger of its norm and
            of the sum of that combination's terms. Margins are formed in more digits than float64 has, and what could be lost
            is added, so that no margin is violated by more. (Batches, the nuclear norm: by more than 1e-13 more. Entrywise and
            spectral norms: rounded margins.)
        gap: the duality gap relative to the objective; bounds how far the norm is from the smallest.
        complementary_rank: of the nuclear norm only: a direction counts if its singular value in W is larger, relative to the first, than
            the slack of the dual in that direction; this does not depend on a threshold.
        status: ``"optimal"``; ``"not converged"`` for the best point found, which an exception carries.
        rhs: the right-hand sides, ``[m]``; None for ones.
        cut: singular values up to this share of the first are not counted: they may be errors of the solver. For entrywise norms a
            bound on them, which may exceed one; for Frobenius 1e-10, a convention; infinite if the solver cannot bound them.
    """

    W: Float[Tensor, "d_x d_z"]
    dual: Float[Tensor, " m"]
    margins: Float[Tensor, " m"]
    norm: float
    kkt: float
    gap: float
    complementary_rank: int | None = None
    status: str = OPTIMAL
    rhs: Float[Tensor, " m"] | None = None
    cut: float = CUT

    def __repr__(self) -> str:
        """Sizes, norm, rank and residuals, in one line."""
        rank = "" if self.complementary_rank is None and self.cut == math.inf else f", rank={self.rank}"
        return (
            f"MaxMargin(W={list(self.W.shape)}, m={len(self.dual)}, norm={self.norm:.6g}{rank}, kkt={self.kkt:.1e}, gap={self.gap:.1e}, "
            f"status={self.status!r})"
        )

    @cached_property
    def rank(self) -> int:
        """Rank of W: by complementarity where that is known, otherwise the singular values above :attr:`cut` of the first.

        Frobenius: the cut of 1e-10 is far above rounding where multipliers are not much larger than W, and no proof elsewhere. Entrywise
        norms: the cut is a bound on the solver's error, so the solution has at least this rank (at least one, if W is not zero), and more
        only by smaller singular values.

        Raises:
            ValueError: the norm (p = 1 or infinity, spectral) is not strictly convex, so that the error of W has no bound.
        """
        if self.complementary_rank is not None:
            return self.complementary_rank
        if self.cut == math.inf:
            raise ValueError("rank must be that of a unique solution, got a norm that is not strictly convex; count singular values of W")
        sigma = torch.linalg.svdvals(self.W)
        return int((sigma > min(self.cut, BELOW) * sigma.amax()).sum()) if sigma.numel() else 0

    def support(self, *, tol: float = 1e-6) -> Int[Tensor, " s"]:
        """The constraints met with equality: their tokens are the neighbours of the selected ones.

        Args:
            tol: how far a margin may be above its right-hand side, relative to the largest one.
        """
        rhs = torch.ones_like(self.margins) if self.rhs is None else self.rhs
        scale = float(rhs.abs().amax()) if len(rhs) else 1.0
        return (self.margins <= rhs + tol * (scale or 1.0)).nonzero().squeeze(-1)


@dataclass(frozen=True)
class MaxMargins:
    r"""Solutions of a batch of problems, each with its own status. Unsolved ones hold zeros, with infinite residuals: ask :attr:`solved`.

    Attributes:
        W: ``[B, d_x, d_z]``.
        dual: :math:`\lambda`, ``[B, m]``.
        margins: ``[B, m]``.
        norm, kkt, gap: as in :class:`MaxMargin`, ``[B]``.
        status: ``"optimal"``, ``"infeasible"`` or ``"not converged"``, B of them.
        constraints: the batch of problems.
        alone: the solver of a single problem, which explains a failure.
        complementary_rank: of the nuclear norm only, ``[B]``.
    """

    W: Float[Tensor, "B d_x d_z"]
    dual: Float[Tensor, "B m"]
    margins: Float[Tensor, "B m"]
    norm: Float[Tensor, " B"]
    kkt: Float[Tensor, " B"]
    gap: Float[Tensor, " B"]
    status: tuple[str, ...]
    constraints: Constraints
    alone: Callable[[Constraints], MaxMargin]
    complementary_rank: Int[Tensor, " B"] | None = None

    def __repr__(self) -> str:
        """Sizes, how many have which status, and the largest residual of those solved, in one line."""
        counts = ", ".join(f"{status!r}: {self.status.count(status)}" for status in dict.fromkeys(self.status))
        worst = f", kkt<={float(self.kkt[self.solved].max()):.1e}" if bool(self.solved.any()) else ""
        return f"MaxMargins(W={list(self.W.shape)}, m={self.dual.shape[-1]}, status={{{counts}}}{worst})"

    @cached_property
    def solved(self) -> Bool[Tensor, " B"]:
        """Where the status is ``"optimal"``."""
        return torch.tensor([status == OPTIMAL for status in self.status], dtype=torch.bool)

    @cached_property
    def rank(self) -> Int[Tensor, " B"]:
        """As :attr:`MaxMargin.rank`; 0 where unsolved."""
        if self.complementary_rank is not None:
            return self.complementary_rank
        sigma = torch.linalg.svdvals(self.W)
        return (sigma > CUT * sigma[..., :1]).sum(-1)

    def __len__(self) -> int:
        return len(self.status)

    def __getitem__(self, problem: int) -> MaxMargin:
        """The solution of one problem; raises what :attr:`alone` raises if there is none (``Infeasible`` with its certificate)."""
        if self.status[problem] != OPTIMAL:
            return self.alone(self.constraints.problem(problem))
        norm, kkt, gap = (float(v[problem]) for v in (self.norm, self.kkt, self.gap))
        rank = None if self.complementary_rank is None else int(self.complementary_rank[problem])
        rhs = self.constraints.rhs[problem]
        return MaxMargin(self.W[problem], self.dual[problem], self.margins[problem], norm, kkt, gap, rank, rhs=rhs)


@dataclass(frozen=True)
class Farkas:
    r"""Why constraints are infeasible: weights whose combination of them says :math:`0 \ge 1`.

    Attributes:
        weights: :math:`u` with :math:`b^\top u = 1`, ``[m]``; :math:`u_c \ge 0` for inequalities, of either sign for equations. (With
            all right-hand sides one, they sum to one.)
        residual: :math:`\|\sum_c u_c d_c z_c^\top\|_F` relative to :math:`\sum_c |u_c| \|d_c z_c^\top\|_F`; zero up to rounding.
        norm_at_least: what the weights prove in any case: a W that meets the constraints has at least this Frobenius norm; infinite if
            they combine the numbers given to exactly zero.
        constraints: (input, token) of the constraints with a weight other than zero.
    """

    weights: Float[Tensor, " m"]
    residual: float
    norm_at_least: float
    constraints: tuple[tuple[int, int], ...]

    def __repr__(self) -> str:
        """What it names and how well it proves it, in one line."""
        named = ", ".join(f"input {i} token {t}" for i, t in self.constraints[:3]) + (", ..." if len(self.constraints) > 3 else "")
        return f"Farkas({len(self.constraints)} of m={len(self.weights)} constraints: {named}; residual={self.residual:.1e})"
