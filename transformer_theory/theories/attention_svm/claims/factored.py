r"""What the theory says of descent on the factors of :math:`W = K Q^\top`: the nuclear norm takes the place of the Frobenius norm.

The paper proves it for the regularisation path and observes it for descent, as is done here; for gradient flow with the exponential loss
and aligned starts it is a theorem of :cite:t:`sheen2024implicit`.
"""

from dataclasses import replace

import torch

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import constraints
from ..dynamics import normalised_descent, random_factors, random_start
from ..problem import Instance, equal_distractors
from ..selection import SATURATED
from ..solvers import frobenius_max_margin, nuclear_max_margin
from .draws import MOST, never
from .settling import settling

PAPER = "tarzanagh2023transformers"
BOUND = 0.035
GRAVE = ("consistent", "inconclusive", "violated")


def _run(generator: torch.Generator) -> tuple[Instance, list[torch.Tensor], list[torch.Tensor], int]:
    """Where descent on W and on K, Q stands half-way and ends, from random starts; the factors with the published penalty, the rounding
    unit. Drawn again until both select the best tokens, as they must for the targets to be theirs; last, how often it was drawn again.

    Raises:
        NotConverged: none of :data:`~.draws.MOST` draws does.
    """
    for redraws in range(MOST):
        instance = equal_distractors(inputs=6, tokens=6, dim=10, generator=generator)
        whole, factors = random_start(instance, generator=generator), random_factors(instance, generator=generator)
        ends: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
        for _ in range(2):
            whole = normalised_descent(instance, whole, steps=500)
            factors = normalised_descent(instance, factors, steps=500, penalty=torch.finfo(torch.float64).eps)
            ends[0].append(whole.W)
            ends[1].append(factors.W)
        if all(bool((instance.selected(state.W) == instance.optimal()).all()) for state in (whole, factors)):
            return instance, *ends, redraws
    raise never("in which descent on W and on K and Q both select the best tokens")


def _distances(generator: torch.Generator, *, swapped: bool) -> Evidence:
    instance, of_W, of_KQ, redraws = _run(generator)
    pairs = constraints(instance.tokens, instance.query, instance.optimal())
    targets = [frobenius_max_margin(pairs).W, nuclear_max_margin(pairs).W]
    judged, detail = [], {"drawn again": float(redraws)}
    for name, states, target in zip(("W", "K and Q"), (of_W, of_KQ), targets[::-1] if swapped else targets):
        before, after = (1 - float(cosine(state, target)) for state in states)
        selected = float(1 - instance.attention(states[-1]).amax(-1).min()) < SATURATED
        detail[f"descent on {name}"] = after
        judged.append(settling(before, after, BOUND, done=selected, detail={}))
    worst = max(judged, key=lambda one: GRAVE.index(one.verdict))  # beside a farther one that still falls the nearer may be stuck
    return replace(worst, value=max(one.value for one in judged), detail={**worst.detail, **detail})


def _each_its_norm(generator: torch.Generator) -> Evidence:
    return _distances(generator, swapped=False)


def _each_the_other(generator: torch.Generator) -> Evidence:
    return _distances(generator, swapped=True)


CLAIMS = (
    Claim(
        id="attention_svm/factored-direction",
        statement=r"Descent on $W$ goes, in direction, to the max-margin solution in the Frobenius norm; descent on the factors of "
        r"$W = K Q^\top$ to that in the nuclear norm. Value: the larger of the two cosine-distances.",
        source=Source(PAPER),
        assumptions=(
            "all tokens of an input but the optimal one have the same score",
            "the max-margin problem of the optimal tokens is feasible, and descent selects them, which equal scores do not guarantee",
            "for the factors: proven for the regularisation path, observed for descent",
        ),
        check=_each_its_norm,
        control=_each_the_other,
        control_description="The two targets are swapped.",
    ),
)
