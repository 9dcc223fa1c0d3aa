r"""Maximum-margin token selection in the Frobenius norm, the bias of gradient descent on W: one problem at a time.

.. math:: \min_W \|W\|_F \quad\text{subject to}\quad (x_{i,a_i} - x_{i,t})^\top W z_i \ge 1 \text{ for every input } i
    \text{ and every token } t \ne a_i,

problem (Att-SVM) of :cite:t:`tarzanagh2023transformers`. Up to a few hundred constraints the active set is found directly
(:mod:`.active_set`), beyond that by working sets (:mod:`.working_sets`). Every solution is verified before it is returned.
"""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ....core.errors import Infeasible, NotConverged
from ....core.parallel import single_threaded
from ....core.validation import positive
from ..constraint_set import HINT, Constraints
from ..solution import Farkas, MaxMargin, kkt_residual
from ..validation import check_type
from .active_set import Contradiction, Pairs, cholesky_solver, is_contradiction, nearest, refined, residual, root, solve
from .tolerances import DIRECT_SIZE, EPSILON, FROBENIUS_KKT_TOL, LENGTH_RANGE
from .working_sets import solve_large


@single_threaded
def frobenius_max_margin(constraints: Constraints, *, tol: float = FROBENIUS_KKT_TOL) -> MaxMargin:
    r"""Find the smallest matrix, in Frobenius norm, that scores each selected token above the others of its input by one.

    Args:
        constraints: m constraints (difference ``[m, d_x]``, query ``[m, d_z]``) of a single problem, with any right-hand sides and with
            equations among them, see :func:`~..builders.constraints`.
        tol: largest KKT residual accepted. Rounding W alone violates margins by about 1e-16 times its norm and the length of a constraint,
            so a norm of 1e4 needs a tolerance above 1e-12.
    Returns:
        The unique solution W ``[d_x, d_z]`` with its multipliers, margins, KKT residual and rank. Equations only: the smallest solution of
        the linear system. No constraint: zero.
    Raises:
        Infeasible: no W meets the constraints; ``certificate`` is a :class:`Farkas`, which states its residual.
        NotConverged: the KKT residual stayed above ``tol``, or the constraints are feasible only for a W too long for float64, or the
            length of a constraint is out of range; ``state`` is the last iterate where there is one.
        TypeError: not :class:`~..constraint_set.Constraints`, or a tolerance that is no number.
        ValueError: a batch of problems (use :func:`frobenius_max_margins`), or a tolerance that is not positive.
    """
    check_single(constraints, tol, hint="use frobenius_max_margins")
    pairs = Pairs(*(v.numpy() for v in (constraints.difference, constraints.query, constraints.rhs, constraints.equality)))
    # A constraint on the zero matrix holds for every W or for none.
    nonzero: np.ndarray = np.any(pairs.difference, 1) & np.any(pairs.query, 1)
    impossible = ~nonzero & ((pairs.rhs > 0) | (pairs.free & (pairs.rhs != 0)))
    if impossible.any():
        raise _refusal(constraints, pairs, (np.arange(len(pairs)) == impossible.argmax()) * np.sign(pairs.rhs))
    _check_lengths(constraints, pairs, nonzero)
    # Right-hand sides are scaled to at most one, so that margins and tolerances have no unit.
    scale = float(np.abs(pairs.rhs[nonzero]).max(initial=0)) or 1.0
    scaled = Pairs(pairs.difference[nonzero], pairs.query[nonzero], pairs.rhs[nonzero] / scale, pairs.free[nonzero])
    try:
        W, multipliers = (solve if len(scaled) <= DIRECT_SIZE else solve_large)(scaled, tol=tol)
    except Contradiction as proof:
        weights = np.zeros(len(pairs))
        weights[nonzero] = refined(scaled, proof.weights)
        raise _refusal(constraints, pairs, weights) from None
    kkt, gap = residuals(scaled, W, multipliers)
    dual = np.zeros(len(pairs))
    dual[nonzero] = scale * multipliers
    norm = scale * float((W * W).sum()) ** 0.5
    W = torch.from_numpy(scale * W)
    solution = MaxMargin(
        W,
        torch.from_numpy(dual),
        constraints.margins(W),
        norm,
        kkt,
        gap,
        constraints.rhs,
        status="optimal" if kkt <= tol else "not converged",
    )
    if not kkt <= tol:
        raise NotConverged(
            f"the KKT residual must be at most {tol:.0e}, got {kkt:.1e}: float64 rounds the margins of a W of norm {solution.norm:.1e} by "
            f"{EPSILON * solution.norm / scale * float(scaled.length.max(initial=0)):.0e}; pass a larger tol, or choose other tokens",
            state=solution,
            residuals=kkt,
        )
    return solution


def residuals(pairs: Pairs, W: np.ndarray, multipliers: np.ndarray) -> tuple[float, float]:
    """KKT residual and duality gap of a problem whose largest right-hand side is one."""
    square = float((W * W).sum())
    objective = square or 1.0
    gap = abs(square - float(pairs.rhs @ multipliers)) / objective
    # W must be the combination of the constraints. The terms may be much longer than W: rounding is relative to them.
    distance = float(np.linalg.norm(W - pairs.combine(multipliers))) / max(square**0.5, float(np.abs(multipliers) @ pairs.length), 1e-300)
    kkt = kkt_residual(pairs.slack(W), multipliers, pairs.free, scale=1.0, objective=objective)
    return max(float(kkt), gap, distance), gap


def check_single(constraints: Constraints, tol: float, *, hint: str) -> None:
    """Checks the arguments of a solver of one problem.

    Raises:
        TypeError: not constraints, or a tolerance that is no number.
        ValueError: a batch (``hint`` says what to do with it), or a tolerance that is not positive and finite.
    """
    check_type("constraints", constraints, Constraints, hint=HINT)
    positive(tol=tol)
    if constraints.batch:
        raise ValueError(f"constraints must be those of one problem, got a batch {list(constraints.batch)}; {hint}")


def check_batch(constraints: Constraints, tol: float, *, single: str) -> None:
    """Checks the arguments of a solver of a batch ``[B, m]``.

    Raises:
        TypeError: not constraints, or a tolerance that is no number.
        ValueError: another number of leading dimensions, or a tolerance that is not positive and finite.
    """
    check_type("constraints", constraints, Constraints, hint=HINT)
    positive(tol=tol)
    if len(constraints.batch) != 1:
        hint = f"use {single}" if not constraints.batch else "flatten its leading dimensions to one"
        raise ValueError(f"constraints must be a batch [B, m] of problems, got leading dimensions {list(constraints.batch)}; {hint}")


def _check_lengths(constraints: Constraints, pairs: Pairs, nonzero: np.ndarray) -> None:
    """Raises NotConverged if the square of a constraint's length leaves the range of float64."""
    low, high = LENGTH_RANGE
    size = np.abs(pairs.difference).max(1, initial=0) * np.abs(pairs.query).max(1, initial=0)
    extreme = nonzero & ~((size >= low) & (size <= high))
    if extreme.any():
        c = int(extreme.argmax())
        raise NotConverged(
            f"a constraint (difference times query) must have a size between {low:.0e} and {high:.0e}, got {size[c]:.1e} for "
            f"{_names((constraints.names(c),))}; scale the tokens"
        )


def _refusal(constraints: Constraints, pairs: Pairs, weights: np.ndarray) -> Infeasible | NotConverged:
    """What contradictory weights prove: there is no W (with the certificate, scaled to say 0 >= 1), or only that W is long."""
    weights = weights / float(weights @ pairs.rhs)
    # 1 <= sum u_c b_c <= <sum u_c F_c, W> <= |sum u_c F_c| |W|; rounding of the combination is added to its length.
    total = float(np.abs(weights) @ pairs.length)
    combined = float(np.linalg.norm(pairs.combine(weights))) + (int((weights != 0).sum()) + 2) * EPSILON * total
    shortest = 1 / combined if combined else math.inf
    names = tuple(constraints.names(int(c)) for c in weights.nonzero()[0])
    if not is_contradiction(pairs, weights):
        return NotConverged(
            f"a W that selects these tokens has a norm of at least {0.999 * shortest:.3e}, by the constraints of {_names(names)}: too long "
            "for margins in float64; choose other tokens or fewer inputs",
            residuals=math.inf,
        )
    proof = Farkas(torch.from_numpy(weights), residual(pairs, weights), shortest, names)
    return Infeasible(
        f"no W selects these tokens: the constraints of {_names(names)} combine to 0 >= 1, with a residual of {proof.residual:.0e}; choose "
        "other tokens or fewer inputs, or drop tokens that are equal (distinct_constraints)",
        certificate=proof,
    )


def _names(names: tuple[tuple[int, int], ...], limit: int = 4) -> str:
    tokens: dict[int, list[int]] = {}
    for i, t in names:
        tokens.setdefault(i, []).append(t)
    parts = [f"input {i} (token{'s' * (len(ts) > 1)} {', '.join(map(str, ts))})" for i, ts in list(tokens.items())[:limit]]
    return ", ".join(parts) + (f" and {len(tokens) - limit} more inputs" if len(tokens) > limit else "")


def dual_multipliers(gram: Float[Tensor, "m m"], *, tol: float = 1e-9) -> Float[Tensor, " m"] | None:
    """Multipliers of the Frobenius problem from inner products alone, for few constraints in many dimensions.

    The norm of the solution is the square root of their sum.

    Returns:
        ``[m]``; None unless margins and signs meet the KKT conditions to ``tol``, rounding included. :func:`frobenius_max_margin` may then
        still find a solution, and says why if there is none.
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
    multipliers[where] += inverse(1 - block @ first)  # one step of refinement
    rounding = 1e-15 * float((np.abs(G) @ np.abs(multipliers)).max())
    met = float((G @ multipliers).min()) >= 1 - tol and multipliers.min() >= 0 and rounding <= tol
    return torch.from_numpy(multipliers) if met else None
