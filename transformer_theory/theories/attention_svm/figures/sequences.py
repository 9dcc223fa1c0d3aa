"""One W for many queries per input: where descent goes in causal and in sequence-to-sequence attention."""

from collections.abc import Iterator

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import RANGE, Panel, Reading, bands, figure, reading
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import causal, sequence_to_sequence
from ..dynamics import start, trajectory
from ..sequences import causal_instance, causal_problem, sequence_instance, sequence_problem
from ..solvers import frobenius_max_margins
from .common import RATE, median_and_range

COSINE, BEST_SELECTED = "cosine to the max-margin solution", "share of trials that select every best token"
DISTANCE = "1 - cosine to the max-margin solution"
CAUSAL, ALL = "causal", "sequence to sequence"
OWN, LAST, FULL = "all queries, allowed tokens", "last query only", "all queries, all tokens"
STEPS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000)
AXES = {"ylabel": "cosine", "ylim": (0, 1.04)}


@figure(
    "attention_svm.sequences",
    source=Source("tarzanagh2023transformers"),
    view=bands(
        spread=RANGE,
        panels=(
            Panel("Causal", COSINE, {"attention": CAUSAL}, "constraints", axes=AXES),
            Panel("Sequence to sequence", COSINE, {"attention": ALL}, "constraints", axes=AXES),
            Panel("1 − cosine, median", DISTANCE, {"constraints": OWN}, "attention", axes={"yscale": "log"}),
        ),
        log="x",
        caption="Lines: median over the feasible problems among {trials} random ones; bands: smallest to "
        "largest. Left and middle: cosine of W to the max-margin solutions under three sets of constraints; "
        "causal attention allows a position and earlier ones. Right: constraints of all queries, allowed "
        "tokens.",
        size=(7.0, 2.9),
    ),
    quick={"trials": 6, "steps": 1000},
)
def sequences(
    *,
    inputs: int = setting(3, ge=1, help="number n of inputs"),
    tokens: int = setting(5, ge=2, help="number T of tokens per input"),
    dim: int = setting(16, ge=1, help="dimension d of the tokens"),
    trials: int = setting(20, ge=1, help="random problems"),
    steps: int = setting(10_000, ge=1, help="steps of descent"),
    rate: float = RATE,
    seed: int = 0,
) -> Iterator[Reading | list[Reading]]:
    """Normalised descent with many queries per input and one W, compared with the max-margin solution under
    the constraints of all queries.

    In the left panel attention is causal (a position attends to itself and earlier positions); in the middle
    panel every query attends to every token. Both panels also show the solution under the constraints of the
    last query alone, and the left one the solution under constraints that ignore the mask. The right panel
    shows 1 - cosine to the predicted solution. Each query has one best token, and all other tokens score the
    same. W starts at zero.
    """
    sizes = {"inputs": inputs, "tokens": tokens, "dim": dim, "trials": trials}
    generator = torch.Generator().manual_seed(seed)
    x, scores, best = causal_problem(**sizes, generator=generator)
    last = sequence_to_sequence(x, x[..., -1:, :], best[..., -1:])
    targets = {OWN: causal(x, best), LAST: last, FULL: sequence_to_sequence(x, x, best)}
    runs = {CAUSAL: (causal_instance(x, scores), targets)}
    x, z, scores, best = sequence_problem(**sizes, queries=tokens, generator=generator)
    last = sequence_to_sequence(x, z[..., -1:, :], best[..., -1:])
    runs[ALL] = (sequence_instance(x, z, scores), {OWN: sequence_to_sequence(x, z, best), LAST: last})
    measured = [*(step for step in STEPS if step < steps), steps]
    for attention, (instance, targets) in runs.items():
        states = list(trajectory(instance, start(instance), steps=measured, rate=rate))
        for target, constraints in targets.items():
            solutions, at = (
                frobenius_max_margins(constraints),
                {"attention": attention, "constraints": target},
            )
            solved = solutions.solved
            if not bool(solved.any()):
                yield reading(COSINE, None, at=at, reason="infeasible in every trial")
                continue
            for step, state in zip(measured, states):
                values = cosine(state.W[solved], solutions.W[solved], dim=(-2, -1))
                note = f"median over the feasible trials among {trials}, smallest {float(values.min()):.5f}"
                limit = (1.0, "limit") if target == OWN else None
                yield median_and_range(COSINE, values, note=note, reference=limit, at=at, step=step)
                yield reading(DISTANCE, float(np.median(1 - values)), n=len(values), at=at, step=step)
        selected = (instance.selected(states[-1].W) == instance.optimal()).all(-1).double().mean()
        here = {"unit": "share", "at": {"attention": attention}, "step": steps, "n": trials}
        yield reading(BEST_SELECTED, float(selected), **here)
