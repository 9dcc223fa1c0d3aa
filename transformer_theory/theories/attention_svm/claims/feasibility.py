"""The claim that wide data are feasible whatever is selected: a solver finds a matrix, and one can be written down."""

import torch

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ..builders import constraints
from ..feasibility import construct
from ..problem import cross_attention, random_selection
from ..solvers import frobenius_max_margins

TRIALS = 10
ERROR = 1e-8  # of a margin: what rounding may leave


def _share_without(inputs: int, tokens: int, dim: int, generator: torch.Generator) -> Evidence:
    """Share of random selections that the solver finds infeasible, or for which no matrix of margins one can be written down.

    The larger of the two shares: both must be zero.
    """
    instance = cross_attention(inputs=inputs, tokens=tokens, dim=dim, generator=generator, trials=TRIALS)
    pairs = constraints(instance.tokens, instance.query, random_selection(instance, generator=generator))
    infeasible = 1 - float(frobenius_max_margins(pairs).solved.double().mean())
    missed, largest = 0, 0.0
    for one in map(pairs.problem, range(TRIALS)):
        found = construct(one)
        error = float((one.margins(found.W) - 1).abs().max())
        missed += not (found.applies and error < ERROR)
        largest = max(largest, error)
    detail = {"infeasible": infeasible, "not written down": missed / TRIALS, "largest error of a margin": largest, "dim": dim}
    return Evidence(max(infeasible, missed / TRIALS), 0.0, "<=", detail=detail)


def _wide_enough(generator: torch.Generator) -> Evidence:
    return _share_without(inputs=6, tokens=6, dim=6, generator=generator)


def _too_narrow(generator: torch.Generator) -> Evidence:
    return _share_without(inputs=12, tokens=6, dim=3, generator=generator)


CLAIMS = (
    Claim(
        id="attention_svm/feasibility",
        statement=r"If $d \ge \max(T - 1, n)$, every selection is feasible for almost all data, and a $W$ that shows it can be written "
        r"down: $W z_i = u_i$ with $(x_{i,a_i} - x_{i,t})^\top u_i = 1$ for all $t \ne a_i$. "
        "Value: share of random selections that a solver finds infeasible, or for which this matrix misses a margin.",
        source=Source("tarzanagh2023transformers"),
        assumptions=("tokens and queries in general position", "at least as many dimensions as inputs, and as other tokens"),
        check=_wide_enough,
        control=_too_narrow,
        control_description="Twelve inputs of six tokens in three dimensions.",
    ),
)
