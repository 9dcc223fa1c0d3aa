"""The claim that wide data are feasible whatever is selected, by a matrix that is written down."""

import torch

from ....citations import Source
from ....claims import Claim, Evidence
from ..builders import constraints
from ..feasibility import construct
from ..problem import cross_attention, random_selection

TRIALS = 10


def _share_without(inputs: int, tokens: int, dim: int, generator: torch.Generator) -> Evidence:
    """Share of random selections for which the construction fails, or misses a margin of one by more than rounding."""
    instance = cross_attention(inputs=inputs, tokens=tokens, dim=dim, generator=generator, trials=TRIALS)
    select, missed, worst = random_selection(instance, generator=generator), 0, 0.0
    for trial in range(TRIALS):
        pairs = constraints(instance.tokens[trial], instance.query[trial], select[trial])
        found = construct(pairs)
        error = float((pairs.margins(found.W) - 1).abs().max())
        missed += not (found.applies and error < 1e-8)
        worst = max(worst, error)
    return Evidence(missed / TRIALS, 0.0, "<=", detail={"largest error of a margin": worst, "dim": dim})


def _wide_enough(generator: torch.Generator) -> Evidence:
    return _share_without(inputs=6, tokens=6, dim=6, generator=generator)


def _one_too_narrow(generator: torch.Generator) -> Evidence:
    return _share_without(inputs=6, tokens=6, dim=5, generator=generator)


CLAIMS = (
    Claim(
        id="attention_svm/feasible-by-construction",
        statement=r"If the queries $z_i$ are linearly independent, and so are the differences of each input, then $W z_i = u_i$ with "
        r"$(x_{i,a_i} - x_{i,t})^\top u_i = 1$ meets every constraint; for almost all data with $d \ge \max(T - 1, n)$ they are. "
        "Value: share of random selections without such a $W$.",
        source=Source("tarzanagh2023transformers"),
        assumptions=("tokens and queries in general position", "at least as many dimensions as inputs, and as other tokens"),
        check=_wide_enough,
        control=_one_too_narrow,
        control_says="One dimension less than inputs: the queries are dependent. (The problem may be feasible all the same.)",
    ),
)
