r"""Claims about the max-margin solutions themselves: feasibility for wide data, rank, and agreement of
independent solvers.

With n distinct queries in d dimensions the Frobenius and the nuclear solution have rank at most min(n, d):
dropping the part of W outside the span of the queries changes no margin and enlarges neither norm. In the
nuclear norm the number of active constraints limits the rank further :cite:p:`pataki1998rank`. The problems
come from :cite:t:`tarzanagh2023transformers`.
"""

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ....core.claims import Measured, but, claim
from ....core.errors import NotConverged
from ....core.sources import Source
from ..builders import constraints
from ..constraint_set import Constraints
from ..feasibility import construct
from ..problem import cross_attention, random_selection
from ..solvers import (
    frobenius_max_margin,
    frobenius_max_margins,
    lp_max_margin,
    nuclear_max_margin,
    official_rank,
)
from ..solvers.conic import conic

SETTING = Source("tarzanagh2023transformers", status="own")  # states the problem that the solvers solve
SOURCE = Source("tarzanagh2023transformers", status="not found")
TRIALS = 10
MARGIN_ATOL = 1e-8  # largest rounding error of a margin of the constructed matrix
SOLVER_RTOL = 1e-6  # largest relative distance of two solutions; operator splitting is the least accurate
INTERIOR_POINT = {"solver": "CLARABEL", "tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}
SPLITTING = {"solver": "OSQP", "eps_abs": 1e-9, "eps_rel": 1e-9, "max_iter": 50_000}
LOOSE = {"solver": "SCS", "eps_abs": 1e-2, "eps_rel": 1e-2}
UNSOLVED = 1e6  # distance reported for a feasible problem without a verified solution
INPUTS = 2  # inputs per problem, so that the rank is at most two
RANK_PROBLEMS, PATAKI_PROBLEMS = 4, 2
CONIC_RTOL = 1e-5  # relative accuracy of the singular values and margins of a general solver
ACTIVE_ATOL = 1e-9  # a constraint is active if its margin is at most one plus this


@claim(
    "attention_svm/feasibility",
    measures="larger share of random selections that a solver finds infeasible, or for which the "
    "written-down W misses a margin",
    at_most=0.0,
    source=SOURCE,
    assumptions=(
        "tokens and queries in general position",
        "at least as many dimensions as inputs, and as other tokens",
    ),
    control=but("Six inputs of six tokens in five dimensions: there the construction fails.", dim=5),
)
def feasibility(generator: torch.Generator, *, inputs: int = 6, tokens: int = 6, dim: int = 6) -> Measured:
    r"""If $d \ge \max(T - 1, n)$, every selection is feasible for almost all data, and a $W$ that shows it
    can be written down: $W z_i = u_i$ with $(x_{i,a_i} - x_{i,t})^\top u_i = 1$ for all $t \ne a_i$. The
    construction, not feasibility, needs $d \ge n$.
    """
    # The construction fails for a selection if its matrix does not give every token a margin of one.
    instance = cross_attention(inputs=inputs, tokens=tokens, dim=dim, generator=generator, trials=TRIALS)
    pairs = constraints(instance.tokens, instance.query, random_selection(instance, generator=generator))
    infeasible = 1 - float(frobenius_max_margins(pairs).solved.double().mean())
    missed, largest = 0, 0.0
    for problem in map(pairs.problem, range(TRIALS)):
        construction = construct(problem)
        error = float((problem.margins(construction.W) - 1).abs().max())
        missed += not (construction.applies and error < MARGIN_ATOL)
        largest = max(largest, error)
    detail = {
        "infeasible": infeasible,
        "not written down": missed / TRIALS,
        "largest error of a margin": largest,
        "dim": dim,
    }
    return Measured(max(infeasible, missed / TRIALS), detail)


def _single_problem(generator: torch.Generator) -> Constraints:
    instance = cross_attention(inputs=5, tokens=5, dim=6, generator=generator)
    return constraints(instance.tokens, instance.query, instance.optimal())


def _quadratic_program(pairs: Constraints, options: dict) -> Tensor:
    """Returns the Frobenius solution by cvxpy, from the definition of the problem."""
    import cvxpy as cp

    W = cp.Variable((pairs.difference.shape[1], pairs.query.shape[1]))
    margins = cp.sum(cp.multiply(pairs.difference.numpy() @ W, pairs.query.numpy()), axis=1)
    cp.Problem(cp.Minimize(cp.sum_squares(W)), [margins >= 1]).solve(**options)  # pyright: ignore[reportArgumentType]
    return torch.from_numpy(np.array(W.value, dtype=float))


def _largest_distance(pairs: Constraints, solutions: list[Tensor]) -> Measured:
    """Returns the largest relative distance between this library's solution and other
    ``solutions``.
    """
    try:
        ours = frobenius_max_margin(pairs)
    except NotConverged:
        return Measured(UNSOLVED, note="the active sets found no verified solution")
    distances = [float((W - ours.W).norm()) / ours.norm for W in solutions]
    return Measured(max(distances), {"constraints": len(pairs), "KKT residual of ours": ours.kkt})


def _loose(generator: torch.Generator) -> Measured:
    pairs = _single_problem(generator)
    return _largest_distance(pairs, [_quadratic_program(pairs, LOOSE)])


@claim(
    "attention_svm/solvers-agree",
    measures="largest relative distance to the first solution",
    at_most=SOLVER_RTOL,
    source=SETTING,
    assumptions=("the problem is feasible", "tolerances 1e-11 (Clarabel), 1e-9 (OSQP)"),
    control=but(
        "The others are replaced by a first-order method (SCS) that stops at a tolerance of 0.01.", _loose
    ),
)
def solvers_agree(generator: torch.Generator) -> Measured:
    r"""$\min \|W\|_F$ subject to $(x_{i,a_i} - x_{i,t})^\top W z_i \ge 1$ has one solution: active sets, one
    problem at a time and in a batch, an interior-point method (Clarabel) and operator splitting (OSQP) find
    the same.
    """
    pairs = _single_problem(generator)
    batch = frobenius_max_margins(pairs.problem(None))
    return _largest_distance(
        pairs, [batch.W[0], _quadratic_program(pairs, INTERIOR_POINT), _quadratic_program(pairs, SPLITTING)]
    )


def _draw(
    generator: torch.Generator, *, inputs: int = INPUTS, tokens: int, dim: int, trials: int
) -> Constraints:
    """Draws the constraints of the best tokens of random problems."""
    instance = cross_attention(inputs=inputs, tokens=tokens, dim=dim, generator=generator, trials=trials)
    return constraints(instance.tokens, instance.query, instance.optimal())


def _problems(generator: torch.Generator, **size: int) -> list[Constraints]:
    """Draws RANK_PROBLEMS problems of one size."""
    pairs = _draw(generator, **size, trials=RANK_PROBLEMS)
    return [pairs.problem(trial) for trial in range(RANK_PROBLEMS)]


def _nuclear(W: Any) -> Any:
    import cvxpy as cp

    return cp.normNuc(W)


def _frobenius(W: Any) -> Any:
    import cvxpy as cp

    return cp.norm(W, "fro")


def _general(c: Constraints, norm: Any, **options: Any) -> Tensor:
    """Returns W from a general solver that treats every entry of W as a variable; NaN if the solver finds no
    solution.
    """
    solution = conic(
        c.difference.numpy(), c.query.numpy(), c.rhs.numpy(), c.equality.numpy(), norm, **options
    )
    return (
        torch.full((c.difference.shape[-1], c.query.shape[-1]), torch.nan)
        if solution is None
        else torch.from_numpy(solution[0])
    )


def _next_singular_value(W: Tensor) -> float:
    """Returns the first singular value that must vanish, relative to the largest."""
    sigma = torch.linalg.svdvals(W)
    return float(sigma[INPUTS] / sigma[0])


def _entrywise(generator: torch.Generator) -> float:
    return max(_next_singular_value(lp_max_margin(c, p=3.0).W) for c in _problems(generator, tokens=4, dim=4))


@claim(
    "attention_svm/rank",
    measures="singular value n + 1 relative to the first, largest over both norms and several problems, "
    "by general solvers",
    at_most=1e-6,
    source=SOURCE,
    assumptions=("one query for each of the n inputs", "the selection is feasible"),
    control=but(r"The norm is $\ell_3$ of the entries, which dropping a part of W can enlarge.", _entrywise),
)
def rank(generator: torch.Generator) -> Measured:
    r"""The max-margin solutions in the Frobenius and in the nuclear norm have rank at most $\min(n, d)$."""
    problems = _problems(generator, tokens=4, dim=4)
    frobenius, nuclear = (
        max(_next_singular_value(_general(c, norm)) for c in problems) for norm in (_frobenius, _nuclear)
    )
    return Measured(max(frobenius, nuclear), {"Frobenius": frobenius, "nuclear": nuclear})


def _excess(r: int, margins: Tensor, *, tol: float = ACTIVE_ATOL) -> int:
    """Returns r (r + 1) / 2 minus the number of active constraints."""
    return r * (r + 1) // 2 - int((margins <= 1 + tol).sum())


def _rank_and_margins(c: Constraints) -> tuple[int, Tensor]:
    """Returns the rank, by singular values, and the margins of a general solver's solution."""
    W = _general(c, _nuclear)
    sigma = torch.linalg.svdvals(W)
    return int((sigma > CONIC_RTOL * sigma[0]).sum()), c.margins(W)


def _published_recipe(generator: torch.Generator) -> Measured:
    excess = [
        _excess(official_rank(c), nuclear_max_margin(c).margins)
        for c in _problems(generator, inputs=10, tokens=3, dim=12)
    ]
    return Measured(max(excess), {"problems": len(excess)})


@claim(
    "attention_svm/pataki",
    measures="largest of r(r+1)/2 minus the number of active constraints, and of the difference between "
    "two counts of the rank",
    at_most=0,
    source=Source("pataki1998rank", "Theorem 2.2, (2.7)", "second-hand"),
    assumptions=("the solution is unique, as it is for almost all data",),
    control=but(
        "The rank is the one of the released notebook: singular values above 1e-7 of an inexact solution.",
        _published_recipe,
    ),
    corrects="The released figure of ranks counts singular values above $10^{-7}$ of solutions that "
    "are accurate to about $10^{-5}$: noise counts, the figure exceeds this bound, and the true ranks "
    "are far lower.",
    corrected=Source("tarzanagh2023transformers", "released code, svm_rank.ipynb", "confirmed"),
)
def pataki(generator: torch.Generator) -> Measured:
    r"""The rank r of the max-margin solution in the nuclear norm satisfies $r(r+1)/2 \le$ the number of
    active constraints.
    """
    problems = _problems(generator, inputs=10, tokens=3, dim=12)[:PATAKI_PROBLEMS]
    solutions = [_rank_and_margins(c) for c in problems]
    excess = max(_excess(r, margins, tol=CONIC_RTOL) for r, margins in solutions)
    rank_difference = max(abs(nuclear_max_margin(c).rank - r) for c, (r, _) in zip(problems, solutions))
    detail = {"excess": excess, "ranks apart": rank_difference, "problems": len(problems)}
    return Measured(max(excess, rank_difference), detail)


@claim(
    "attention_svm/nuclear-solvers",
    measures="largest relative distance of the solutions",
    at_most=1e-4,
    source=SETTING,
    assumptions=("the solution is unique, as it is for almost all data",),
    control=but("The first solution is that of the Frobenius norm.", norm="Frobenius"),
)
def nuclear_solvers(
    generator: torch.Generator, *, norm: Literal["nuclear", "Frobenius"] = "nuclear"
) -> Measured:
    r"""Three solvers of $\min \|W\|_*$ subject to $(x_{i,a_i} - x_{i,t})^\top W z_i \ge 1$ agree: interior
    point with Newton's method on factors, a general interior-point method, and operator splitting.
    """
    c = _draw(generator, inputs=3, tokens=4, dim=5, trials=1).problem(0)
    try:
        W = (nuclear_max_margin if norm == "nuclear" else frobenius_max_margin)(c).W
    except NotConverged:
        return Measured(UNSOLVED, note="the first solver found no verified solution")
    references = (
        _general(c, _nuclear),
        _general(c, _nuclear, solver="SCS", options={"eps": 1e-9, "max_iters": 20_000}),
    )
    interior, splitting = (float((reference - W).norm() / W.norm()) for reference in references)
    return Measured(max(interior, splitting), {"Clarabel": interior, "SCS": splitting})


CLAIMS = (feasibility, solvers_agree, rank, pataki, nuclear_solvers)
