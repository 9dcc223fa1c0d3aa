"""Descent on factors with few columns, which bound the rank of W, compared with max-margin solutions of
bounded rank.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from ....core.errors import NotConverged
from ....core.experiment import setting
from ....core.figure import Axis, Panel, Reading, curves, figure, reading
from ....core.sources import Source
from ....maths.linalg import cosine
from ..balance import common_norm_descent
from ..builders import constraints
from ..dynamics import random_factors
from ..problem import Instance
from ..published import published_instances
from ..solvers import low_rank_max_margin, nuclear_max_margins

FREE = "share of problems in which the bound on the rank has no price"
PRICE, PRICE_OF_PROBLEM = "price of the bound on the rank", "price of the bound on the rank, one problem"
MARGIN = "smallest margin per nuclear norm, relative to the largest possible"
DISTANCE = "1 - cosine of K Q^T to the target"
DESCENT, TRUNCATED = "descent", "nuclear solution cut to the rank"
TARGETS = BOUNDED, NUCLEAR = "max-margin solution of bounded rank", "nuclear solution"
SIDES = {True: "at least the rank of the nuclear solution", False: "below the rank of the nuclear solution"}
NO_PRICE = 1e-5  # largest price minus one that is rounding
ALL = {"rank": ""}  # rows of all problems
DOTS = {"label": "_", "linestyle": "", "marker": "o", "markersize": 3, "alpha": 0.4}


def outcomes(
    instance: Instance, *, width: int, steps: int, rate: float, generator: torch.Generator
) -> np.ndarray:
    """Returns seven numbers of each trial, ``[k, 7]``; trials without a verified solution are left out.

    These are the rank of the nuclear solution, the price, the margin of descent, that of the solution of
    bounded rank, that of the nuclear solution cut to the rank, and 1 - cosine of descent to the solution of
    bounded rank and to the nuclear one. All solutions are those of the tokens that descent selects.
    """
    first = random_factors(instance, generator=generator, width=width)
    factors = common_norm_descent(instance, first, steps=steps, rate=rate)
    pairs = constraints(instance.tokens, instance.query, instance.selected(factors.W))
    solutions = nuclear_max_margins(pairs)
    rows = []
    for trial in solutions.solved.nonzero().squeeze(-1).tolist():
        problem, nuclear, W = pairs.problem(trial), solutions[trial], factors.W[trial]
        try:
            bounded = low_rank_max_margin(problem, factors.K[trial], factors.Q[trial])
        except NotConverged:
            continue
        U, S, V = torch.linalg.svd(nuclear.W)
        cut = (U[:, :width] * S[:width]) @ V[:width]
        margins = [
            nuclear.norm * float(problem.margins(w).min() / torch.linalg.matrix_norm(w, ord="nuc"))
            for w in (W, bounded.W, cut)
        ]
        distances = [1 - float(cosine(W, target)) for target in (bounded.W, nuclear.W)]
        rows.append([nuclear.rank, bounded.price, *margins, *distances])
    return np.array(rows, dtype=float).reshape(-1, 7)


def medians(found: np.ndarray, at: Mapping[str, str], enough: bool | None, steps: int) -> Iterator[Reading]:
    """Yields the readings of some problems; ``enough`` is whether the bound is at least their rank, None
    for problems of both sides.
    """
    if not len(found):
        return
    here: dict[str, Any] = {"step": steps, "n": len(found)}
    free = float((found[:, 1] < 1 + NO_PRICE).mean())
    yield reading(
        FREE,
        free,
        reference=None if enough is None else (float(enough), "theory"),
        unit="share",
        at=at,
        **here,
    )
    here["note"] = "median over the problems"
    _, price, margin, limit, truncated, *distances = np.median(found, 0).tolist()
    yield reading(PRICE, price, reference=(1.0, "theory") if enough else None, at=at, **here)
    yield reading(MARGIN, margin, reference=(limit, "limit"), at={"of": DESCENT, **at}, **here)
    yield reading(MARGIN, truncated, at={"of": TRUNCATED, **at}, **here)
    for target, distance in zip(TARGETS, distances):
        yield reading(DISTANCE, distance, at={"target": target, **at}, **here)


@figure(
    "attention_svm.rank_bound",
    source=Source("tarzanagh2023transformers"),
    over={"m": Axis(1, 2, 3, 4, 6, setting="widths", ge=1, help="numbers m of columns of K and Q")},
    view=curves(
        "m",
        panels=(
            Panel(
                "Smallest margin, relative",
                MARGIN,
                ALL,
                "of",
                predicted="rank at most m (predicted)",
                legend="upper left",
                axes={"ylim": (None, 1.75)},
            ),
            Panel(
                "Price of the bound",
                PRICE_OF_PROBLEM,
                lines=("quantity", {PRICE_OF_PROBLEM: DOTS}),
                levels={"no price": 1.0},
                axes={"yscale": "log", "xlabel": "m − rank of the nuclear solution"},
                x="m - rank",
            ),
            Panel(
                "1 − cosine of descent to",
                DISTANCE,
                ALL,
                ("target", {BOUNDED: {"label": "solution of rank m"}, NUCLEAR: {}}),
                axes={"yscale": "log"},
            ),
        ),
        xlabel="columns m of K and Q",
        caption="{trials} random problems. Left and right: medians. Left: smallest margin per nuclear norm, "
        "relative to the largest possible. Middle: one mark per problem and m.",
        size=(7.0, 3.3),
    ),
    quick={"widths": (1, 4), "trials": 8, "steps": 800},
)
def rank_bound(
    m: int,
    *,
    inputs: int = setting(8, ge=1, help="number n of inputs"),
    tokens: int = setting(5, ge=2, help="number T of tokens per input"),
    dim: int = setting(8, ge=2, help="dimension d of the tokens"),
    trials: int = setting(40, ge=1, help="random problems, the same for each m"),
    steps: int = setting(10_000, ge=1, help="steps of descent"),
    rate: float = setting(0.1, gt=0, le=10, help="length of a step"),
    seed: int = setting(0, ge=0, le=2**32 - 1, help="seed of the factors, the same for each m"),
) -> Iterator[Reading]:
    r"""Normalised descent, with one common norm, on K and Q with m columns, so that the rank of :math:`W = K
    Q^\top` is at most m.

    The theory bounds the rank of the nuclear problem by m. If the nuclear solution has rank r up to m, it is
    the direction of descent; then the largest singular value of the multipliers' matrix (the price,
    ``solvers.low_rank``) is one. With m below r the price exceeds one, no W of rank m has the largest margin
    per nuclear norm, and descent should approach a local solution of rank m. That solution comes from
    sequential quadratic programming, which starts at the end of the descent. Two controls: the nuclear
    solution as the target, and the nuclear solution cut to its first m singular values, which loses its
    margins.
    """
    instance = published_instances(range(trials), inputs=inputs, tokens=tokens, dim=dim)
    generator = torch.Generator().manual_seed(seed)
    found = outcomes(instance, width=m, steps=steps, rate=rate, generator=generator)
    rank = found[:, 0]
    yield from medians(found, {}, None, steps)
    for enough, side in SIDES.items():
        yield from medians(found[(rank <= m) == enough], {"rank": side}, enough, steps)
    for problem, (excess, price) in enumerate(zip((m - rank).astype(int), found[:, 1])):
        yield reading(PRICE_OF_PROBLEM, float(price), at={"m - rank": excess, "problem": problem}, step=steps)
