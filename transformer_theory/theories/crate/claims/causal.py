"""Causal compression: no token depends on later ones, and every token lowers its own contribution to the
rate.

Source: :cite:t:`yu2023white` for the forms that are not causal.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ....core.claims import Measured, but, claim
from ....metrics.coding import subspace_coding_rate
from ....models.crate.compression import (
    causal_memberships,
    causal_rate_gradient,
    causal_shrinkage,
    coordinates,
    memberships,
    shrinkage,
)
from ..problem import OBJECTIVE
from ..steps import (
    added_rates,
    causal_exact_step,
    causal_paper_step,
    causal_released_step,
    exact_step,
    lipschitz,
    paper_step,
    released_step,
)
from .compression import ROUNDING, N, complete_instance, perturbed_instance

EPS, KAPPA, PAST = 0.5, 0.1, N // 2  # distortion, step size, tokens of the first half


def _steps(bases: Tensor, causal: bool) -> Mapping[str, Callable[[Tensor], Tensor]]:
    """Returns the four forms as functions of the tokens."""

    def token_statistics(tokens: Tensor) -> Tensor:
        coords = coordinates(tokens, bases)
        change = (
            causal_shrinkage(coords, causal_memberships(coords), eps=EPS)
            if causal
            else shrinkage(coords, memberships(coords), eps=EPS)
        )
        return tokens - KAPPA * (change @ bases.mT).sum(-3)

    if causal:
        return {
            "exact": lambda tokens: causal_exact_step(tokens, bases, kappa=KAPPA, eps=EPS, context=N),
            "paper": lambda tokens: causal_paper_step(tokens, bases, kappa=KAPPA, eps=EPS, context=N),
            "released": lambda tokens: causal_released_step(tokens, bases, bases.mT),
            "token statistics": token_statistics,
        }
    return {
        "exact": lambda tokens: exact_step(tokens, bases, kappa=KAPPA, eps=EPS),
        "paper": lambda tokens: paper_step(tokens, bases, kappa=KAPPA, eps=EPS),
        "released": lambda tokens: released_step(tokens, bases, bases.mT),
        "token statistics": token_statistics,
    }


@claim(
    "crate/causal",
    measures="largest change of the first half of a sequence when the second is cut off or replaced, "
    "relative to a step",
    at_most=ROUNDING,
    source=OBJECTIVE,
    assumptions=(
        r"$\beta = p / (N \varepsilon^2)$, where $N$ is the length of the longest sequence",
        "the paper has the forms that are not causal",
    ),
    control=but(
        "the forms without mask or prefix sums; the smallest change over the four counts", causal=False
    ),
)
def no_future(generator: torch.Generator, *, causal: bool = True) -> Measured:
    """In each of the four causal steps (exact, paper, released, token statistics) the change of token $i$
    does not depend on later tokens.
    """
    tokens, bases = complete_instance(generator)
    other = torch.cat(
        [tokens[:PAST], 3 * torch.randn(N - PAST, tokens.shape[1], generator=generator, dtype=tokens.dtype)]
    )
    changes = {}
    for name, step in _steps(bases, causal).items():
        after = step(tokens)[:PAST]
        size = (after - tokens[:PAST]).norm()
        for variant, sequence in (("cut", tokens[:PAST]), ("replaced", other)):
            changes[f"{name}, {variant}"] = float((step(sequence)[:PAST] - after).norm() / size)
    worst = max(changes.values()) if causal else min(changes.values())  # the control must fail for every form
    return Measured(worst, changes)


@claim(
    "crate/causal-exact-step",
    measures="largest change of a token's term in units of the guaranteed decrease, plus 1; relative "
    "distance of the sum of the terms to the rate; the larger",
    at_most=ROUNDING,
    source=OBJECTIVE,
    assumptions=(
        "the tokens before stay where they are",
        r"the subspaces may be any matrices $U_k$; $\beta = p / (n \varepsilon^2)$",
        "the paper has the rate and its gradient",
    ),
    control=but("twice the guaranteed decrease is claimed", times=2.0),
)
def own_rate(generator: torch.Generator, *, times: float = 1.0) -> Measured:
    r"""Token $i$ adds $r_i = \frac12 \sum_k (\log\det(I + \beta S_{ik}) - \log\det(I + \beta S_{i-1,k}))$,
    $S_{ik} = \sum_{j \le i} U_k^\top z_j z_j^\top U_k$, to the rate of the tokens before it, and the sum of
    all $r_i$ is $R^c(Z; U_{[K]})$. A step $z_i - \kappa \nabla_{z_i} r_i$, $\nabla_{z_i} r_i = \beta \sum_k
    U_k (I + \beta S_{ik})^{-1} U_k^\top z_i$, lowers $r_i$ by at least $\kappa (1 - \kappa L/2)
    \|\nabla_{z_i} r_i\|^2$ for $0 < \kappa < 2/L$, $L = \beta \|\sum_k U_k U_k^\top\|_2$.
    """
    # The value is the larger of two numbers: 1 plus the largest change of r_i when token i alone takes a
    # step, in units of ``times`` the guaranteed decrease; and the relative distance of the sum of all r_i to
    # the rate.
    tokens, bases = perturbed_instance(generator)
    L = lipschitz(bases, n=N, eps=EPS)
    before = added_rates(tokens, bases, eps=EPS, context=N)
    gradient = causal_rate_gradient(tokens, bases, eps=EPS, context=N)
    rate = subspace_coding_rate(tokens, bases, eps=EPS)
    changes = {}
    for share in (0.1, 0.5, 1.0, 1.5, 1.9):
        for i in (0, N // 2, N - 1):
            moved = tokens.clone()
            moved[i] -= share / L * gradient[i]
            change = added_rates(moved, bases, eps=EPS, context=N)[i] - before[i]
            guaranteed = times * share / L * (1 - share / 2) * gradient[i].square().sum()
            changes[f"token {i + 1}, kappa L = {share}"] = float(change / guaranteed)
    distance = float((before.sum() / rate - 1).abs())
    return Measured(max(max(changes.values()) + 1, distance), {**changes, "distance of the sum": distance})


CLAIMS = (no_future, own_rate)
