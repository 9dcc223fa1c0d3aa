"""Maps over inputs, tokens and dimension: how often the best tokens are feasible, are selected, or a
selection is locally optimal.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ....core.experiment import setting
from ....core.figure import Reading, figure, share, size_map
from ....core.sources import Source
from ..builders import constraints
from ..dynamics import normalised_descent, start
from ..problem import Instance, cross_attention
from ..selection import locally_optimal
from ..solvers import frobenius_max_margins
from .common import RATE, SIZE_NAMES, THRESHOLD, T_axis, d_axis, n_axis

BATCH = 100  # trials per batch, few enough to stay in the processor's cache
FEASIBLE = "share of problems whose best tokens are feasible"
SELECTED = "share of problems that select every best token"
LOCAL = "share of settled runs whose selection is locally optimal"
QUANTITIES = {FEASIBLE: "feasible", SELECTED: "all best selected", LOCAL: "locally optimal"}


def count_locally_optimal(
    instance: Instance, select: Int[Tensor, "trials n"], settled: Bool[Tensor, " trials"]
) -> int:
    """Counts the settled trials whose selected tokens all score higher than their neighbours."""
    if not settled.any():
        return 0
    instance, select = instance[settled], select[settled]
    pairs = constraints(instance.tokens, instance.query, select)
    solutions = frobenius_max_margins(pairs)
    return int(locally_optimal(instance.scores, select, pairs, solutions).all(-1).sum())


@figure(
    "attention_svm.probability_map",
    source=Source("tarzanagh2023transformers"),
    over={
        "n": n_axis(2, 5, 10, 15),
        "T": T_axis(2, 5, 10, 15),
        "d": d_axis(2, 5, 10, 20, 50),
    },
    view=size_map(
        "n",
        "T",
        "d",
        quantities=QUANTITIES,
        names=SIZE_NAMES,
        caption="Shares of {trials} random problems per size; ±: distance to the farther end of the 95 % "
        "interval (Clopper-Pearson). Feasible: some W selects every best token. All best selected: descent "
        "from zero selects every best token. Locally optimal: share of the settled runs whose selection is "
        "locally optimal. A run has settled if one token of every input has all but {threshold:g} of the "
        "attention; –: no run has settled.",
    ),
    quick={"inputs": (2, 5), "tokens": (3, 5), "dims": (3, 10), "trials": 20, "steps": 400},
)
def probability_map(
    n: int,
    T: int,
    d: int,
    *,
    trials: int = setting(1000, ge=1, help="random problems per size"),
    steps: int = setting(1000, ge=1, help="steps of descent"),
    rate: float = RATE,
    threshold: float = THRESHOLD,
    seed: int = 0,
) -> list[Reading]:
    """Shares of random problems over (n, T, d), with 95 % intervals.

    There are three shares: the problems whose best tokens are feasible; the problems in which normalised
    descent from W = 0 selects the best tokens; and, among the runs that settled on one token per input, those
    whose selection is locally optimal. The theory predicts that the first share is one wherever d >= max(T -
    1, n), that the second grows with d, and that the third is one in the limit. With many inputs and tokens,
    a thousand steps are far from the limit, because descent passes saddle points.
    """
    generator = torch.Generator().manual_seed(seed)
    possible = selected = finished = optimal = 0
    for first in range(0, trials, BATCH):
        number = min(BATCH, trials - first)
        instance = cross_attention(inputs=n, tokens=T, dim=d, generator=generator, trials=number)
        best = instance.optimal()
        feasible = frobenius_max_margins(constraints(instance.tokens, instance.query, best)).solved
        end = normalised_descent(instance, start(instance), steps=steps, rate=rate)
        attention, select = instance.attention(end.W).max(-1)
        settled = (attention > 1 - threshold).all(-1)
        possible += int(feasible.sum())
        selected += int((settled & (select == best).all(-1)).sum())
        finished += int(settled.sum())
        optimal += count_locally_optimal(instance, select, settled)
    always = {"predicted": 1.0} if d >= max(T - 1, n) else {}
    limit = {"predicted": 1.0, "basis": "limit", "reason": "no run has settled"}
    return [
        share(FEASIBLE, possible, trials, step=0, **always),
        share(SELECTED, selected, trials, step=steps),
        share(LOCAL, optimal, finished, step=steps, **limit),
    ]
