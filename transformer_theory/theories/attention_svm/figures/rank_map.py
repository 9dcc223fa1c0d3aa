"""A map over inputs, tokens and dimension: the ranks of the max-margin solutions, and how often a solution
exists.
"""

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import Reading, figure, share, size_map
from ....core.sources import Source
from ..builders import constraints
from ..problem import cross_attention
from ..solvers import frobenius_max_margins, nuclear_max_margins
from .common import SIZE_NAMES, T_axis, d_axis, n_axis, normal_mean

FEASIBLE_SHARE = "share of feasible problems"
FROBENIUS, NUCLEAR = "mean rank, Frobenius norm", "mean rank, nuclear norm"
BATCH = 100  # problems per batch


@figure(
    "attention_svm.rank_map",
    source=(Source("tarzanagh2023transformers"), Source("pataki1998rank")),
    over={
        "n": n_axis(2, 5, 10, 15),
        "T": T_axis(2, 5, 10, 15),
        "d": d_axis(2, 5, 10, 20, 50),
    },
    view=size_map(
        "n",
        "T",
        "d",
        quantities={FEASIBLE_SHARE: "feasible", FROBENIUS: "rank, Frobenius", NUCLEAR: "rank, nuclear"},
        names=SIZE_NAMES,
        caption="Feasible: share of {trials} random problems per size; ±: distance to the farther end of "
        "its 95 % interval (Clopper-Pearson). Ranks: mean over the feasible problems; ±: half the 95 % "
        "interval of the mean (normal approximation); –: no problem was feasible.",
    ),
    quick={"inputs": (2, 5), "tokens": (3, 5), "dims": (3, 10), "trials": 20},
)
def rank_map(
    n: int,
    T: int,
    d: int,
    *,
    trials: int = setting(1000, ge=1, help="random problems per size"),
    seed: int = 0,
) -> list[Reading]:
    """Mean rank of the max-margin solutions over (n, T, d) in both norms, with 95 % intervals, and the share
    of feasible problems.

    The theory predicts rank at most min(n, d), and feasibility wherever d >= max(T - 1, n). It does not
    predict by how much the nuclear norm lowers the rank.
    """
    generator = torch.Generator().manual_seed(seed)
    frobenius, nuclear = [np.zeros(0, dtype=int)], [np.zeros(0, dtype=int)]
    for first in range(0, trials, BATCH):
        number = min(BATCH, trials - first)
        instance = cross_attention(inputs=n, tokens=T, dim=d, generator=generator, trials=number)
        pairs = constraints(instance.tokens, instance.query, instance.optimal())
        solved = frobenius_max_margins(pairs)
        frobenius.append(solved.rank[solved.solved].numpy())
        smallest = nuclear_max_margins(pairs.problem(solved.solved))
        nuclear.append(smallest.rank[smallest.solved].numpy())
    ranks = {FROBENIUS: np.concatenate(frobenius), NUCLEAR: np.concatenate(nuclear)}
    feasible = len(ranks[FROBENIUS])
    readings = [share(FEASIBLE_SHARE, feasible, trials, **({"predicted": 1.0} if d >= max(T - 1, n) else {}))]
    for norm, found in ranks.items():
        notes = [f"from {found.min()} to {found.max()}"] if len(found) else []
        unverified = feasible - len(found)
        notes += [f"{unverified} more problems could not be verified"] if unverified else []
        readings.append(normal_mean(norm, found, "no feasible problem", note="; ".join(notes)))
    return readings
