"""Mirror descent in three geometries, compared with the max-margin solutions in three norms."""

from collections.abc import Iterator

import numpy as np
import torch

from ....core.errors import Infeasible, NotConverged
from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, reading
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import constraints
from ..dynamics import bregman_divergence, mirror_descent, start
from ..published import published_instances
from ..solvers import lp_max_margin

COSINE = "cosine to the solution in the l_q norm"
DIVERGENCE = "Bregman divergence from the solution in the l_q norm"
NEAREST = "norm q with the smallest Bregman divergence"


def check_lengths(powers: tuple[float, ...], steps: tuple[int, ...]) -> None:
    """Checks that every power has its number of steps.

    Raises:
        ValueError: the lengths differ.
    """
    if len(steps) != len(powers):
        raise ValueError(
            f"steps must hold one number for each of the {len(powers)} powers, got {steps}; "
            "give as many steps as powers"
        )


@figure(
    "attention_svm.mirror",
    source=Source("julistiono2024optimizing"),
    view=curves(
        "q",
        panels=(
            Panel("Cosine", COSINE, lines="power"),
            Panel("Bregman divergence", DIVERGENCE, lines="power", axes={"yscale": "log"}),
        ),
        xlabel="max-margin solution in the norm of q",
        caption="Means over {trials} random problems (those whose selection is feasible). The theory "
        "predicts that mirror descent with the potential of a power is closest to the solution with q = "
        "power: the largest cosine, and the smallest divergence.",
        size=(6.4, 3.3),
    ),
    quick={"inputs": 2, "tokens": 4, "dim": 4, "trials": 2, "steps": (300, 300, 600)},
    check=check_lengths,
)
def mirror(
    *,
    inputs: int = setting(6, ge=1, help="number n of inputs"),
    tokens: int = setting(8, ge=2, help="number T of tokens per input"),
    dim: int = setting(10, ge=1, help="dimension d of the tokens"),
    trials: int = setting(20, ge=1, help="random problems"),
    powers: tuple[float, ...] = setting(
        (1.75, 2.0, 3.0), gt=1, le=10, help="exponents p of the potential and of the norms"
    ),
    steps: tuple[int, ...] = setting(
        (1500, 2000, 20000), ge=1, help="steps of descent, one number per power"
    ),
    rate: float = setting(0.1, gt=0, le=1e6, help="factor of the gradient in mirror descent"),
    seed: int = 0,
) -> Iterator[Reading]:
    r"""Mirror descent with the potential :math:`\|W\|_p^p / p` from a random start, compared with max-margin
    solutions.

    The solutions are in the entrywise norms :math:`\ell_q`, for the tokens that descent selects. The theory
    predicts that descent with p is closest to the solution with q = p. Two measures compare the directions:
    the cosine, and the Bregman divergence of the potential, which the paper shows and which is zero if the
    directions agree. The sizes, the distribution of the start and the numbers of steps follow the released
    runs; p = 3 needs more steps, because the norm of W grows only like the square root of their number.
    Tokens, queries and scores are drawn as in :func:`~.local_convergence.local_convergence`.
    """
    instance = published_instances(range(1, trials + 1), inputs=inputs, tokens=tokens, dim=dim)
    generator = torch.Generator().manual_seed(seed)
    first = start(instance, W=torch.randn(trials, dim, dim, generator=generator, dtype=torch.float64))
    for p, number in zip(powers, steps, strict=True):
        end = mirror_descent(instance, first, power=p, steps=number, rate=rate).W
        pairs = constraints(instance.tokens, instance.query, instance.selected(end))
        found = {COSINE: [], DIVERGENCE: []}  # [solved trials, q]
        for trial, W in enumerate(end):
            try:
                targets = [lp_max_margin(pairs.problem(trial), p=q).W for q in powers]
            except (Infeasible, NotConverged):
                continue  # a run that has not settled may select tokens that no W selects
            found[COSINE].append([float(cosine(W, target)) for target in targets])
            found[DIVERGENCE].append([float(bregman_divergence(target, W, power=p)) for target in targets])
        solved = len(found[COSINE])
        here = {"step": number, "n": solved, "reason": "" if solved else "no trial has a solution"}
        note = f"mean over {solved} of {trials} trials"
        for column, q in enumerate(powers):
            for quantity, values in found.items():
                value = float(np.mean([row[column] for row in values])) if solved else None
                yield reading(quantity, value, at={"power": p, "q": q}, note=note, **here)
        if solved:
            best = powers[int(np.mean(found[DIVERGENCE], 0).argmin())]
            yield reading(NEAREST, best, reference=(p, "limit"), at={"power": p}, **here)
