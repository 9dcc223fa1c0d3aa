r"""Maximum-margin token selection in the Frobenius norm, the bias of descent on W: one problem at a time.

Source: problem (Att-SVM) of :cite:t:`tarzanagh2023transformers`. Up to a few hundred constraints the active set is found directly
(:mod:`.active_set`, after :cite:t:`lawson1974solving`), beyond that by a first-order method and working sets (:mod:`.first_order`). Every
answer is checked before it is returned.
"""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ....core.errors import Infeasible, NotConverged
from ..constraint_set import Constraints
from ..solution import NOT_CONVERGED, OPTIMAL, Farkas, MaxMargin
from .active_set import FEW, Contradiction, Pairs, cholesky_solver, contradictory, nearest, refined, root, solve
from .arguments import check_single
from .certainty import combination
from .exact_margins import beyond
from .first_order import solve_large

SHORTEST, LONGEST = 1e-140, 1e140  # of constraints: beyond, the squares of their lengths are no numbers
WRONG = 1e-3  # residual from which a point is no approximate solution
LARGE = 300  # constraints from which working sets are faster; the Gram matrix of all of them is not formed then

__all__ = ["FEW", "LARGE", "frobenius_max_margin", "multipliers_of"]


def frobenius_max_margin(constraints: Constraints, *, tol: float = 1e-12) -> MaxMargin:
    r"""Smallest matrix, in Frobenius norm, that meets the constraints: that scores every selected token above the others by one.

    Args:
        constraints: m constraints (difference ``[m, d_x]``, query ``[m, d_z]``) of a single problem, with any right-hand sides and
            equations among them, see :func:`~..builders.constraints`.
        tol: largest KKT residual accepted: violated margins relative to the largest right-hand side; relative to the squared norm, the
            duality gap, complementary products, and negative multipliers. Rounding W alone violates margins by about 1e-16 times its norm
            and the length of a constraint, so that norms beyond 1e3 leave residuals above 1e-13.
    Returns:
        The unique solution with its multipliers and residual; W = 0 if there is no constraint. Equations only: the smallest solution of
        the linear system.
    Raises:
        Infeasible: no W meets the constraints, or none shorter than the message says, where constraints cancel to rounding
            only; ``certificate`` is a :class:`Farkas`.
        NotConverged: the residual stayed above ``tol``, as when the constraints are feasible by a margin below rounding; or the length
            of a constraint is out of range.
        TypeError: not :class:`~..constraint_set.Constraints`, or a tolerance that is not a number.
        ValueError: a batch of problems, which is for :func:`frobenius_max_margins`, or a tolerance that is not positive.

    Source: (Att-SVM) of :cite:t:`tarzanagh2023transformers`; :cite:t:`lawson1974solving`.
    """
    check_single(constraints, tol, instead="use frobenius_max_margins")
    given = Pairs(*(v.numpy() for v in (constraints.difference, constraints.query, constraints.rhs, constraints.equality)))
    kept = given.length > 0
    if given.length.min(initial=1) < SHORTEST or not given.length.max(initial=1) < LONGEST:
        kept = given.difference.any(1) & given.query.any(1)
        extreme = kept & ~((given.length >= SHORTEST) & (given.length < LONGEST))
        if extreme.any():
            c = int(extreme.argmax())
            length, first = math.hypot(*given.difference[c]) * math.hypot(*given.query[c]), _words((constraints.names(c),))
            raise NotConverged(
                f"the length of a constraint, of its difference times of its query, must be between {SHORTEST:.0e} and {LONGEST:.0e}, "
                f"got {length:.1e} for {first}; scale the tokens"
            )
    contradicting = ~kept & ((given.rhs > 0) | (given.free & (given.rhs != 0)))
    if contradicting.any():
        first = np.arange(len(given)) == contradicting.argmax()
        raise _refusal(constraints, given, first * np.sign(given.rhs))
    scale = float(np.abs(given.rhs[kept]).max(initial=0)) or 1.0
    whole = scale == 1 and kept.all()
    pairs = given if whole else Pairs(given.difference[kept], given.query[kept], given.rhs[kept] / scale, given.free[kept])
    try:
        W, found = solve(pairs, tol=tol) if len(pairs) <= LARGE else solve_large(pairs, tol=tol)
    except Contradiction as proof:
        weights = np.zeros(len(given))
        weights[kept] = refined(pairs, proof.weights)
        raise _refusal(constraints, given, weights) from None
    if whole:
        return _verified(pairs, W, found, tol)
    solution, multipliers = _verified(pairs, W, found, tol), np.zeros(len(given))
    multipliers[kept] = scale * found
    W, margins = scale * solution.W, scale * given.margins(W)
    dual, norm = torch.from_numpy(multipliers), scale * solution.norm
    return MaxMargin(W, dual, torch.from_numpy(margins), norm, solution.kkt, solution.gap, rhs=torch.from_numpy(given.rhs))


def _verified(pairs: Pairs, W: np.ndarray, multipliers: np.ndarray, tol: float) -> MaxMargin:
    """The solution with its residuals.

    Raises:
        NotConverged: they are larger than ``tol``.
    """
    above, lost = beyond(pairs.difference, W, pairs.query, pairs.rhs)
    margins, square = above + pairs.rhs, float((W * W).sum())
    one = square or 1.0
    gap = abs(square - float(pairs.rhs @ multipliers)) / one
    kkt = max(
        gap,
        float((np.where(pairs.free, np.abs(above), -above) + lost).max(initial=0)),
        float(np.where(pairs.free, 0, -multipliers).max(initial=0)) / one,
        float(np.abs(multipliers * above).max(initial=0)) / one,
        float(np.linalg.norm(W - pairs.combine(multipliers))) / max(square**0.5, float(np.abs(multipliers) @ pairs.length), 1e-300),
    )
    found, dual, met, rhs = (torch.from_numpy(v) for v in (W, multipliers, margins, pairs.rhs))
    status = OPTIMAL if kkt <= tol else NOT_CONVERGED
    solution = MaxMargin(found, dual, met, square**0.5, kkt, gap, status=status, rhs=rhs)
    if not kkt <= tol:
        raise NotConverged(
            f"KKT residual must be at most {tol:.0e}, got {kkt:.1e}: {_why(pairs, W, kkt)}",
            state=solution,
            residuals=kkt,
        )
    return solution


def _why(pairs: Pairs, W: np.ndarray, kkt: float) -> str:
    """What keeps a residual large, and what helps."""
    rounding = pairs.rounding(W)
    if kkt > WRONG:
        return "constraints nearly contradict one another, or their lengths differ too much for float64; choose other tokens or scale them"
    if kkt <= 100 * rounding:
        return f"float64 rounds the margins of a W of norm {np.linalg.norm(W):.1e} by up to {rounding:.0e}; pass a larger tol"
    return "the constraints nearly depend on one another; pass a larger tol, or fewer constraints"


def _refusal(constraints: Constraints, pairs: Pairs, weights: np.ndarray) -> Infeasible | NotConverged:
    """What the weights prove: that there is no W (with the certificate, scaled to say 0 >= 1), or only that W is long."""
    weights = weights / float(weights @ pairs.rhs)
    combined, certain = combination(pairs, weights)
    shortest = 0.999 / combined if combined else math.inf  # to be printed: never rounded up
    left = combined / max(float(np.abs(weights) @ pairs.length), 1e-300)
    named = tuple(constraints.names(int(c)) for c in weights.nonzero()[0])
    if not contradictory(pairs, weights):
        return NotConverged(
            f"a W that selects these tokens has a norm of at least {shortest:.3e}, by the constraints of "
            f"{_words(named)}: too long for margins in float64; choose other tokens or fewer inputs",
            residuals=math.inf,
        )
    proof = Farkas(torch.from_numpy(weights), left, 1 / combined if combined else math.inf, named)
    which, how = ("", "") if certain else (f" of norm below {shortest:.3e}", " up to rounding")
    return Infeasible(
        f"no W{which} selects these tokens: the constraints of {_words(named)} combine to 0 >= 1{how}; "
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
