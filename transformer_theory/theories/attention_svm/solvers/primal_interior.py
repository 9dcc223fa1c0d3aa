r"""Batches of Frobenius problems with more constraints than entries of W: an interior-point method on W itself.

The constraints :math:`F_c = d_c z_c^\top`, written as rows of a matrix A ``[m, k]`` with k = d_x d_z < m, are linearly dependent, so pivoting
on their Gram matrix rarely terminates. With slacks s, multipliers :math:`\lambda` and a parameter :math:`\mu \to 0`, the method solves

.. math:: w = A^\top\lambda, \qquad A w - s = b, \qquad \lambda_c s_c = \mu, \qquad \lambda, s > 0

by Newton steps with the predictor and corrector of :cite:t:`mehrotra1992implementation`. Eliminating :math:`\lambda` and s leaves one system
of size k per step, :math:`(I + A^\top D A)\,\Delta w = r` with :math:`D = \operatorname{diag}(\lambda / s)`. Near the solution, either the
multiplier or the slack of a constraint is almost zero, which shows the active set; W then follows from equality on this set. The result is
not verified here.
"""

import numpy as np
import torch

from .tolerances import MARGIN_ATOL, PRIMAL_ROUNDS, PRIMAL_STAGES, REFINEMENTS, RIDGE, SIGN_ATOL

BOUNDARY_SHARE = 0.99  # length of a step as a share of the distance to the boundary
CENTRING_MIN = 1e-3  # smallest predicted ratio of the new mu to the old one; the step aims at the third power of the ratio
START_SIZE = 10.0  # size of the first multipliers, in multiples of the best one for equal multipliers; large ones start near the centre
STEP_MAX = 1e3  # upper bound of computed step lengths; all steps are cut at one later


def active_set_solutions(rows: np.ndarray, rhs: np.ndarray, unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns w ``[B, k]`` and multipliers ``[B, m]`` that hold equality on a guessed active set; a wrong guess has large residuals.

    Args:
        rows: constraints of length one (or zero), ``[B, m, k]``; inequalities only.
        rhs: right-hand sides, ``[B, m]``, at most one in absolute value.
        unit: factor that turns slacks of the rows into margins, ``[B, m]``.
    """
    B, m, k = rows.shape
    w, dual, unsolved = np.zeros((B, k)), np.zeros((B, m)), np.arange(B)
    point = _start(rows, rhs)
    for tol in PRIMAL_STAGES:
        point, finished = _interior_point(rows, rhs, point, tol)
        found, multipliers = _on_active_set(rows, rhs, unit, point)
        w[unsolved], dual[unsolved] = found, multipliers
        # The guess is right if no multiplier is negative and no constraint is violated. Otherwise the next stage is more accurate; problems
        # that did not finish are left as they are, since most of them have no solution.
        slack = np.matmul(rows, found[..., None])[..., 0] - rhs
        with np.errstate(invalid="ignore"):
            again = finished & ~((multipliers.min(-1) >= -SIGN_ATOL) & ((slack * unit).min(-1) >= -1e3 * MARGIN_ATOL))
        if not again.any():
            break
        unsolved, rows, rhs, unit, point = unsolved[again], rows[again], rhs[again], unit[again], tuple(v[again] for v in point)
    return w, dual


Point = tuple[np.ndarray, np.ndarray, np.ndarray]  # w [B, k], multipliers [B, m], slacks [B, m]


def _start(rows: np.ndarray, rhs: np.ndarray) -> Point:
    """Returns a first point: equal multipliers, their w, and slacks of at least the largest right-hand side."""
    B, m, _ = rows.shape
    direction = rows.sum(1)
    # Equal multipliers t maximise the dual at t = sum b / |sum a|^2; the rows may cancel, and random rows have |sum a|^2 near m.
    size = START_SIZE * np.abs(rhs).sum(-1) / np.maximum(np.square(direction).sum(-1), m)
    w = size[:, None] * direction
    margins = np.matmul(rows, w[..., None])[..., 0]
    return w, np.repeat(size[:, None], m, 1), np.maximum(margins - rhs, 0) + np.abs(rhs).max(-1, keepdims=True)


def _interior_point(rows: np.ndarray, rhs: np.ndarray, point: Point, tol: float) -> tuple[Point, np.ndarray]:
    """Iterates until gap and residual are at most ``tol``; returns the last points and the mask ``[B]`` of the finished problems."""
    result, finished, remaining = point, np.zeros(len(rows), dtype=bool), np.arange(len(rows))
    result = tuple(v.copy() for v in point)
    scaled, system, eye = np.empty_like(rows), np.empty((len(rows), rows.shape[-1], rows.shape[-1])), np.eye(rows.shape[-1])
    for _ in range(PRIMAL_ROUNDS):
        w, dual, slack = point
        count = len(remaining)
        # The factorised system I + A^T D A, which predictor and corrector share.
        np.multiply(rows, (dual / slack)[..., None], out=scaled[:count])
        np.matmul(rows.transpose(0, 2, 1), scaled[:count], out=system[:count])
        system[:count] += eye
        lower, failed = torch.linalg.cholesky_ex(torch.from_numpy(system[:count]))
        missing = rhs + slack - np.matmul(rows, w[..., None])[..., 0]
        off = w - np.matmul(dual[:, None], rows)[:, 0]
        product = dual * slack
        mu = product.mean(-1, keepdims=True)
        # Predictor: a Newton step towards mu = 0.
        step_w, step_dual, step_slack = _direction(rows, lower, dual, slack, missing, off, -product)
        up, down = _lengths(dual, step_dual), _lengths(slack, step_slack)
        predicted = ((dual + up * step_dual) * (slack + down * step_slack)).mean(-1, keepdims=True)
        # Corrector: a step towards the third power of the predicted ratio times mu, with the product of changes that was neglected.
        centre = np.clip(predicted / mu, CENTRING_MIN, 1) ** 3 * mu
        target = centre - product - step_dual * step_slack
        step_w, step_dual, step_slack = _direction(rows, lower, dual, slack, missing, off, target)
        up, down = _lengths(dual, step_dual, BOUNDARY_SHARE), _lengths(slack, step_slack, BOUNDARY_SHARE)
        w, dual, slack = point = w + down * step_w, dual + up * step_dual, slack + down * step_slack
        gap, objective = (dual * slack).sum(-1), np.abs((rhs * dual).sum(-1))
        done = (gap <= tol * objective) & (np.abs((1 - down) * missing).max(-1) <= tol)
        leaving = done | failed.numpy().astype(bool) | ~np.isfinite(gap)
        if leaving.any():
            for whole, part in zip(result, point):
                whole[remaining[leaving]] = part[leaving]
            finished[remaining[done]] = True
            stay = ~leaving
            remaining, rows, rhs, point = remaining[stay], rows[stay], rhs[stay], tuple(v[stay] for v in point)
            if not len(remaining):
                break
    for whole, part in zip(result, point):
        whole[remaining] = part
    return result, finished


def _direction(
    rows: np.ndarray, lower: torch.Tensor, dual: np.ndarray, slack: np.ndarray, missing: np.ndarray, off: np.ndarray, target: np.ndarray
) -> Point:
    """Returns the changes of w, multipliers and slacks that remove the residuals ``missing`` and ``off`` and change products by ``target``."""
    right = np.matmul(((target + dual * missing) / slack)[:, None], rows)[:, 0] - off
    half = torch.linalg.solve_triangular(lower, torch.from_numpy(right[..., None]), upper=False)
    step = torch.linalg.solve_triangular(lower.mT, half, upper=True).numpy()
    step_slack = np.matmul(rows, step)[..., 0] - missing
    return step[..., 0], (target - dual * step_slack) / slack, step_slack


def _lengths(values: np.ndarray, step: np.ndarray, share: float = 1.0) -> np.ndarray:
    """Returns ``share`` times the longest steps that keep the values non-negative, at most one, ``[B, 1]``."""
    return np.minimum(share / np.maximum((-step / values).max(-1, keepdims=True), 1 / STEP_MAX), 1.0)


def _on_active_set(rows: np.ndarray, rhs: np.ndarray, unit: np.ndarray, point: Point) -> tuple[np.ndarray, np.ndarray]:
    """Returns the shortest w that meets the active constraints of an interior point with equality, and its multipliers."""
    _, dual, slack = point
    with np.errstate(invalid="ignore"):
        active = dual * np.abs(rhs).max(-1, keepdims=True) > slack * dual.max(-1, keepdims=True)
    # Gather the active rows, in every problem as many as the largest set has, but not more than can be independent. A stable sort puts them
    # first; the rows of smaller sets are padded with zeros, and the identity in their block keeps their multipliers at zero.
    count = min(int(active.sum(-1).max()), rows.shape[-1])
    order = np.argsort(~active, axis=-1, kind="stable")[:, :count]
    mask = np.take_along_axis(active, order, -1).astype(float)
    part = np.take_along_axis(rows, order[..., None], 1) * mask[..., None]
    margins, scale = np.take_along_axis(rhs, order, -1) * mask, np.take_along_axis(unit, order, -1)
    gram = np.matmul(part, part.transpose(0, 2, 1))
    diagonal = np.einsum("bcc->bc", gram)
    diagonal += 1 + RIDGE - mask
    lower = torch.linalg.cholesky_ex(torch.from_numpy(gram))[0]
    w, multipliers = np.zeros((len(rows), rows.shape[-1])), np.zeros_like(margins)
    # Iterative refinement, as in batched pivoting: errors of the active margins are computed from w, and the correction is added to w. It
    # also removes the effect of the ridge.
    for _ in range(1 + REFINEMENTS):
        missing = margins - np.matmul(part, w[..., None])[..., 0]
        if not float(np.abs(missing * scale).max()) > MARGIN_ATOL:
            break
        half = torch.linalg.solve_triangular(lower, torch.from_numpy(missing[..., None]), upper=False)
        correction = torch.linalg.solve_triangular(lower.mT, half, upper=True).numpy()[..., 0] * mask
        multipliers, w = multipliers + correction, w + np.matmul(correction[:, None], part)[:, 0]
    full = np.zeros_like(rhs)
    np.put_along_axis(full, order, multipliers, -1)
    return w, full
