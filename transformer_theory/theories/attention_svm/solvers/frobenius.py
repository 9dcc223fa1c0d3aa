r"""Maximum-margin token selection in the Frobenius norm, the bias of descent on W: one problem at a time.

Source: problem (Att-SVM) of :cite:t:`tarzanagh2023transformers`. With :math:`F_c = d_c z_c^\top`
(:class:`~.problem.Constraints`) and the Gram matrix G of the F_c, the dual of the Frobenius problem is
:math:`\max_{\lambda \ge 0} 1^\top\lambda - \tfrac12\lambda^\top G\lambda` and :math:`W = \sum_c \lambda_c F_c`. It is solved as a
least-distance problem by non-negative least squares (:cite:t:`lawson1974solving`, ch. 23) or, when G is well conditioned, by block
pivoting; then the active set is solved again to rounding accuracy. Only inner products of constraints enter, so the cost hardly depends
on the dimension. Every answer is checked before it is returned.
"""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ....errors import Infeasible, NotConverged
from ..constraint_set import Constraints
from ..solution import Farkas, MaxMargin

FEW = 64  # constraints for which least squares are cheaper than the exchanges of block pivoting
EXCHANGES = 200  # active-set corrections after the least-squares solve; 0 or 1 in practice


def frobenius_max_margin(constraints: Constraints, *, tol: float = 1e-12) -> MaxMargin:
    r"""Smallest matrix, in Frobenius norm, that scores every selected token above the others of its input by one.

    Args:
        constraints: m pairs (difference ``[m, d_x]``, query ``[m, d_z]``), see :func:`~.problem.constraints`.
        tol: largest KKT residual accepted.
    Returns:
        The unique solution with its multipliers and residual; W = 0 if there is no constraint.
    Raises:
        Infeasible: no W separates the selection; ``certificate`` is a :class:`Farkas`.
        NotConverged: the residual stayed above ``tol``, as when the constraints are feasible by a margin below rounding.

    Source: (Att-SVM) of :cite:t:`tarzanagh2023transformers`; :cite:t:`lawson1974solving`.
    """
    if len(constraints) == 0:
        W = constraints.difference.new_zeros(constraints.difference.shape[1], constraints.query.shape[1])
        return MaxMargin(W, W.new_zeros(0), W.new_zeros(0), 0.0, 0.0, 0.0)
    pairs = _Pairs(constraints.difference.detach().numpy(), constraints.query.detach().numpy())
    if not (pairs.length > 0).all():
        _refuse(constraints, pairs, (np.arange(len(pairs.length)) == pairs.length.argmin()).astype(float))
    active = _block_pivoting(pairs.gram) if len(constraints) > FEW else None
    if active is None:
        weights = _least_distance(pairs)
        _refuse(constraints, pairs, weights)
        active = weights > 0
    W, multipliers = _polish(pairs, active, tol)
    margins, square, sizes = pairs.margins(W), float((W * W).sum()), multipliers * pairs.length
    gap = abs(square - float(multipliers.sum())) / max(1.0, square)
    kkt = max(
        gap,
        float((1 - margins).max()),
        float((-multipliers).max()),
        float(np.abs(multipliers * (margins - 1)).max()) / max(1.0, square),
        float(np.linalg.norm(W - pairs.combine(multipliers))) / max(1.0, float(sizes.sum())),
    )
    solution = MaxMargin(torch.from_numpy(W), torch.from_numpy(multipliers), torch.from_numpy(margins), square**0.5, kkt, gap)
    if not kkt <= tol:
        raise NotConverged(
            f"KKT residual must be at most {tol:.0e}, got {kkt:.1e}: the largest margin is about {1 / max(square, 1e-300) ** 0.5:.1e} "
            "of the weights' norm, too small for float64; pass a larger tol, or fewer constraints",
            state=solution,
            residuals=kkt,
        )
    return solution


class _Pairs:
    """The constraints as plain arrays (problems are small, and numpy's calls are cheaper than torch's)."""

    def __init__(self, difference: np.ndarray, query: np.ndarray):
        self.difference, self.query = difference, query
        squares = np.einsum("cd,cd->c", difference, difference), np.einsum("cd,cd->c", query, query)
        self.length = np.sqrt(squares[0] * squares[1])
        self.gram = (difference @ difference.T) * (query @ query.T)

    def margins(self, W: np.ndarray) -> np.ndarray:
        return np.einsum("cd,cd->c", self.difference @ W, self.query)

    def combine(self, weights: np.ndarray) -> np.ndarray:
        return (self.difference * weights[:, None]).T @ self.query


def _block_pivoting(gram: np.ndarray, rounds: int = 40) -> np.ndarray | None:
    """Active set of min l'Gl/2 - 1'l over l >= 0 by exchanging all indices of the wrong sign at once; None unless it ends and G is well
    conditioned.

    Independent constraints are always feasible, so this needs no certificate. Exchanges fall back to one index at a time when they do
    not help.
    """
    active, fewest, patience = np.ones(len(gram), dtype=bool), len(gram) + 1, 3
    for turn in range(rounds):
        where = active.nonzero()[0]
        solve = _cholesky_solver(gram[np.ix_(where, where)], smallest=1e-4 if turn == 0 else 0.0)
        if solve is None:
            return None
        multipliers = solve(np.ones(len(where)))
        sign = gram[:, where] @ multipliers - 1  # slack of the margins; on the active set the multipliers decide
        sign[where] = multipliers
        wrong = sign < 0
        count = int(wrong.sum())
        if count == 0:
            return active
        if count < fewest:
            fewest, patience = count, 3
        elif patience > 0:
            patience -= 1
        else:
            wrong[: wrong.nonzero()[0][-1]] = False
        active = active ^ wrong
        if not active.any():
            return None
    return None


def multipliers_of(gram: Float[Tensor, "m m"], *, tol: float = 1e-9) -> Float[Tensor, " m"] | None:
    """Multipliers of the Frobenius problem from inner products alone, for few constraints in many dimensions; the norm of the solution is
    the square root of their sum.

    None unless margins and signs meet the KKT conditions to ``tol``, rounding included: then :func:`frobenius_max_margin` knows more.
    Source: dual of (Att-SVM), :cite:t:`tarzanagh2023transformers`.
    """
    G = gram.numpy()
    length = np.sqrt(G.diagonal())
    if not (length > 0).all():
        return None
    active = _nearest(_root(G), length) > 0
    where = active.nonzero()[0]
    block = G[where[:, None], where]
    solve = _cholesky_solver(block)
    if solve is None:
        return None
    multipliers = np.zeros(len(G))
    multipliers[where] = first = solve(np.ones(len(where)))
    multipliers[where] += solve(1 - block @ first)
    rounding = 1e-15 * float((np.abs(G) @ np.abs(multipliers)).max())
    met = float((G @ multipliers).min()) >= 1 - tol and multipliers.min() >= 0 and rounding <= tol
    return torch.from_numpy(multipliers) if met else None


def _least_distance(pairs: _Pairs) -> np.ndarray:
    """Non-negative weights of the point of the constraints' convex hull that is nearest to zero, up to a factor; positive on the active
    set."""
    m = len(pairs.length)
    if pairs.difference.shape[1] * pairs.query.shape[1] <= m:
        factor = (pairs.difference[:, :, None] * pairs.query[:, None, :]).reshape(m, -1).T
    else:
        factor = _root(pairs.gram)
    return _nearest(factor, pairs.length)


def _nearest(factor: np.ndarray, length: np.ndarray) -> np.ndarray:
    """:func:`_least_distance` for constraints that are the columns of ``factor``, of these lengths."""
    from scipy.optimize import nnls

    rows, m = factor.shape
    scaled = np.empty((rows + 1, m), order="F")
    scaled[:rows], scaled[rows] = factor, length.min()
    scaled /= length
    try:
        weights, _ = nnls(scaled, np.eye(1, rows + 1, rows)[0], maxiter=20 * m)
    except RuntimeError as error:
        raise NotConverged(f"non-negative least squares stopped ({error})") from error
    return weights / length


def _root(gram: np.ndarray) -> np.ndarray:
    """R with R^T R = gram and as few rows as its rank."""
    try:
        lower = np.linalg.cholesky(gram)
        if lower.diagonal().min() > 1e-5 * lower.diagonal().max():
            return lower.T
    except np.linalg.LinAlgError:
        pass
    values, vectors = np.linalg.eigh(gram)
    kept = values > 1e-14 * values[-1]
    return (vectors[:, kept] * np.sqrt(values[kept])).T


def _refuse(constraints: Constraints, pairs: _Pairs, weights: np.ndarray) -> None:
    """Raises Infeasible if the weights combine the constraints to zero, after refining them where they nearly do."""

    def residual(u: np.ndarray) -> float:
        return float(np.linalg.norm(pairs.combine(u)) / max(float(u @ pairs.length), 1e-300)) if pairs.length.all() else 0.0

    if float(weights @ pairs.gram @ weights) > 1e-10 * float(weights @ pairs.length) ** 2:  # far from zero: no need of more digits
        return
    left = residual(weights)
    if 1e-13 < left < 1e-5:  # the null vector of the active set's Gram matrix is accurate to rounding
        active = weights > 0
        scale = pairs.length[active]
        vector = np.linalg.eigh(pairs.gram[active][:, active] / scale[:, None] / scale)[1][:, 0]
        refined = np.zeros_like(weights)
        refined[active] = vector * np.sign(vector.sum()) / scale
        if (refined >= 0).all() and residual(refined) < left:
            weights, left = refined, residual(refined)
    if left > 1e-12:
        return
    weights = weights / weights.sum()
    combined = float(np.linalg.norm(pairs.combine(weights)))
    named = tuple(constraints.names(int(c)) for c in weights.nonzero()[0])
    proof = Farkas(torch.from_numpy(weights), left, 1 / combined if combined else float("inf"), named)
    raise Infeasible(
        f"no W selects these tokens: the constraints of {_words(named)} combine to 0 >= 1; "
        "choose other tokens or fewer inputs, or drop tokens that are equal (distinct_constraints)",
        certificate=proof,
    )


def _polish(pairs: _Pairs, active: np.ndarray, tol: float) -> tuple[np.ndarray, np.ndarray]:
    """W and multipliers with margin one on the active set, to rounding, the set being corrected while a sign or a margin is wrong.

    Refinement adds to W itself: its rounding error is then that of W, not that of the multipliers, which are much larger when margins
    are small.
    """
    from scipy.linalg import lstsq

    for _ in range(EXCHANGES):
        where = active.nonzero()[0]
        block = pairs.gram[np.ix_(where, where)]
        solve = _cholesky_solver(block)
        multipliers, W = np.zeros(len(active)), np.zeros((pairs.difference.shape[1], pairs.query.shape[1]))
        short = np.ones(len(block))
        for _ in range(4):
            part = np.zeros(len(active))
            part[active] = solve(short) if solve else lstsq(block, short)[0]  # pyright: ignore[reportOptionalSubscript]
            multipliers, W = multipliers + part, W + pairs.combine(part)
            margins = pairs.margins(W)
            short = 1 - margins[active]
            if np.abs(short).max(initial=0) < 1e-3 * tol:
                break
        if multipliers.min() < 0:
            active = active & (np.arange(len(active)) != multipliers.argmin())
        elif (outside := np.where(active, np.inf, margins)).min() < 1 - tol / 2:
            active = active | (np.arange(len(active)) == outside.argmin())
        else:
            break
        if not active.any():
            break
    return W, multipliers


def _cholesky_solver(matrix: np.ndarray, smallest: float = 0.0) -> Callable[[np.ndarray], np.ndarray] | None:
    """x -> matrix^-1 x by Cholesky; None if the matrix is not positive definite, or a pivot is below ``smallest`` times the largest."""
    from scipy.linalg.lapack import dpotrf, dpotrs  # pyright: ignore[reportAttributeAccessIssue]

    factor, failed = dpotrf(matrix, lower=1, clean=0)
    diagonal = factor.diagonal()
    if failed or diagonal.min() < smallest * diagonal.max():
        return None
    return lambda right: dpotrs(factor, right, lower=1)[0]


def _words(named: tuple[tuple[int, int], ...], most: int = 4) -> str:
    tokens: dict[int, list[int]] = {}
    for i, t in named:
        tokens.setdefault(i, []).append(t)
    parts = [f"input {i} (token{'s' * (len(ts) > 1)} {', '.join(map(str, ts))})" for i, ts in list(tokens.items())[:most]]
    return ", ".join(parts) + (f" and {len(tokens) - most} more inputs" if len(tokens) > most else "")
