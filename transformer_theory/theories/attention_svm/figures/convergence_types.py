"""Where descent on W and on K and Q ends, against the dimension: the best tokens, a locally optimal
selection, or another one.
"""

from collections.abc import Iterator

import torch

from ....core.experiment import setting
from ....core.figure import DASHED, Panel, Reading, curves, figure, share
from ....core.sources import Source
from ..builders import constraints
from ..dynamics import normalised_descent, random_factors, start
from ..published import published_instances
from ..selection import NEIGHBOUR_RTOL, locally_optimal
from ..solvers import frobenius_max_margins, nuclear_max_margins
from .common import RATE, THRESHOLD, d_axis

W, KQ = "descent on W", "descent on K and Q"
NORMS = {W: "Frobenius norm", KQ: "nuclear norm"}
SOLVERS = {W: frobenius_max_margins, KQ: nuclear_max_margins}
BATCH = 25  # trials per batch, few enough to stay in the processor's cache
BEST = "share of problems that select every best token"
LOCAL = "share of problems whose selection is locally optimal"
NOT_LOCAL = "share of problems whose selection is not locally optimal"
OPEN = "share of problems that have not settled"
SUPPORT = "share of problems in which all tokens are support vectors"
# Descent on W and the Frobenius norm, by another program on the same problems.
KNOWN = {
    BEST: {5: 0.69, 10: 0.91, 20: 0.98, 50: 1.0, 100: 0.99},
    SUPPORT: {20: 0.01, 50: 0.49, 100: 0.83, 200: 1.0},
}
LOOKS = {
    BEST: {"label": "all best tokens"},
    LOCAL: {"label": "locally optimal (best included)"},
    NOT_LOCAL: {"label": "not locally optimal"},
    OPEN: {"label": "not settled", "color": "null"},
}
LINES = ("quantity", LOOKS)
SUPPORTING = {
    "label": "all tokens are support vectors",
    "color": "network",
    "linestyle": DASHED,
    "band": False,
}
SUPPORT_LINES = ("quantity", {SUPPORT: SUPPORTING})
AXES = {"ylim": (-0.03, 1.04)}


@figure(
    "attention_svm.convergence_types",
    source=Source("tarzanagh2023transformers"),
    over={"d": d_axis(5, 10, 20, 50, 100, 200)},
    view=curves(
        "d",
        panels=(
            (
                Panel("Descent on $W$", tuple(LOOKS), {"descent": W}, LINES, legend="", axes=AXES),
                Panel("", SUPPORT, {"norm": NORMS[W]}, SUPPORT_LINES),
            ),
            (
                Panel("Descent on $(K, Q)$", tuple(LOOKS), {"descent": KQ}, LINES, axes=AXES),
                Panel("", SUPPORT, {"norm": NORMS[KQ]}, SUPPORT_LINES),
            ),
        ),
        xlabel="dimension d",
        ylabel="share of problems",
        log="x",
        caption="Shares of {trials} random problems per dimension (n = {inputs}, T = {tokens}) after "
        "{steps} steps; bands: 95 % intervals (Clopper-Pearson).",
        size=(7.0, 3.3),
    ),
    quick={"dims": (5, 20, 50), "trials": 10, "steps": 300},
)
def convergence_types(
    d: int,
    *,
    inputs: int = setting(5, ge=1, help="number n of inputs"),
    tokens: int = setting(5, ge=2, help="number T of tokens per input"),
    trials: int = setting(100, ge=1, help="random problems per dimension"),
    steps: int = setting(1000, ge=1, help="steps of descent"),
    rate: float = RATE,
    threshold: float = THRESHOLD,
    seed: int = setting(0, ge=0, le=2**32 - 1, help="seed of the factors"),
) -> Iterator[Reading]:
    """Outcomes of normalised descent on W and on K and Q against the dimension, on published data (n = T = 5,
    seeds 0 to 99).

    A run has settled if one token of every input has all but 0.001 of the attention and some W selects these
    tokens. Its selection is then that of the best tokens, another locally optimal one, or neither. Local
    optimality is that of the max-margin solution in the norm of the run: Frobenius for W, nuclear for K and
    Q, without penalty and normalised separately. W starts at zero; K and Q have random starts.

    The dashed curve is the share of problems in which all tokens are support vectors, that is, all margins of
    the max-margin solution of the best tokens are one. Then every token is a neighbour of the selected one,
    and only the best tokens are locally optimal. In high dimensions this is the rule for W and explains why
    descent finds the best tokens; in the nuclear norm it comes later. The reference numbers are those of
    another program on the same problems.
    """
    for descent, solve in SOLVERS.items():
        generator = torch.Generator().manual_seed(seed)
        counts = dict.fromkeys([*LOOKS, SUPPORT], 0)
        for first in range(0, trials, BATCH):
            seeds = range(first, min(first + BATCH, trials))
            instance = published_instances(seeds, inputs=inputs, tokens=tokens, dim=d)
            if descent == W:
                end = normalised_descent(instance, start(instance), steps=steps, rate=rate)
            else:
                factors = random_factors(instance, generator=generator)
                end = normalised_descent(instance, factors, steps=steps, rate=rate)
            best = instance.optimal()
            attention, select = instance.attention(end.W).max(-1)
            pairs = constraints(instance.tokens, instance.query, select)
            solutions = solve(pairs)
            settled = (attention > 1 - threshold).all(-1) & solutions.solved
            is_best = settled & (select == best).all(-1)
            local = settled & (is_best | locally_optimal(instance.scores, select, pairs, solutions).all(-1))
            of_best = solve(constraints(instance.tokens, instance.query, best))
            support = of_best.solved & (of_best.margins <= 1 + NEIGHBOUR_RTOL).all(-1)
            for quantity, mask in zip(counts, (is_best, local, settled & ~local, ~settled, support)):
                counts[quantity] += int(mask.sum())
        known = {
            quantity: (numbers[d], "recomputed")
            for quantity, numbers in KNOWN.items()
            if descent == W and d in numbers
        }
        for quantity in LOOKS:
            here = {"at": {"descent": descent}, "step": steps, "reference": known.get(quantity)}
            yield share(quantity, counts[quantity], trials, **here)
        here = {"at": {"norm": NORMS[descent]}, "step": 0, "reference": known.get(SUPPORT)}
        yield share(SUPPORT, counts[SUPPORT], trials, needs=("inputs", "tokens", "trials"), **here)
