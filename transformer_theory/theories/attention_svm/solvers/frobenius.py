r"""Maximum-margin token selection in the Frobenius norm, the bias of descent on W: one problem at a time.

Source: problem (Att-SVM) of :cite:t:`tarzanagh2023transformers`. Up to a few hundred constraints the active set is found directly
(:mod:`.active_set`, after :cite:t:`lawson1974solving`), beyond that by a first-order method and working sets (:mod:`.first_order`). Every
answer is checked before it is returned.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ....errors import Infeasible, NotConverged
from ..constraint_set import Constraints
from ..solution import Farkas, MaxMargin
from .active_set import FEW, Contradiction, Pairs, cholesky_solver, nearest, root, solve
from .first_order import solve_large

LARGE = 300  # constraints from which working sets are faster; the Gram matrix of all of them is not formed then

__all__ = ["FEW", "LARGE", "frobenius_max_margin", "multipliers_of"]


def frobenius_max_margin(constraints: Constraints, *, tol: float = 1e-12) -> MaxMargin:
    r"""Smallest matrix, in Frobenius norm, that meets the constraints: that scores every selected token above the others by one.

    Args:
        constraints: m constraints (difference ``[m, d_x]``, query ``[m, d_z]``) of a single problem, with any right-hand sides and
            equations among them, see :func:`~..builders.constraints`.
        tol: largest KKT residual accepted, relative to the largest right-hand side.
    Returns:
        The unique solution with its multipliers and residual; W = 0 if there is no constraint. Equations only: the smallest solution of
        the linear system.
    Raises:
        Infeasible: no W meets the constraints; ``certificate`` is a :class:`Farkas`.
        NotConverged: the residual stayed above ``tol``, as when the constraints are feasible by a margin below rounding.
        ValueError: a batch of problems, which is for :func:`frobenius_max_margins`.

    Source: (Att-SVM) of :cite:t:`tarzanagh2023transformers`; :cite:t:`lawson1974solving`.
    """
    if constraints.batch:
        raise ValueError(f"constraints must be those of one problem, got a batch {list(constraints.batch)}; use frobenius_max_margins")
    given = Pairs(*(v.detach().numpy() for v in (constraints.difference, constraints.query, constraints.rhs, constraints.equality)))  # pyright: ignore
    kept = given.length > 0
    contradicting = ~kept & ((given.rhs > 0) | (given.free & (given.rhs != 0)))
    if contradicting.any():
        first = np.arange(len(given)) == contradicting.argmax()
        raise _infeasible(constraints, given, first * np.sign(given.rhs))
    scale = float(np.abs(given.rhs[kept]).max(initial=0)) or 1.0
    whole = scale == 1 and kept.all()
    pairs = given if whole else Pairs(given.difference[kept], given.query[kept], given.rhs[kept] / scale, given.free[kept])
    try:
        W, found = solve(pairs, tol=tol) if len(pairs) <= LARGE else solve_large(pairs, tol=tol)
    except Contradiction as proof:
        weights = np.zeros(len(given))
        weights[kept] = proof.weights
        raise _infeasible(constraints, given, weights) from None
    if whole:
        return _verified(pairs, W, found, tol)
    solution, multipliers = _verified(pairs, W, found, tol), np.zeros(len(given))
    multipliers[kept] = scale * found
    W, margins = scale * solution.W, scale * given.margins(W)
    return MaxMargin(W, torch.from_numpy(multipliers), torch.from_numpy(margins), scale * solution.norm, solution.kkt, solution.gap)


def _verified(pairs: Pairs, W: np.ndarray, multipliers: np.ndarray, tol: float) -> MaxMargin:
    """The solution with its residuals.

    Raises:
        NotConverged: they are larger than ``tol``.
    """
    margins, square = pairs.margins(W), float((W * W).sum())
    beyond, one = margins - pairs.rhs, max(1.0, square)
    gap = abs(square - float(pairs.rhs @ multipliers)) / one
    kkt = max(
        gap,
        float(np.where(pairs.free, np.abs(beyond), -beyond).max(initial=0)),
        float(np.where(pairs.free, 0, -multipliers).max(initial=0)),
        float(np.abs(multipliers * beyond).max(initial=0)) / one,
        float(np.linalg.norm(W - pairs.combine(multipliers))) / max(1.0, float(np.abs(multipliers) @ pairs.length)),
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


def _infeasible(constraints: Constraints, pairs: Pairs, weights: np.ndarray) -> Infeasible:
    """The exception with its certificate, scaled so that the combination says 0 >= 1."""
    weights = weights / float(weights @ pairs.rhs)
    combined = float(np.linalg.norm(pairs.combine(weights)))
    left = combined / max(float(np.abs(weights) @ pairs.length), 1e-300)
    named = tuple(constraints.names(int(c)) for c in weights.nonzero()[0])
    proof = Farkas(torch.from_numpy(weights), left, 1 / combined if combined else float("inf"), named)
    return Infeasible(
        f"no W selects these tokens: the constraints of {_words(named)} combine to 0 >= 1; "
        "choose other tokens or fewer inputs, or drop tokens that are equal (distinct_constraints)",
        certificate=proof,
    )


def _words(named: tuple[tuple[int, int], ...], most: int = 4) -> str:
    tokens: dict[int, list[int]] = {}
    for i, t in named:
        tokens.setdefault(i, []).append(t)
    parts = [f"input {i} (token{'s' * (len(ts) > 1)} {', '.join(map(str, ts))})" for i, ts in list(tokens.items())[:most]]
    return ", ".join(parts) + (f" and {len(tokens) - most} more inputs" if len(tokens) > most else "")


def multipliers_of(gram: Float[Tensor, "m m"], *, tol: float = 1e-9) -> Float[Tensor, " m"] | None:
    """Multipliers of the Frobenius problem from inner products alone, for few constraints in many dimensions; the norm of the solution is
    the square root of their sum.

    None unless margins and signs meet the KKT conditions to ``tol``, rounding included: then :func:`frobenius_max_margin` knows more.
    Source: dual of (Att-SVM), :cite:t:`tarzanagh2023transformers`.
    """
    G = gram.numpy()
    length, ones = np.sqrt(G.diagonal()), np.ones(len(G))
    if not (length > 0).all():
        return None
    where = nearest(root(G), ones, length).nonzero()[0]
    block = G[where[:, None], where]
    inverse = cholesky_solver(block)
    if inverse is None:
        return None
    multipliers = np.zeros(len(G))
    multipliers[where] = first = inverse(ones[where])
    multipliers[where] += inverse(1 - block @ first)
    rounding = 1e-15 * float((np.abs(G) @ np.abs(multipliers)).max())
    met = float((G @ multipliers).min()) >= 1 - tol and multipliers.min() >= 0 and rounding <= tol
    return torch.from_numpy(multipliers) if met else None
