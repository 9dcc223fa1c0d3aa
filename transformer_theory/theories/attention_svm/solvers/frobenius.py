r"""Maximum-margin token selection in the Frobenius norm, one problem at a time. Gradient descent on W is
biased towards this solution.

.. math:: \min_W \|W\|_F \quad\text{subject to}\quad (x_{i,a_i} - x_{i,t})^\top W z_i \ge 1 \text{ for every
    input } i
    \text{ and every token } t \ne a_i,

which is problem (Att-SVM) of :cite:t:`tarzanagh2023transformers`. Up to a few hundred constraints, the solver
computes the active set directly (:mod:`.active_set`); beyond that, it uses working sets
(:mod:`.working_sets`). Every solution is verified before it is returned.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ....core.errors import Infeasible, NotConverged
from ....core.threads import single_threaded
from ....core.validation import positive
from ..constraint_set import HINT, Constraints
from ..solution import Farkas, MaxMargin, kkt_residual
from ..validation import check_type
from .active_set import block_pivoting, cholesky_solver, nnls_multipliers, root, solve
from .contradictions import Contradiction, is_contradiction, refined, residual
from .pairs import Pairs
from .tolerances import DIRECT_SIZE, EPSILON, FROBENIUS_KKT_TOL, GRAM_ONLY_SIZE, LENGTH_RANGE
from .working_sets import solve_large

# weights [m] -> pairs (input, token) of the non-zero ones
Naming = Callable[[np.ndarray], tuple[tuple[int, int], ...]]


@single_threaded
def frobenius_max_margin(constraints: Constraints, *, tol: float = FROBENIUS_KKT_TOL) -> MaxMargin:
    r"""Finds the smallest matrix, in Frobenius norm, that scores each selected token above the others of its
    input by one.

    Args:
        constraints: m constraints (difference ``[m, d_x]``, query ``[m, d_z]``) of a single problem, for
            example from :func:`~..builders.constraints`; right-hand sides may have any value, and equations
            are allowed.
        tol: largest accepted KKT residual. Rounding W alone changes margins by about 1e-16 times its norm
            times the length of a constraint, so a norm of 1e4 needs a tolerance above 1e-12.
    Returns:
        The unique solution W ``[d_x, d_z]`` with its multipliers, margins, KKT residual and rank. With
        equations only, this is the smallest solution of the linear system; without constraints, it is zero.
    Raises:
        Infeasible: no W meets the constraints; ``certificate`` is a :class:`Farkas`, which states its
            residual.
        NotConverged: the KKT residual stayed above ``tol``, only a W too long for float64 could meet the
            constraints, or the length of a constraint is out of range; ``state`` is the last iterate, if any.
        TypeError: ``constraints`` is not :class:`~..constraint_set.Constraints`, or ``tol`` is not a number.
        ValueError: ``constraints`` is a batch (use :func:`frobenius_max_margins`), or ``tol`` is not
            positive.
    """
    check_single(constraints, tol, hint="use frobenius_max_margins")
    return solve_problem(constraints, (), tol)


def solve_problem(constraints: Constraints, problem: int | tuple[()], tol: float) -> MaxMargin:
    """Solves one problem of a batch, or a single one if ``problem`` is (), as :func:`frobenius_max_margin`
    does.

    Raises:
        Infeasible, NotConverged: as for :func:`frobenius_max_margin`.
    """
    difference, query, rhs = (
        constraints.difference[problem],
        constraints.query[problem],
        constraints.rhs[problem],
    )
    pairs = Pairs(*(v.numpy() for v in (difference, query, rhs, constraints.equality[problem])))

    def name(weights: np.ndarray) -> tuple[tuple[int, int], ...]:
        """Returns the pairs (input, token) of the constraints with a non-zero weight."""
        index = torch.from_numpy(weights.nonzero()[0])
        return tuple(
            zip(constraints.input[problem][index].tolist(), constraints.token[problem][index].tolist())
        )

    # With a zero difference or query the margin is zero for every W, so the constraint holds for all W or for
    # none. Such constraints are decided and dropped here, since the solvers divide by the lengths of
    # constraints.
    nonzero: np.ndarray = np.any(pairs.difference, 1) & np.any(pairs.query, 1)
    impossible = ~nonzero & ((pairs.rhs > 0) | (pairs.free & (pairs.rhs != 0)))
    if impossible.any():
        # The first such constraint alone is the contradiction: its weight is one, with the sign of its
        # right-hand side.
        raise _refusal(name, pairs, (np.arange(len(pairs)) == impossible.argmax()) * np.sign(pairs.rhs))
    _check_lengths(name, pairs, nonzero)
    # Right-hand sides are scaled to at most one, so that margins and tolerances have no unit.
    scale = float(np.abs(pairs.rhs[nonzero]).max(initial=0)) or 1.0
    scaled = Pairs(
        pairs.difference[nonzero], pairs.query[nonzero], pairs.rhs[nonzero] / scale, pairs.free[nonzero]
    )
    try:
        W, multipliers = (solve if len(scaled) <= DIRECT_SIZE else solve_large)(scaled, tol=tol)
    except Contradiction as proof:
        # If the weights are not a proof up to rounding, refinement reduces their errors as far as possible;
        # _refusal then scales them to a certificate.
        weights = np.zeros(len(pairs))
        weights[nonzero] = (
            proof.weights if is_contradiction(scaled, proof.weights) else refined(scaled, proof.weights)
        )
        raise _refusal(name, pairs, weights) from None
    # The verification uses only the constraints, W and the multipliers, so it is independent of the method
    # that computed them.
    kkt, gap = residuals(scaled, W, multipliers)
    dual = np.zeros(len(pairs))
    dual[nonzero] = scale * multipliers
    norm = scale * float((W * W).sum()) ** 0.5
    W = torch.from_numpy(scale * W)
    solution = MaxMargin(
        W,
        torch.from_numpy(dual),
        ((difference @ W) * query).sum(-1),
        norm,
        kkt,
        gap,
        rhs,
        status="optimal" if kkt <= tol else "not converged",
    )
    if not kkt <= tol:  # also true for NaN
        raise NotConverged(
            f"the KKT residual must be at most {tol:.0e}, got {kkt:.1e}: float64 rounds the margins of a W "
            f"of norm {solution.norm:.1e} by "
            f"{EPSILON * solution.norm / scale * float(scaled.length.max(initial=0)):.0e}; pass a larger "
            "tol, or choose other tokens",
            state=solution,
            residuals=kkt,
        )
    return solution


def residuals(pairs: Pairs, W: np.ndarray, multipliers: np.ndarray) -> tuple[float, float]:
    """Returns the KKT residual and the duality gap of a problem whose largest right-hand side is one."""
    # At the optimum |W|^2 = b^T l. Both results are relative to |W|^2; if W = 0 all multipliers are zero, and
    # any unit serves.
    square = float((W * W).sum())
    objective = square or 1.0
    gap = abs(square - float(pairs.rhs @ multipliers)) / objective
    # Stationarity: W must equal the combination of the constraints. If the terms of this sum nearly cancel,
    # they are much longer than W. The rounding error is proportional to their length, which is then the unit.
    distance = float(np.linalg.norm(W - pairs.combine(multipliers))) / max(
        square**0.5, float(np.abs(multipliers) @ pairs.length), 1e-300
    )
    kkt = kkt_residual(pairs.slack(W), multipliers, pairs.free, scale=1.0, objective=objective)
    return max(float(kkt), gap, distance), gap


def check_single(constraints: Constraints, tol: float, *, hint: str) -> None:
    """Checks the arguments of a solver of one problem.

    Raises:
        TypeError: ``constraints`` is not :class:`~..constraint_set.Constraints`, or ``tol`` is not a number.
        ValueError: ``constraints`` is a batch (``hint`` names the remedy), or ``tol`` is not positive and
            finite.
    """
    check_type("constraints", constraints, Constraints, hint=HINT)
    positive(tol=tol)
    if constraints.batch:
        raise ValueError(
            f"constraints must belong to one problem, got a batch {list(constraints.batch)}; {hint}"
        )


def check_batch(constraints: Constraints, tol: float, *, single: str) -> None:
    """Checks the arguments of a solver of a batch ``[B, m]``.

    Raises:
        TypeError: ``constraints`` is not :class:`~..constraint_set.Constraints`, or ``tol`` is not a number.
        ValueError: there is not exactly one leading dimension, or ``tol`` is not positive and finite.
    """
    check_type("constraints", constraints, Constraints, hint=HINT)
    positive(tol=tol)
    if len(constraints.batch) != 1:
        hint = f"use {single}" if not constraints.batch else "flatten its leading dimensions to one"
        raise ValueError(
            "constraints must be a batch [B, m] of problems, got leading dimensions "
            f"{list(constraints.batch)}; {hint}"
        )


def _check_lengths(name: Naming, pairs: Pairs, nonzero: np.ndarray) -> None:
    """Raises NotConverged if the square of the length of a constraint is outside the range of float64."""
    low, high = LENGTH_RANGE
    size = np.abs(pairs.difference).max(1, initial=0) * np.abs(pairs.query).max(1, initial=0)
    extreme = nonzero & ~((size >= low) & (size <= high))
    if extreme.any():
        c = int(extreme.argmax())
        raise NotConverged(
            f"a constraint (difference times query) must have a size between {low:.0e} and {high:.0e}, got "
            f"{size[c]:.1e} for {_names(name(np.arange(len(pairs)) == c))}; scale the tokens"
        )


def _refusal(name: Naming, pairs: Pairs, weights: np.ndarray) -> Infeasible | NotConverged:
    """Returns the error for contradictory weights: they prove either that there is no W or that every W is
    long.

    The weights are scaled so that the certificate is 0 >= 1.
    """
    weights = weights / float(weights @ pairs.rhs)
    # For every feasible W, 1 = sum u_c b_c <= <sum u_c F_c, W> <= |sum u_c F_c| |W|, so |W| is at least the
    # inverse of the length of the combination. Adding the rounding error of the combination to its length
    # keeps the bound valid.
    total = float(np.abs(weights) @ pairs.length)
    combined = (
        float(np.linalg.norm(pairs.combine(weights))) + (int((weights != 0).sum()) + 2) * EPSILON * total
    )
    norm_bound = 1 / combined if combined else math.inf
    names = name(weights)
    # A combination longer than rounding errors does not exclude a solution. The problem is then badly scaled,
    # not infeasible.
    if not is_contradiction(pairs, weights):
        # The factor 0.999 keeps the printed bound valid after rounding to four digits.
        return NotConverged(
            f"a W that selects these tokens has a norm of at least {0.999 * norm_bound:.3e}, by the "
            f"constraints of {_names(names)}: too long for margins in float64; choose other tokens or fewer "
            "inputs",
            residuals=math.inf,
        )
    proof = Farkas(torch.from_numpy(weights), residual(pairs, weights), norm_bound, names)
    return Infeasible(
        f"no W selects these tokens: the constraints of {_names(names)} combine to 0 >= 1, with a residual "
        f"of {proof.residual:.0e}; choose other tokens or fewer inputs, or drop tokens that are equal "
        "(distinct_constraints)",
        certificate=proof,
    )


def _names(names: tuple[tuple[int, int], ...], limit: int = 4) -> str:
    """Formats at most ``limit`` inputs with their tokens, for messages."""
    tokens: dict[int, list[int]] = {}
    for i, t in names:
        tokens.setdefault(i, []).append(t)
    parts = [
        f"input {i} (token{'s' * (len(ts) > 1)} {', '.join(map(str, ts))})"
        for i, ts in list(tokens.items())[:limit]
    ]
    return ", ".join(parts) + (f" and {len(tokens) - limit} more inputs" if len(tokens) > limit else "")


def dual_multipliers(gram: Float[Tensor, "m m"], *, tol: float = 1e-9) -> Float[Tensor, " m"] | None:
    """Computes the multipliers of the Frobenius problem from inner products alone, for at most DIRECT_SIZE
    constraints.

    The norm of the solution is the square root of the sum of the multipliers.

    Args:
        gram: inner products of the constraints, ``[m, m]``; all right-hand sides are one.
        tol: largest accepted KKT residual, rounding included.
    Returns:
        The multipliers, ``[m]``; None if they do not meet the KKT conditions to ``tol``.
        :func:`frobenius_max_margin` may still return a solution, and its error gives the reason if there is
        none.
    Raises:
        NotConverged: the non-negative least squares stopped early.
    """
    G = gram.numpy()
    length, ones = np.sqrt(G.diagonal()), np.ones(len(G))
    if not (length > 0).all() or len(G) > DIRECT_SIZE:
        return None
    guess = (
        nnls_multipliers(root(G), ones, length)
        if len(G) <= GRAM_ONLY_SIZE
        else block_pivoting(G, ones, ones < 0)
    )
    if guess is None:
        return None
    active = guess.nonzero()[0]
    block = G[active[:, None], active]
    inverse = cholesky_solver(block)
    if inverse is None:
        return None
    multipliers = np.zeros(len(G))
    multipliers[active] = first = inverse(ones[active])
    multipliers[active] += inverse(1 - block @ first)  # one step of iterative refinement
    # W is never formed. Its margins are G l; their rounding error is proportional to the terms of these sums,
    # which may far exceed one.
    rounding = 1e-15 * float((np.abs(G) @ np.abs(multipliers)).max())
    optimal = float((G @ multipliers).min()) >= 1 - tol and multipliers.min() >= 0 and rounding <= tol
    return torch.from_numpy(multipliers) if optimal else None
