r"""Batches of Frobenius problems with more constraints than entries of W: an interior-point method on W
itself.

The constraints :math:`F_c = d_c z_c^\top`, written as rows of a matrix A ``[m, k]`` with k = d_x d_z < m, are
linearly dependent. Pivoting on their Gram matrix therefore rarely terminates. With slacks s, multipliers
:math:`\lambda` and :math:`\mu \to 0`, the method solves

.. math:: w = A^\top\lambda, \qquad A w - s = b, \qquad \lambda_c s_c = \mu, \qquad \lambda, s > 0

by Newton steps with the predictor and corrector of :cite:t:`mehrotra1992implementation`. Eliminating
:math:`\lambda` and s leaves a system of size k per step, :math:`(I + A^\top D A)\,\Delta w = r` with :math:`D
= \operatorname{diag}(\lambda / s)`. Near the solution, either the multiplier or the slack of a constraint is
almost zero. This shows the active set, and W follows from equality on it. The result is not verified here.
"""

from typing import NamedTuple

import numpy as np

from .dense import add_to_diagonal, cholesky, solve_cholesky, transposed
from .tolerances import MARGIN_ATOL, PRIMAL_ROUNDS, PRIMAL_STAGES, REFINEMENTS, RIDGE, SIGN_ATOL

STEP_SHARE = 0.995  # length of a step as a share of the distance to the boundary
# smallest predicted ratio of the new mu to the old one; the step aims at the third power of the ratio
CENTRING_MIN = 1e-3
FIRST_DUAL = 4.0  # size of the first multipliers, in multiples of the best one for equal multipliers
FIRST_SLACK = 0.3  # smallest slack of the first point, relative to the largest right-hand side
SINGLE_TOL = 1e-3  # at this accuracy and above, the method runs in float32
NORM_MAX = 1e3  # a problem whose w is certainly longer than this many largest right-hand sides is given up
VIOLATION_ATOL = 1e-12  # largest violation of a margin by a right guess of the active set


def active_set_solutions(
    rows: np.ndarray, rhs: np.ndarray, unit: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns w ``[B, k]`` and multipliers ``[B, m]`` that hold equality on a guessed active set; a wrong
    guess has large residuals.

    Args:
        rows: constraints of length one (or zero), ``[B, m, k]``; inequalities only.
        rhs: right-hand sides, ``[B, m]``; the largest of each problem is one in absolute value.
        unit: factor that turns slacks of the rows into margins, ``[B, m]``.
    """
    B, m, k = rows.shape
    w, dual, unsolved, point = np.zeros((B, k)), np.zeros((B, m)), np.arange(B), _start(rows, rhs)
    for tol in PRIMAL_STAGES:
        point, finished = _interior_point(rows, rhs, point, tol)
        # Problems that do not finish are left to the caller: most of them have no solution.
        if not finished.all():
            unsolved, rows, rhs, unit = (v[finished] for v in (unsolved, rows, rhs, unit))
            point = point.take(finished)
        if not len(rows):
            break
        w[unsolved], dual[unsolved] = found, multipliers = _on_active_set(rows, rhs, unit, point)
        # The guess is right if no multiplier is negative and no constraint is violated. Otherwise the next
        # stage is more accurate.
        slack = (_times(rows, found) - rhs) * unit
        wrong = ~((multipliers.min(-1) >= -SIGN_ATOL) & (slack.min(-1) >= -VIOLATION_ATOL))
        if not wrong.any():
            break
        unsolved, rows, rhs, unit = (v[wrong] for v in (unsolved, rows, rhs, unit))
        point = point.take(wrong)
    return w, dual


class Point(NamedTuple):
    """Iterates of B problems: w ``[B, k]``, and positive multipliers and slacks ``[B, m]``."""

    w: np.ndarray
    dual: np.ndarray
    slack: np.ndarray

    def take(self, mask: np.ndarray) -> "Point":
        """Returns the problems that ``mask`` selects."""
        return Point(*(v[mask] for v in self))


def _start(rows: np.ndarray, rhs: np.ndarray) -> Point:
    """Returns a first point: equal multipliers, their w, and slacks of at least FIRST_SLACK."""
    direction = rows.sum(1)
    # Equal multipliers t maximise the dual at t = sum b / |sum a|^2. The rows may cancel; independent random
    # rows have |sum a|^2 near m.
    size = FIRST_DUAL * np.abs(rhs).sum(-1) / np.maximum(np.square(direction).sum(-1), rows.shape[1])
    w = size[:, None] * direction
    return Point(
        w, np.repeat(size[:, None], rows.shape[1], 1), np.maximum(_times(rows, w) - rhs, 0) + FIRST_SLACK
    )


def _interior_point(rows: np.ndarray, rhs: np.ndarray, point: Point, tol: float) -> tuple[Point, np.ndarray]:
    """Iterates until gap and residuals are at most ``tol``; returns the last points and the mask ``[B]`` of
    the finished problems.
    """
    # A coarse accuracy needs few digits, and float32 is faster. The residuals of the next stage are computed
    # anew.
    dtype = np.float32 if tol >= SINGLE_TOL else np.float64
    rows, rhs, point = (
        rows.astype(dtype, copy=False),
        rhs.astype(dtype, copy=False),
        Point(*(v.astype(dtype) for v in point)),
    )
    B, _, k = rows.shape
    result, finished, remaining = (
        Point(*(np.empty_like(v) for v in point)),
        np.zeros(B, dtype=bool),
        np.arange(B),
    )
    residuals = rhs + point.slack - _times(rows, point.w), point.w - _combine(point.dual, rows)
    scaled, system = np.empty_like(rows), np.empty((B, k, k), dtype=dtype)
    for _ in range(PRIMAL_ROUNDS):
        # Problems without a solution overflow; they leave the iteration.
        with np.errstate(all="ignore"):
            point, residuals, done, leaving = _step(
                rows, rhs, point, residuals, tol, scaled[: len(rows)], system[: len(rows)]
            )
        finished[remaining[done]] = True
        if leaving.any():
            for whole, part in zip(result, point):
                whole[remaining[leaving]] = part[leaving]
            stay = ~leaving
            remaining, rows, rhs, point = remaining[stay], rows[stay], rhs[stay], point.take(stay)
            residuals = residuals[0][stay], residuals[1][stay]
            if not len(remaining):
                break
    return result, finished


Residuals = tuple[np.ndarray, np.ndarray]  # b + s - A w, [B, m], and w - A^T lambda, [B, k]


def _step(
    rows: np.ndarray,
    rhs: np.ndarray,
    point: Point,
    residuals: Residuals,
    tol: float,
    scaled: np.ndarray,
    system: np.ndarray,
) -> tuple[Point, Residuals, np.ndarray, np.ndarray]:
    """Returns the next points and residuals, the mask ``[B]`` of the solved problems, and that of all
    problems that need no further step.

    ``scaled`` ``[B, m, k]`` and ``system`` ``[B, k, k]`` are overwritten.
    """
    (w, dual, slack), (missing, off) = point, residuals
    # Predictor and corrector share the factorised system I + A^T D A.
    inverse = 1 / slack
    np.multiply(rows, (dual * inverse)[..., None], out=scaled)
    np.matmul(transposed(rows), scaled, out=system)
    add_to_diagonal(system, 1.0)
    lower, failed = cholesky(system)
    pull, product = dual * inverse * missing, dual * slack

    def direction(target: np.ndarray) -> Point:
        """Returns the changes that remove the residuals and change the products of multipliers and slacks by
        ``target``.
        """
        step = solve_cholesky(lower, _combine(target * inverse + pull, rows) - off)
        change = _times(rows, step) - missing
        return Point(step, (target - dual * change) * inverse, change)

    # Predictor: a Newton step towards mu = 0. The ratio of the mu after this step to the current one measures
    # how well it works.
    step = direction(-product)
    up, down = _length(dual, step.dual), _length(slack, step.slack)
    mu, predicted = product.mean(-1), ((dual + up * step.dual) * (slack + down * step.slack)).mean(-1)
    # Corrector: a step towards the third power of this ratio times mu, with the product of changes that the
    # predictor neglected.
    centre = np.maximum(np.minimum(predicted / mu, 1), CENTRING_MIN) ** 3 * mu
    step = direction(centre[:, None] - product - step.dual * step.slack)
    up, down = _length(dual, step.dual, STEP_SHARE), _length(slack, step.slack, STEP_SHARE)
    following = w, dual, slack = Point(w + down * step.w, dual + up * step.dual, slack + down * step.slack)
    # The equations are linear. A full step makes w + step.w equal to A^T (lambda + step.dual), so A^T lambda
    # changes by step.w + off.
    missing, off = (1 - down) * missing, (1 - up) * off + (down - up) * step.w
    objective, gap = (rhs * dual).sum(-1), (dual * slack).sum(-1)
    done = (gap <= tol * np.abs(objective)) & (np.abs(missing).max(-1) <= tol)
    # For every feasible w, b^T lambda <= (A^T lambda)^T w, so |w| is at least b^T lambda / |A^T lambda|. If
    # this bound is large, the constraints probably contradict one another.
    hopeless = objective > NORM_MAX * np.sqrt(np.square(w - off).sum(-1))
    return following, (missing, off), done & ~failed, done | failed | hopeless | ~np.isfinite(gap)


def _length(values: np.ndarray, step: np.ndarray, share: float = 1.0) -> np.ndarray:
    """Returns ``share`` times the longest steps that keep the values ``[B, m]`` non-negative, at most one,
    ``[B, 1]``.
    """
    return share / np.maximum((step / values).min(-1, keepdims=True) * -1, share)


def _times(rows: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Returns A w, ``[B, m]``."""
    return np.matmul(rows, w[..., None])[..., 0]


def _combine(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    r"""Returns :math:`A^\top \lambda`, ``[B, k]``."""
    return np.matmul(weights[:, None], rows)[:, 0]


def _on_active_set(
    rows: np.ndarray, rhs: np.ndarray, unit: np.ndarray, point: Point
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the shortest w that meets the active constraints of an interior point with equality, and its
    multipliers.
    """
    # Multipliers are compared relative to the largest one, slacks relative to the largest right-hand side,
    # which is one.
    active = point.dual > point.slack * point.dual.max(-1, keepdims=True)
    # Gather the active rows, in every problem as many as the largest set has, but not more than can be
    # independent. A stable sort puts them first; the rows of smaller sets are padded with zeros, and the
    # identity in their block keeps their multipliers at zero.
    count = max(1, min(int(active.sum(-1).max()), rows.shape[-1]))
    order = np.argsort(~active, axis=-1, kind="stable")[:, :count]
    mask = np.take_along_axis(active, order, -1).astype(float)
    part = rows[np.arange(len(rows))[:, None], order] * mask[..., None]
    margins, scale = np.take_along_axis(rhs, order, -1) * mask, np.take_along_axis(unit, order, -1)
    gram = np.matmul(part, transposed(part))
    add_to_diagonal(gram, 1 + RIDGE - mask)
    lower, _ = cholesky(gram)
    w, multipliers = np.zeros((len(rows), rows.shape[-1])), np.zeros_like(margins)
    # Iterative refinement, as in batched pivoting: errors of the active margins are computed from w, and the
    # correction is added to w. It also removes the effect of the ridge.
    index: slice | np.ndarray = slice(None)
    for _ in range(1 + REFINEMENTS):
        missing = margins[index] - _times(part[index], w[index])
        inexact = np.abs(missing * scale[index]).max(-1) > MARGIN_ATOL
        if not inexact.any():
            break
        if 2 * inexact.sum() <= len(inexact):  # most problems need one refinement only
            index, missing = np.arange(len(rows))[index][inexact], missing[inexact]
        correction = solve_cholesky(lower[index], missing) * mask[index]
        multipliers[index] += correction
        w[index] += _combine(correction, part[index])
    full = np.zeros_like(rhs)
    np.put_along_axis(full, order, multipliers, -1)
    return w, full
