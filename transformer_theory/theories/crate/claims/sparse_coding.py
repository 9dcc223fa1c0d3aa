"""Sparsification: what the steps of ISTA do to the non-negative LASSO."""

import torch

from ....citations import Source
from ....claims import Claim, Evidence
from ..sparse_coding import curvature, ista_step, lasso
from .instance import ROUNDING, D, N

LAM = 0.1


def _ista_descent(generator: torch.Generator, *, step: float) -> Evidence:
    """The worst change of the objective over ten ISTA steps from Z = Y, in units of L/2 ||Z+ - Z||^2: at most -1 for step 1/L."""
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


CLAIMS = (
    Claim(
        id="crate/ista-descent",
        statement=r"An ISTA step with $\eta = 1/L$, $L = \|D\|_2^2$, lowers the non-negative LASSO "
        r"$\tfrac12 \|Y - Z D^\top\|_F^2 + \lambda \sum Z$ by at least $\tfrac L2 \|Z^+ - Z\|_F^2$.",
        source=Source("beck2009fast"),
        assumptions=("any dictionary, any tokens, a non-negative start",),
        check=lambda generator: _ista_descent(generator, step=1.0),
        control=lambda generator: _ista_descent(generator, step=3.0),
        control_says=r"three times the step, $\eta = 3/L$",
    ),
)
