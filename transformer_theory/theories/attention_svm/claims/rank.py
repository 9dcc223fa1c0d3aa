r"""Claims on the rank of the max-margin solutions, and the agreement of solvers on which it rests.

With n distinct queries in d dimensions both solutions are of rank min(n, d) at most: leaving out of W what lies outside the span of the
queries changes no margin and enlarges neither norm. In the nuclear norm the number of active constraints limits the rank further.

Source: :cite:t:`tarzanagh2023transformers`, :cite:t:`pataki1998rank`.
"""

from typing import Any

import torch
from torch import Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ..builders import constraints
from ..constraint_set import Constraints
from ..problem import cross_attention
from ..solvers import frobenius_max_margin, lp_max_margin, nuclear_max_margin, official_rank
from ..solvers.conic import conic

SOURCE = Source("tarzanagh2023transformers")
INPUTS = 2
FEW = 4  # problems a check, where each takes tens of milliseconds
PATAKI = 2  # problems, where each takes a tenth of a second and more
COARSE = 1e-5  # of singular values and margins of a general solver, good to about 1e-8
ACTIVE = 1e-9  # a margin up to one and this much is active


def _draw(generator: torch.Generator, *, inputs: int = INPUTS, tokens: int, dim: int, trials: int) -> Constraints:
    drawn = cross_attention(inputs=inputs, tokens=tokens, dim=dim, generator=generator, trials=trials)
    return constraints(drawn.tokens, drawn.query, drawn.optimal())


def _few(generator: torch.Generator, **size: int) -> list[Constraints]:
    pairs = _draw(generator, **size, trials=FEW)
    return [pairs.problem(at) for at in range(FEW)]


def _nuclear(W: Any) -> Any:
    import cvxpy as cp

    return cp.normNuc(W)


def _frobenius(W: Any) -> Any:
    import cvxpy as cp

    return cp.norm(W, "fro")


def _general(c: Constraints, norm: Any, **how: Any) -> Tensor:
    """W of a general solver, in all entries."""
    assert c.rhs is not None
    assert c.equality is not None
    found = conic(c.difference.numpy(), c.query.numpy(), c.rhs.numpy(), c.equality.numpy(), norm, **how)
    return torch.full((c.difference.shape[-1], c.query.shape[-1]), torch.nan) if found is None else torch.from_numpy(found[0])


def _beyond(W: Tensor) -> float:
    """The first singular value that the claim says is zero, relative to the largest."""
    sigma = torch.linalg.svdvals(W)
    return float(sigma[INPUTS] / sigma[0])


def _low_rank(generator: torch.Generator) -> Evidence:
    problems = _few(generator, tokens=4, dim=4)
    frobenius, nuclear = (max(_beyond(_general(c, norm)) for c in problems) for norm in (_frobenius, _nuclear))
    return Evidence(max(frobenius, nuclear), 1e-6, "<=", detail={"Frobenius": frobenius, "nuclear": nuclear})


def _entrywise(generator: torch.Generator) -> Evidence:
    return Evidence(max(_beyond(lp_max_margin(c, p=3.0).W) for c in _few(generator, tokens=4, dim=4)), 1e-6, "<=")


def _excess(r: int, margins: Tensor, *, tol: float = ACTIVE) -> int:
    """r (r + 1) / 2 less the number of active constraints."""
    return r * (r + 1) // 2 - int((margins <= 1 + tol).sum())


def _counted(c: Constraints) -> tuple[int, Tensor]:
    """Rank and margins of a general solver's solution, by its singular values."""
    W = _general(c, _nuclear)
    sigma = torch.linalg.svdvals(W)
    return int((sigma > COARSE * sigma[0]).sum()), c.margins(W)


def _pataki(generator: torch.Generator) -> Evidence:
    problems = _few(generator, inputs=10, tokens=3, dim=12)[:PATAKI]
    counted = [_counted(c) for c in problems]
    excess = max(_excess(r, margins, tol=COARSE) for r, margins in counted)
    apart = max(abs(nuclear_max_margin(c).rank - r) for c, (r, _) in zip(problems, counted))
    return Evidence(max(excess, apart), 0, "<=", detail={"excess": excess, "ranks apart": apart, "problems": len(problems)})


def _published_recipe(generator: torch.Generator) -> Evidence:
    excess = [_excess(official_rank(c), nuclear_max_margin(c).margins) for c in _few(generator, inputs=10, tokens=3, dim=12)]
    return Evidence(max(excess), 0, "<=", detail={"problems": len(excess)})


def _distance(generator: torch.Generator, solve: Any) -> Evidence:
    """The largest distance of ``solve``'s W to those of two general solvers, relative to its norm."""
    c = _draw(generator, inputs=3, tokens=4, dim=5, trials=1).problem(0)
    W = solve(c).W
    others = _general(c, _nuclear), _general(c, _nuclear, solver="SCS", options={"eps": 1e-9, "max_iters": 20_000})
    interior, splitting = (float((other - W).norm() / W.norm()) for other in others)
    return Evidence(max(interior, splitting), 1e-4, "<=", detail={"Clarabel": interior, "SCS": splitting})


CLAIMS = (
    Claim(
        id="attention_svm/rank",
        statement=r"The max-margin solutions in the Frobenius and in the nuclear norm have rank at most $\min(n, d)$. "
        r"Value: $\sigma_{n+1} / \sigma_1$ of both in several problems, by a solver that does not know of it.",
        source=SOURCE,
        assumptions=("one query for each of the n inputs", "the selection is feasible"),
        check=_low_rank,
        control=_entrywise,
        control_description=r"The norm is $\ell_3$ of the entries, which leaving out a part of W can enlarge.",
    ),
    Claim(
        id="attention_svm/pataki",
        statement=r"The rank r of the max-margin solution in the nuclear norm satisfies $r(r+1)/2 \le$ the number of active constraints. "
        r"Value: the largest excess in several problems, with rank and constraints counted on a general solver's solution, or the "
        r"difference of that rank and the one by complementarity, if larger.",
        source=Source("pataki1998rank"),
        assumptions=("the solution is unique, as it is for almost all data",),
        check=_pataki,
        control=_published_recipe,
        control_description="The rank is the one of the released notebook: singular values above 1e-7 of an inexact solution.",
        corrects="The released figure of ranks counts singular values above $10^{-7}$ of solutions that are accurate to about $10^{-5}$: "
        "noise counts, the figure exceeds this bound, and the true ranks are far lower.",
    ),
    Claim(
        id="attention_svm/nuclear-solvers",
        statement=r"Three solvers of $\min \|W\|_*$ subject to $(x_{i,a_i} - x_{i,t})^\top W z_i \ge 1$ agree: interior point with "
        r"Newton's method on factors, a general interior-point method, and operator splitting. Value: the largest relative distance of the "
        r"solutions.",
        source=SOURCE,
        assumptions=("the solution is unique, as it is for almost all data",),
        check=lambda generator: _distance(generator, nuclear_max_margin),
        control=lambda generator: _distance(generator, frobenius_max_margin),
        control_description="The first solution is that of the Frobenius norm.",
    ),
)
