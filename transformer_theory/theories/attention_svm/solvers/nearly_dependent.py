r"""Nuclear-norm solutions of constraints that nearly cancel one another, where multipliers are large and their sums have few digits.

The active constraints :math:`\langle F_c, W\rangle = b_c` are replaced by orthonormal combinations of them,
:math:`\langle E_k, W\rangle = e_k`, from the singular value decomposition of the matrix whose rows are the :math:`F_c`, scaled to length
one. Newton's method then solves

.. math:: MQ = P, \qquad M^\top P = Q, \qquad \langle E_k, PQ^\top\rangle = e_k, \qquad M = \sum_k \mu_k E_k,

in which all numbers are of order one however small the margins are; :math:`\lambda` follows from :math:`\mu`. The active set is corrected
while a multiplier or a margin is wrong. Nothing is claimed of the result: it has to be checked. One problem at a time, of moderate size:
all entries of the constraints are formed.

Source: (Att-SVM\ :math:`_\star`) of :cite:t:`tarzanagh2023transformers`.
"""

from typing import Any

import numpy as np

from .conic import solved

DEPENDENT = 1e-15  # of the largest singular value: below, a combination of the constraints is none
EXCHANGES, STEPS = 20, 12
GAPS, TINY = 3, 1e-15  # sets cut off at falls; of the largest multiplier and right-hand side: rounding
SMALL = 10**5  # entries of constraints for which a general solver takes a second or so
LARGEST = 600  # unknowns of the Newton system


def approach(constraints: np.ndarray, rhs: np.ndarray, free: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    r"""W and multipliers of a general solver in these coordinates; None if it stops without a point, or the problem is too large for it.

    With the singular value decomposition :math:`F = U \Sigma V` of the rows scaled to length one, the constraints say that
    :math:`V \operatorname{vec} W = \Sigma^{-1} U^\top (b + s)` for slacks s that are not negative, and that :math:`b + s` lies in the range
    of U.

    Args:
        constraints, rhs, free: as for :func:`settle`.
    """
    import cvxpy as cp

    m, p, q = constraints.shape
    if constraints.size > SMALL or free.all():
        return None
    rows = constraints.reshape(m, -1)
    length = np.linalg.norm(rows, axis=1)
    left, sigma, right = np.linalg.svd(rows / length[:, None])
    rank = int((sigma > DEPENDENT * sigma[0]).sum())
    back, null = left[:, :rank].T / sigma[:rank, None] / length, left[:, rank:].T / length
    size = np.linalg.norm(back[:, ~free], axis=0)  # slacks are measured by what they move
    W, slack = cp.Variable((p, q)), cp.Variable(int((~free).sum()), nonneg=True)
    spread: Any = cp.multiply(slack, 1 / size)
    met: list[Any] = [right[:rank] @ cp.vec(W, order="C") - back[:, ~free] @ spread == back @ rhs]
    met += [-null[:, ~free] @ spread == null @ rhs] if rank < m else []
    if not solved(cp.Problem(cp.Minimize(cp.normNuc(W)), met)) or W.value is None:
        return None
    multipliers = -back.T @ met[0].dual_value - (null.T @ met[1].dual_value if rank < m else 0.0)
    return np.asarray(W.value), multipliers


def likely(constraints: np.ndarray, rhs: np.ndarray, free: np.ndarray, W: np.ndarray, multipliers: np.ndarray) -> list[np.ndarray]:
    """Active sets to try, ``[m]`` each: constraints whose multipliers are large against their slacks.

    Multipliers of constraints that nearly cancel are larger by orders than others that count just as much, so that no one scale compares
    them with slacks: after the usual one, sets are cut off where the ratio of the two falls most.
    """
    rows = constraints.reshape(len(constraints), -1)
    signed, slack = np.where(free, 0.0, multipliers), np.maximum(rows @ W.ravel() - rhs, 0)
    sets = [free | (signed * np.abs(rhs).max() > slack * signed.max(initial=0))]
    ratio = np.log(np.maximum(signed, TINY * signed.max(initial=0)) + 1e-300) - np.log(slack + TINY * np.abs(rhs).max())
    order = np.flatnonzero(~free)[np.argsort(-ratio[~free])]
    falls = ratio[order[:-1]] - ratio[order[1:]]
    for count in 1 + np.argsort(-falls)[:GAPS]:
        sets.append(free | np.isin(np.arange(len(rhs)), order[:count]))
    return list({one.tobytes(): one for one in sets}.values())


def settle(
    constraints: np.ndarray,
    rhs: np.ndarray,
    free: np.ndarray,
    W: np.ndarray,
    multipliers: np.ndarray,
    rank: int,
    active: np.ndarray,
) -> tuple[np.ndarray, np.ndarray] | None:
    """W and multipliers near those given; None if the system is too large or breaks down.

    Args:
        constraints: the matrices F, ``[m, p, q]``.
        rhs: b, ``[m]``; of the order of the margins of a W of norm one.
        free: the equations, ``[m]``.
        W, multipliers: an approximate solution, ``[p, q]`` and ``[m]``.
        rank: of W.
        active: the constraints to start with, see :func:`likely`.
    """
    m, p, q = constraints.shape
    rows = constraints.reshape(m, -1)
    length = np.linalg.norm(rows, axis=1)
    for _ in range(EXCHANGES):
        if int(active.sum()) + (p + q) * rank > LARGEST or not active.any():
            return None
        left, sigma, right = np.linalg.svd(rows[active] / length[active, None], full_matrices=False)
        kept = sigma > DEPENDENT * sigma[0]
        left, right = left[:, kept] / sigma[kept], right[kept]
        found = _newton(right.reshape(-1, p, q), left.T @ (rhs[active] / length[active]), W, (multipliers @ rows).reshape(p, q), rank)
        if found is None:
            return None
        W, weights = found
        multipliers = np.zeros(m)
        multipliers[active] = left @ weights / length[active]
        signed = np.where(free, 0.0, multipliers)
        outside = np.where(active, 0.0, rows @ W.ravel() - rhs)
        if signed.min() < 0:
            active = active & (np.arange(m) != signed.argmin())
        elif outside.min() < 0:
            active = active | (np.arange(m) == outside.argmin())
        else:
            break
    return W, multipliers


def _newton(E: np.ndarray, wanted: np.ndarray, W: np.ndarray, M: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray] | None:
    """W and :math:`\\mu` on the equations ``[k, p, q]``, from the nearest start of this rank; steps are the shortest, as rotations of the
    factors change nothing."""
    (k, p, q), r = E.shape, rank
    left, sigma, right = np.linalg.svd(W, full_matrices=False)
    P, Q = left[:, :r] * np.sqrt(sigma[:r]), right[:r].T * np.sqrt(sigma[:r])
    weights = E.reshape(k, -1) @ M.ravel()
    best, smallest = None, np.inf
    for _ in range(STEPS):
        M, EQ, EP = np.tensordot(weights, E, 1), E @ Q, np.swapaxes(E, 1, 2) @ P
        residual = np.concatenate([(M @ Q - P).ravel(), (M.T @ P - Q).ravel(), (EQ * P).sum((1, 2)) - wanted])
        size = float(np.abs(residual).max())
        if not size < smallest:
            break
        best, smallest = (P @ Q.T, weights), size
        eye = np.eye(r)
        slope = np.block(
            [
                [EQ.reshape(k, -1).T, -np.eye(p * r), np.kron(M, eye)],
                [EP.reshape(k, -1).T, np.kron(M.T, eye), -np.eye(q * r)],
                [np.zeros((k, k)), EQ.reshape(k, -1), EP.reshape(k, -1)],
            ]
        )
        try:
            step = np.linalg.lstsq(slope, residual, rcond=1e-13)[0]
        except np.linalg.LinAlgError:
            break
        weights = weights - step[:k]
        P, Q = P - step[k : k + p * r].reshape(p, r), Q - step[k + p * r :].reshape(q, r)
    return best
