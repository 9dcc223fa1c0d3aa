r"""Maximum-margin token selection in norms other than Frobenius and nuclear, for small sizes.

.. math:: \min \|W\| \ \text{ subject to } d_c^\top W z_c \ge b_c, \qquad
    \text{dual: } \max\ b^\top\lambda \ \text{ subject to } \Big\|\sum_c\lambda_c d_c z_c^\top\Big\|_\circ \le 1,\ \lambda \ge 0,

with the dual norm :math:`\|\cdot\|_\circ`: the :math:`\ell_q` norm of the entries, :math:`1/p + 1/q = 1`, for their :math:`\ell_p` norm,
and the nuclear norm for the spectral norm. Mirror descent with the potential :math:`\|W\|_p^p` goes to the former; steepest descent in the
spectral norm is conjectured to go to the latter.

Source: the problem is (Att-SVM) of :cite:t:`tarzanagh2023transformers` with another norm; :cite:t:`julistiono2024optimizing` for
:math:`\ell_p`.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ....core.errors import NotConverged
from ..constraint_set import Constraints, check_constraints
from ..solution import NOT_CONVERGED, OPTIMAL, MaxMargin
from .arguments import check_single
from .conic import conic
from .frobenius import frobenius_max_margin

Norm = Callable[[np.ndarray], float]


def lp_max_margin(constraints: Constraints, *, p: float, tol: float = 1e-8) -> MaxMargin:
    r"""Smallest matrix, in the :math:`\ell_p` norm of its entries, that meets the constraints. Unique for p other than 1 and infinity.

    Solved by a general interior-point method in all entries of W; p = 2 is :func:`frobenius_max_margin`, which is faster.

    Args:
        constraints: as for :func:`frobenius_max_margin`.
        p: from 1 to infinity (``math.inf``).
        tol: largest KKT residual accepted: violated margins relative to the largest right-hand side; relative to the norm, the duality gap,
            complementary products and negative multipliers.
    Returns:
        A verified solution; its ``rank`` counts what the error of the solver cannot have made, and is refused for p = 1 and infinity.
    Raises:
        Infeasible: no W meets the constraints; ``certificate`` is a :class:`Farkas`.
        NotConverged: the residual stayed above ``tol``; carries the best point found with its residual.
        TypeError: not :class:`~..constraint_set.Constraints`, or a power or tolerance that is not a number.
        ValueError: p is less than 1, a tolerance is not positive, or a batch of problems.

    Source: :cite:t:`julistiono2024optimizing`.
    """
    if isinstance(p, bool) or not isinstance(p, (int, float)):
        raise TypeError(f"p must be a number from 1 to math.inf, got {type(p).__name__}")
    check_constraints(constraints)
    if not p >= 1:
        raise ValueError(f"p must be at least 1, got {p}; smaller powers are no norms")
    dual = math.inf if p == 1 else 1.0 if p == math.inf else p / (p - 1)

    def norm(W: Any) -> Any:
        import cvxpy as cp

        entries = cp.vec(W, order="C")
        return cp.norm(entries, p) if p in (1, 2, math.inf) else cp.pnorm(entries, p, approx=False)  # pyright: ignore[reportArgumentType]

    entries = constraints.difference.shape[-1] * constraints.query.shape[-1]
    return _solve(
        constraints,
        norm,
        lambda W: float(np.linalg.norm(W.ravel(), p)),
        lambda M: float(np.linalg.norm(M.ravel(), dual)),
        lambda excess: _distance(excess, p, entries),
        tol=tol,
    )


def spectral_max_margin(constraints: Constraints, *, tol: float = 1e-8) -> MaxMargin:
    """Smallest matrix, in spectral norm (largest singular value), that meets the constraints. It need not be unique.

    Args:
        constraints: as for :func:`frobenius_max_margin`.
        tol: largest KKT residual accepted, see :func:`lp_max_margin`.
    Returns:
        A verified solution, one of those that have the smallest norm; it offers no ``rank``.
    Raises:
        Infeasible: no W meets the constraints; ``certificate`` is a :class:`Farkas`.
        NotConverged: the residual stayed above ``tol``; carries the best point found with its residual.
        TypeError: not :class:`~..constraint_set.Constraints`, or a tolerance that is not a number.
        ValueError: a batch of problems, or a tolerance that is not positive.

    Source: (Att-SVM) of :cite:t:`tarzanagh2023transformers` with another norm.
    """

    def norm(W: Any) -> Any:
        import cvxpy as cp

        return cp.sigma_max(W)

    return _solve(
        constraints, norm, lambda W: float(np.linalg.norm(W, 2)), lambda M: float(np.linalg.norm(M, "nuc")), lambda _: math.inf, tol=tol
    )


def _distance(excess: float, p: float, entries: int) -> float:
    r"""Bound on :math:`\|W - W_\star\|_F / \|W_\star\|_p` of a W that meets the constraints with a norm larger by the share ``excess``.

    The midpoint meets them too, so its norm is no smaller than that of :math:`W_\star`, and the uniform convexity of the norm bounds the
    difference: by Clarkson's inequality for p from 2 on, with p - 1 for the modulus below.
    """
    if p in (1, math.inf):
        return math.inf
    if p <= 2:
        return 2 * math.sqrt((math.expm1(2 * math.log1p(excess)) / 2) / (p - 1))
    return 2 * entries ** (0.5 - 1 / p) * (math.expm1(p * math.log1p(excess)) / 2) ** (1 / p)


def _solve(
    c: Constraints, expression: Callable[[Any], Any], norm: Norm, dual_norm: Norm, distance: Callable[[float], float], *, tol: float
) -> MaxMargin:
    """The verified solution in a norm given three times: of a cvxpy variable, of an array, and the dual norm of an array; ``distance`` says
    how far a W can be from the solution, given by how much its norm is larger."""
    check_single(c, tol, instead="solve its problems one by one, c.problem(b)")
    near = frobenius_max_margin(c)
    if near.norm == 0:
        return near
    difference, query, free = c.difference.numpy(), c.query.numpy(), c.equality.numpy()
    rhs = c.rhs.numpy() / near.norm
    found = conic(difference, query, rhs, free, expression)
    if found is None:
        raise NotConverged("the interior-point method stopped without a point; the problem may be too large or badly scaled", state=near)
    W, multipliers = found
    multipliers = multipliers / max(1.0, dual_norm((difference * multipliers[:, None]).T @ query))
    beyond, size, scale = ((difference @ W) * query).sum(1) - rhs, norm(W), float(np.abs(rhs).max())
    gap = abs(size - float(rhs @ multipliers)) / size
    kkt = max(
        gap,
        float(np.where(free, np.abs(beyond), -beyond).max()) / scale,
        float(np.where(free, 0.0, -multipliers).max()) * scale / size,
        float(np.abs(multipliers * beyond).max()) / size,
    )
    cut = distance(3 * kkt) * size / max(float(np.linalg.norm(W, 2)), 1e-300) if kkt <= tol else math.inf  # gap, and margins made whole
    W, status = near.norm * torch.from_numpy(W), OPTIMAL if kkt <= tol else NOT_CONVERGED
    solution = MaxMargin(W, torch.from_numpy(multipliers), c.margins(W), near.norm * size, kkt, gap, status=status, rhs=c.rhs, cut=cut)
    if not kkt <= tol:
        raise NotConverged(f"KKT residual must be at most {tol:.0e}, got {kkt:.1e}; pass a larger tol", state=solution, residuals=kkt)
    return solution
