"""Sparsification: descent and rates of ISTA and FISTA on the non-negative LASSO."""

import torch
from torch import Tensor

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ....models.crate.sparsification import curvature, fista_steps, ista_step
from ..sparse_coding import fista, lasso
from .compression import ROUNDING, D, N

LAM = 0.1
COUNTS = (1, 2, 5, 10, 20, 40)  # steps after which the objective is measured


def _ista_descent(generator: torch.Generator, *, step: float) -> Evidence:
    """Returns evidence about the largest change of the objective in ten ISTA steps, in units of L/2 ||Z+ - Z||^2.

    ISTA starts from the positive part of the tokens; ``step`` is the step size in units of 1/L.
    """
    tokens = torch.randn(N, D, generator=generator, dtype=torch.float64)
    dictionary = torch.randn(D, D, generator=generator, dtype=torch.float64) / D**0.5
    L = curvature(dictionary)
    code, worst = tokens.relu(), -torch.inf
    for _ in range(10):
        new = ista_step(code, tokens, dictionary, eta=step / L, lam=LAM)
        change = lasso(new, tokens, dictionary, lam=LAM) - lasso(code, tokens, dictionary, lam=LAM)
        worst = max(worst, float(change / (0.5 * L * (new - code).square().sum())))
        code = new
    return Evidence(worst, -1 + ROUNDING, "<=")


def _overcomplete(generator: torch.Generator) -> tuple[Tensor, Tensor, float, Tensor, Tensor]:
    """Returns tokens, a dictionary of 3 D / 2 atoms, L, the optimal code and a lower bound of the optimum."""
    tokens = torch.randn(N, D, generator=generator, dtype=torch.float64)
    dictionary = torch.randn(D, D + D // 2, generator=generator, dtype=torch.float64) / D**0.5
    best = fista(tokens, dictionary, lam=LAM)
    return tokens, dictionary, curvature(dictionary), best.code, (best.objective - best.gap).sum()


def _rates(generator: torch.Generator, *, step: float) -> Evidence:
    """Returns evidence about the largest ratio, over step counts and methods, of the distance to the optimum and its bound."""
    tokens, dictionary, L, best, optimum = _overcomplete(generator)
    start = torch.zeros_like(best)
    distance = L * best.square().sum()
    shares, code, done = {}, start, 0
    for count in COUNTS:
        for _ in range(count - done):
            code = ista_step(code, tokens, dictionary, eta=step / L, lam=LAM)
        done = count
        fast = fista_steps(start, tokens, dictionary, eta=step / L, lam=LAM, steps=count)
        for name, result, allowed in (("ISTA", code, distance / (2 * count)), ("FISTA", fast, 2 * distance / (count + 1) ** 2)):
            shares[f"{name}, {count} steps"] = float((lasso(result, tokens, dictionary, lam=LAM) - optimum) / allowed)
    return Evidence(max(shares.values()), 1 + ROUNDING, "<=", detail=shares)


def _momentum(generator: torch.Generator, *, momentum: bool) -> Evidence:
    """Returns evidence about the distance to the optimum after the largest number of steps, relative to ISTA's."""
    tokens, dictionary, L, best, optimum = _overcomplete(generator)
    slow = torch.zeros_like(best)
    for _ in range(COUNTS[-1]):
        slow = ista_step(slow, tokens, dictionary, eta=1 / L, lam=LAM)
    fast = fista_steps(torch.zeros_like(best), tokens, dictionary, eta=1 / L, lam=LAM, steps=COUNTS[-1]) if momentum else slow
    gaps = [float(lasso(code, tokens, dictionary, lam=LAM) - optimum) for code in (fast, slow)]
    return Evidence(gaps[0] / gaps[1], 0.5, "<=", detail={"measured": gaps[0], "ISTA": gaps[1]})


CLAIMS = (
    Claim(
        id="crate/ista-descent",
        statement=r"An ISTA step with $\eta = 1/L$, $L = \|D\|_2^2$, lowers the non-negative LASSO "
        r"$\tfrac12 \|Y - Z D^\top\|_F^2 + \lambda \sum Z$ by at least $\tfrac L2 \|Z^+ - Z\|_F^2$.",
        measures="largest change of the objective over ten steps, in units of L/2 ||Z+ - Z||^2",
        source=Source("beck2009fast"),
        assumptions=("any dictionary, any tokens, a non-negative start",),
        check=lambda generator: _ista_descent(generator, step=1.0),
        control=lambda generator: _ista_descent(generator, step=3.0),
        control_description=r"three times the step, $\eta = 3/L$",
    ),
    Claim(
        id="crate/ista-fista-rates",
        statement=r"From $Z_0$ with $\eta = 1/L$ the objective is at most $L \|Z_0 - Z^*\|_F^2 / (2k)$ above its optimum after $k$ steps "
        r"of ISTA and at most $2 L \|Z_0 - Z^*\|_F^2 / (k+1)^2$ after $k$ of FISTA.",
        measures="largest distance of the objective to its optimum over its bound",
        source=Source("beck2009fast"),
        assumptions=("any dictionary; drawn: 36 Gaussian atoms in 24 dimensions; the optimum has a duality gap below 1e-10 of it",),
        check=lambda generator: _rates(generator, step=1.0),
        control=lambda generator: _rates(generator, step=2.5),
        control_description=r"two and a half times the step, $\eta = 2.5/L$",
    ),
    Claim(
        id="crate/fista-faster",
        statement=r"FISTA leaves at most half of the distance $F - F^*$ to the optimum that as many ISTA steps leave, after $k = 40$.",
        measures="distance to the optimum after 40 steps, over that of ISTA",
        source=Source("beck2009fast"),
        assumptions=("Gaussian tokens, 36 Gaussian atoms in 24 dimensions; an empirical statement",),
        check=lambda generator: _momentum(generator, momentum=True),
        control=lambda generator: _momentum(generator, momentum=False),
        control_description="the momentum is left out",
    ),
)
