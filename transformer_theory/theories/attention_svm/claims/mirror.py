r"""Claims on the geometry and the length of the steps: mirror descent goes to the max-margin solution of its norm, and normalised and
Polyak steps get there sooner than constant ones.

Source: :cite:t:`julistiono2024optimizing`, :cite:t:`vasudeva2025implicit`.
"""

import torch

from ....core.claims import Claim, Evidence
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import constraints
from ..dynamics import normalised_descent, plain_descent, start
from ..dynamics.mirror import mirror_descent
from ..dynamics.polyak import polyak_descent
from ..problem import Instance, equal_distractors
from ..solution import MaxMargin
from ..solvers import frobenius_max_margin, lp_max_margin
from .draws import MOST, never
from .settling import settling

POWER = 3.0
BOUND = 0.01


def _draw(generator: torch.Generator) -> tuple[Instance, MaxMargin, MaxMargin]:
    """An instance, and its solutions in the l_p and in the Frobenius norm, which point apart."""
    for _ in range(MOST):
        instance = equal_distractors(inputs=2, tokens=4, dim=4, generator=generator)
        pairs = constraints(instance.tokens, instance.query, instance.optimal())
        frobenius = frobenius_max_margin(pairs)
        if frobenius.norm > 3:
            continue
        entrywise = lp_max_margin(pairs, p=POWER)
        if float(cosine(entrywise.W, frobenius.W)) < 1 - 3 * BOUND:
            return instance, entrywise, frobenius
    raise never("whose two solutions point apart")


def _mirror(instance: Instance, target: MaxMargin) -> Evidence:
    half = mirror_descent(instance, start(instance), power=POWER, steps=300, rate=20.0)
    end = mirror_descent(instance, half, power=POWER, steps=300, rate=20.0)
    before, after = (1 - float(cosine(s.W, target.W)) for s in (half, end))
    best = bool((instance.selected(end.W) == instance.optimal()).all())
    return settling(before, after, BOUND, in_assumptions=best, detail={"steps": end.step})


def _own_norm(generator: torch.Generator) -> Evidence:
    instance, entrywise, _ = _draw(generator)
    return _mirror(instance, entrywise)


def _frobenius(generator: torch.Generator) -> Evidence:
    instance, _, frobenius = _draw(generator)
    return _mirror(instance, frobenius)


def _errors(generator: torch.Generator) -> dict[str, float]:
    """1 - cosine to W_mm after 300 steps of each kind from W = 0; median over ten problems."""
    instance = equal_distractors(inputs=4, tokens=5, dim=8, generator=generator, trials=10)
    pairs = constraints(instance.tokens, instance.query, instance.optimal())
    goal = torch.stack([frobenius_max_margin(pairs.problem(b)).W for b in range(10)])
    ends = {
        "normalised": normalised_descent(instance, start(instance), steps=300),
        "polyak": polyak_descent(instance, start(instance), steps=300),
        "plain": plain_descent(instance, start(instance), steps=300),
        "plain, twice the step": plain_descent(instance, start(instance), steps=300, rate=2.0),
    }
    return {name: float((1 - cosine(state.W, goal, dim=(-2, -1))).median()) for name, state in ends.items()}


def _sooner(generator: torch.Generator) -> Evidence:
    errors = _errors(generator)
    return Evidence(max(errors["normalised"], errors["polyak"]) / errors["plain"], 0.5, "<=", detail=errors)


def _longer_steps(generator: torch.Generator) -> Evidence:
    errors = _errors(generator)
    return Evidence(errors["plain, twice the step"] / errors["plain"], 0.5, "<=", detail=errors)


CLAIMS = (
    Claim(
        id="attention_svm/mirror-descent",
        statement=r"Mirror descent with the potential $\tfrac1p\|W\|_p^p$, here $p = 3$, converges in direction to the max-margin solution "
        r"in the entrywise norm, $\arg\min \|W\|_p$ subject to $(x_{i,a_i} - x_{i,t})^\top W z_i \ge 1$.",
        source=Source("julistiono2024optimizing"),
        assumptions=("all tokens of an input but the optimal one have the same score", "the max-margin problem is feasible"),
        check=_own_norm,
        control=_frobenius,
        control_description="The target is the max-margin solution in the Frobenius norm.",
    ),
    Claim(
        id="attention_svm/step-size",
        statement=r"Normalised steps ($\eta = 0.1$) and Polyak steps bring $W$ nearer to the direction of $W_{mm}$ than as many constant "
        r"steps ($\eta = 1$). Value: the larger of their $1 - \cos(W, W_{mm})$ over that of constant steps, after 300 steps.",
        source=Source("vasudeva2025implicit"),
        assumptions=(
            "all tokens of an input but the optimal one have the same score",
            "the max-margin problem is feasible",
            "start at zero",
        ),
        check=_sooner,
        control=_longer_steps,
        control_description="Constant steps twice as long take the place of the normalised and the Polyak steps.",
    ),
)
