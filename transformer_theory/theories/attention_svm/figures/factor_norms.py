"""Descent on K and Q: with the published penalty, with separate norms, and with one common norm."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ....core.experiment import setting
from ....core.figure import RANGE, Panel, Reading, bands, figure
from ....core.sources import Source
from ....maths.linalg import cosine
from ..balance import common_norm_trajectory, imbalance, penalised_residual
from ..builders import constraints
from ..dynamics import Factors, normalised_descent, random_factors, trajectory
from ..problem import Instance
from ..published import published_instances
from ..solvers import nuclear_max_margins
from .common import ROUNDING_UNIT, logarithmic_steps, median_and_range

PENALISED = "separate norms, published penalty"
SEPARATE, COMMON = "separate norms, no penalty", "one common norm, no penalty"
LABELS = {
    PENALISED: {"label": "published penalty"},
    SEPARATE: {"label": "separate norms"},
    COMMON: {"label": "one common norm"},
}
DISTANCE, NORM = "1 - cosine to the nuclear solution", "nuclear norm of K Q^T"
IMBALANCE = "imbalance of K and Q relative to the nuclear norm"
RESIDUAL = "residual of the stationarity equations"
SHORTER = (0.01, 1e-3, 1e-4)  # lengths of the steps before the residual is measured


def quantities(instance: Instance, states: list[Factors]) -> dict[str, Tensor]:
    """Returns distance, norm and imbalance ``[steps, trials]`` of the states of one run; NaN where the
    selection has no solution.
    """
    W = torch.stack([state.W for state in states])
    solutions = nuclear_max_margins(constraints(instance.tokens, instance.query, instance.selected(W[-1])))
    distance = 1 - cosine(W, solutions.W.expand_as(W), dim=(-2, -1))
    norm = torch.linalg.matrix_norm(W, ord="nuc")
    unequal = torch.stack([torch.linalg.matrix_norm(imbalance(state), ord="nuc") for state in states])
    distance = distance.masked_fill(~solutions.solved, torch.nan)
    return {DISTANCE: distance, NORM: norm, IMBALANCE: unequal / norm}


@figure(
    "attention_svm.factor_norms",
    source=Source("tarzanagh2023transformers"),
    view=bands(
        spread=RANGE,
        panels=(
            Panel("1 − cosine, nuclear", DISTANCE, lines=("descent", LABELS), legend=""),
            Panel("Nuclear norm of $KQ^\\top$", NORM, lines=("descent", LABELS), legend="upper left"),
            Panel("Imbalance", IMBALANCE, lines=("descent", LABELS), legend=""),
        ),
        log="xy",
        caption="Median of {trials} random problems; bands: smallest to largest. The run with the penalty "
        "has separate norms. Solutions are those of the "
        "tokens selected at the last step. Imbalance: $\\|K^\\top K - Q^\\top Q\\|_* / \\|KQ^\\top\\|_*$.",
        size=(7.0, 3.3),
    ),
    quick={"trials": 4, "steps": 2000},
)
def factor_norms(
    *,
    inputs: int = setting(6, ge=1, help="number n of inputs"),
    tokens: int = setting(8, ge=2, help="number T of tokens per input"),
    dim: int = setting(10, ge=2, help="dimension d of the tokens"),
    trials: int = setting(20, ge=1, help="random problems"),
    steps: int = setting(100_000, ge=2, help="steps of descent"),
    rate: float = setting(0.1, gt=0, le=10, help="length of a step"),
    seed: int = 0,
) -> Iterator[list[Reading]]:
    """Normalised descent on the factors of W = K Q^T, in three variants, over a hundred thousand steps, on
    published data.

    As published: K and Q are normalised separately, and the loss has the rounding unit times their squared
    norms as a penalty. This run stops at a finite point, where the gradient of the loss balances the penalty.
    Without the penalty the norm grows; 1 - cosine to the nuclear solution of the selected tokens reaches a
    plateau if K and Q are normalised separately, and falls if both are divided by one common norm. The
    imbalance of K and Q, ||K^T K - Q^T Q||_* relative to ||K Q^T||_*, shows why: it must vanish for a nuclear
    solution, and without penalty it does so only with the common norm.
    """
    instance = published_instances(range(trials), inputs=inputs, tokens=tokens, dim=dim)
    first = random_factors(instance, generator=torch.Generator().manual_seed(seed))
    run = {"steps": logarithmic_steps(steps), "rate": rate}
    for descent, states in (
        (PENALISED, trajectory(instance, first, penalty=ROUNDING_UNIT, **run)),
        (SEPARATE, trajectory(instance, first, **run)),
        (COMMON, common_norm_trajectory(instance, first, **run)),
    ):
        states, at = list(states), {"descent": descent}
        for quantity, curve in quantities(instance, states).items():
            for step, values in zip(run["steps"], curve):
                yield median_and_range(quantity, values, at=at, step=step)
        if descent == PENALISED:
            end = states[-1]
            for shorter in SHORTER:
                end = normalised_descent(instance, end, steps=200, rate=shorter, penalty=ROUNDING_UNIT)
            residual = penalised_residual(instance, end, penalty=ROUNDING_UNIT)
            yield median_and_range(RESIDUAL, residual, reference=(0.0, "limit"), at=at, step=end.step)
