"""Sparsification: descent and rates of ISTA and FISTA on the non-negative LASSO."""

import torch
from torch import Tensor

from ....core.claims import BOUND, Measured, but, claim
from ....core.sources import Source
from ....maths.linalg import orthonormalise
from ....models.crate.sparsification import ONE_PRODUCT_TOKENS, curvature, fista_steps, from_tokens, ista_step
from ..problem import CODING, RATES
from ..sparse_coding import duality_gap, fista, ista, lasso, optimal_code, signed_dictionary
from .compression import ROUNDING, D, N, complete_instance

LAM = 0.1
COUNTS = (1, 2, 5, 10, 20, 40)  # steps after which the objective is measured
SLOW_STEPS, SLOW_LAM = 400, 1e-6
CLOSED_FORM_STEPS = 60


@claim(
    "crate/ista-descent",
    measures="largest change of the objective over ten steps, in units of L/2 ||Z+ - Z||^2",
    at_most=-1 + ROUNDING,
    margin=BOUND,
    source=Source("beck2009fast", "", "not found"),
    assumptions=("any dictionary; a non-negative start, here the tokens themselves, as in a layer",),
    control=but(r"three times the step, $\eta = 3/L$", step=3.0),
    corrects=r"CRATE prints the LASSO without the factor $\frac12$ (Eqs. (15)-(17)); its step is that "
    r"of the LASSO with it.",
    corrected=Source("yu2023white", "Eqs. (15)-(17)", "confirmed"),
)
def ista_descent(generator: torch.Generator, *, step: float = 1.0) -> float:
    r"""An ISTA step with $\eta = 1/L$, $L = \|D\|_2^2$, lowers the non-negative LASSO $\tfrac12 \|Y - Z
    D^\top\|_F^2 + \lambda \sum Z$ by at least $\tfrac L2 \|Z^+ - Z\|_F^2$.
    """
    # ISTA starts from the tokens, as in a layer, whose own step is the first; ``step`` is the step size in
    # units of 1/L.
    tokens = torch.randn(ONE_PRODUCT_TOKENS * D, D, generator=generator, dtype=torch.float64).relu()
    dictionary = 2 * torch.randn(D, D, generator=generator, dtype=torch.float64) / D**0.5
    L = curvature(dictionary)
    code, worst = tokens, -torch.inf
    for number in range(10):
        eta = step / L
        first = number == 0
        new = (
            from_tokens(tokens, dictionary, eta=eta, lam=LAM)
            if first
            else ista_step(code, tokens, dictionary, eta=eta, lam=LAM)
        )
        change = lasso(new, tokens, dictionary, lam=LAM) - lasso(code, tokens, dictionary, lam=LAM)
        worst = max(worst, float(change / (0.5 * L * (new - code).square().sum())))
        code = new
    return worst


def _overcomplete(generator: torch.Generator) -> tuple[Tensor, Tensor, float, Tensor, Tensor]:
    """Returns tokens, a dictionary of 3 D / 2 atoms, L, the optimal code and a lower bound of the optimum."""
    tokens = torch.randn(N, D, generator=generator, dtype=torch.float64)
    dictionary = torch.randn(D, D + D // 2, generator=generator, dtype=torch.float64) / D**0.5
    best = fista(tokens, dictionary, lam=LAM)
    return tokens, dictionary, curvature(dictionary), best.code, (best.objective - best.gap).sum()


def _slow_directions(generator: torch.Generator) -> float:
    """Returns the distance to the optimum of 400 FISTA steps over its bound, for singular values of D from 1
    down to .01.

    With D = Q diag(s) the objective is a sum over atoms, and Y = D Z* + lambda Q (1/s) has the minimiser Z*
    for Z* > 0.
    """
    Q = orthonormalise(torch.randn(D, D, generator=generator, dtype=torch.float64))
    s = torch.logspace(0, -2, D, dtype=torch.float64)
    best = torch.rand(1, D, generator=generator, dtype=torch.float64) + 0.5
    lam = SLOW_LAM
    dictionary = Q * s
    tokens = best @ dictionary.mT + lam * (1 / s) @ Q.mT
    fast = fista_steps(torch.zeros_like(best), tokens, dictionary, eta=1.0, lam=lam, steps=SLOW_STEPS)
    distance = lasso(fast, tokens, dictionary, lam=lam) - lasso(best, tokens, dictionary, lam=lam)
    return float(distance / (2 * best.square().sum() / (SLOW_STEPS + 1) ** 2))


@claim(
    "crate/ista-fista-rates",
    measures="largest distance of the objective to its optimum over its bound",
    at_most=1 + ROUNDING,
    source=RATES,
    assumptions=(
        "any dictionary and start; the check starts at zero. Drawn: 36 Gaussian atoms in 24 "
        "dimensions, whose optimum has a duality gap below 1e-10 of it, and for FISTA a dictionary "
        "with singular values from 1 to .01 and known optimum",
    ),
    control=but(r"two and a half times the step, $\eta = 2.5/L$", step=2.5),
)
def ista_fista_rates(generator: torch.Generator, *, step: float = 1.0) -> Measured:
    r"""From $Z_0$ with $\eta = 1/L$, $L = \|D\|_2^2$, the non-negative LASSO $\tfrac12 \|Y - Z D^\top\|_F^2 +
    \lambda \sum Z$ is at most $L \|Z_0 - Z^*\|_F^2 / (2k)$ above its optimum after $k$ steps of ISTA and at
    most $2 L \|Z_0 - Z^*\|_F^2 / (k+1)^2$ after $k$ of FISTA.
    """
    tokens, dictionary, L, best, optimum = _overcomplete(generator)
    start = torch.zeros_like(best)
    distance = L * best.square().sum()
    shares, code, done = {}, start, 0
    for count in COUNTS:
        for _ in range(count - done):
            code = ista_step(code, tokens, dictionary, eta=step / L, lam=LAM)
        done = count
        fast = fista_steps(start, tokens, dictionary, eta=step / L, lam=LAM, steps=count)
        for name, result, allowed in (
            ("ISTA", code, distance / (2 * count)),
            ("FISTA", fast, 2 * distance / (count + 1) ** 2),
        ):
            shares[f"{name}, {count} steps"] = float(
                (lasso(result, tokens, dictionary, lam=LAM) - optimum) / allowed
            )
    shares[f"FISTA, {SLOW_STEPS} steps, singular values to .01"] = _slow_directions(generator)
    return Measured(max(shares.values()), shares)


@claim(
    "crate/fista-faster",
    measures="distance to the optimum after 40 steps, over that of ISTA",
    at_most=0.5,
    source=CODING,
    assumptions=("Gaussian tokens, 36 Gaussian atoms in 24 dimensions, both from zero; an observation",),
    control=but("the momentum is left out", momentum=False),
)
def fista_faster(generator: torch.Generator, *, momentum: bool = True) -> Measured:
    """After 40 steps FISTA is at most half as far above the optimum of the non-negative LASSO, $F - F^*$, as
    ISTA.
    """
    tokens, dictionary, L, best, optimum = _overcomplete(generator)
    slow = torch.zeros_like(best)
    for _ in range(COUNTS[-1]):
        slow = ista_step(slow, tokens, dictionary, eta=1 / L, lam=LAM)
    fast = (
        fista_steps(torch.zeros_like(best), tokens, dictionary, eta=1 / L, lam=LAM, steps=COUNTS[-1])
        if momentum
        else slow
    )
    gaps = [float(lasso(code, tokens, dictionary, lam=LAM) - optimum) for code in (fast, slow)]
    return Measured(gaps[0] / gaps[1], {"measured": gaps[0], "ISTA": gaps[1]})


@claim(
    "crate/lasso-closed-form",
    measures="relative distance of 60 ISTA steps to soft thresholding",
    at_most=ROUNDING,
    source=CODING,
    assumptions=("U square, tokens of norm one; soft thresholding itself is textbook",),
    control=but("the threshold is half of lambda", shift=0.5),
)
def lasso_closed_form(generator: torch.Generator, *, shift: float = 1.0) -> float:
    r"""In $D = [U, -U]$ with orthonormal $U$ the non-negative LASSO $\tfrac12 \|Y - Z D^\top\|_F^2 + \lambda
    \sum Z$ has the minimiser $\mathrm{relu}(\pm Y U - \lambda)$, and ISTA with $\eta = 1/L$, $L = \|D\|_2^2$,
    converges to it.
    """
    tokens, bases = complete_instance(generator)
    code = ista(tokens, signed_dictionary(bases), lam=LAM, steps=CLOSED_FORM_STEPS)
    target = optimal_code(tokens, bases, lam=shift * LAM)
    return float((code - target).norm() / target.norm())


def _values(code: Tensor, tokens: Tensor, dictionary: Tensor) -> Tensor:
    """Returns F of every token."""
    return 0.5 * (tokens - code @ dictionary.mT).square().sum(-1) + LAM * code.sum(-1)


def _bound(code: Tensor, tokens: Tensor, dictionary: Tensor, scaled: bool) -> Tensor:
    """Returns the duality gap of every token or, if not ``scaled``, the difference of F and the dual
    objective at the residual.
    """
    if scaled:
        return duality_gap(code, tokens, dictionary, lam=LAM)
    residual = tokens - code @ dictionary.mT
    return (
        _values(code, tokens, dictionary)
        - 0.5 * tokens.square().sum(-1)
        + 0.5 * (tokens - residual).square().sum(-1)
    ).clamp(min=1e-300)


@claim(
    "crate/duality-gap",
    measures="largest excess of F - F* over the gap, or the gap at the minimiser, relative to F*",
    at_most=ROUNDING,
    source=CODING,
    assumptions=(
        "any dictionary and code; drawn: $D = [U, -U]$ with orthonormal $U$ and steps of ISTA from "
        "zero, and $D = U$ with tokens of negative coordinates, whose minimiser is zero",
        "Fenchel's duality; the source has no gap",
    ),
    control=but("the residual is not scaled to a feasible point of the dual problem", scaled=False),
)
def gap(generator: torch.Generator, *, scaled: bool = True) -> Measured:
    r"""For every code $z \ge 0$ of a token $y$, with $F(z) = \frac12 \|y - D z\|^2 + \lambda \sum_j z_j$, $r
    = y - D z$ and $s = \lambda / \max(\lambda, \max_j (D^\top r)_j)$, $F(z) - F^* \le \frac12 (1 - s)^2
    \|r\|^2 + \sum_j z_j (\lambda - s (D^\top r)_j)$, and the right side is zero at the minimiser.
    """
    # Both are relative to F*. If not ``scaled``, the residual itself stands for a point of the dual problem,
    # though it need not be feasible.
    tokens, bases = complete_instance(generator)
    tokens = (1 + torch.arange(N))[:, None] / N * tokens  # tokens of different lengths
    dictionary = signed_dictionary(bases)
    best = optimal_code(tokens, bases, lam=LAM)
    lowest = _values(best, tokens, dictionary)
    detail = {"gap at the minimiser": float((_bound(best, tokens, dictionary, scaled).abs() / lowest).max())}
    # The atoms of U have no positive correlation with these tokens, so zero is their code.
    frame = dictionary[:, : dictionary.shape[1] // 2]
    opposite = -(tokens @ frame).abs() @ frame.mT
    zero = torch.zeros_like(opposite)
    gap = _bound(zero, opposite, frame, scaled).abs() / _values(zero, opposite, frame)
    detail["gap at the minimiser zero"] = float(gap.max())
    for steps in (0, 1, 2, 5):
        code = ista(tokens, dictionary, lam=LAM, steps=steps)
        excess = _values(code, tokens, dictionary) - lowest - _bound(code, tokens, dictionary, scaled)
        detail[f"F - F* less the gap, {steps} steps"] = float((excess / lowest).max())
    return Measured(max(detail.values()), detail)


CLAIMS = (ista_descent, ista_fista_rates, fista_faster, lasso_closed_form, gap)
