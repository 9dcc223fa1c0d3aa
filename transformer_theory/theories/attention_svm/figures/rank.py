"""The rank of the max-margin solutions against the dimension, compared with the rank that the released
notebook prints.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ....core.experiment import setting
from ....core.figure import Panel, Reading, draw_curves, figure, reading
from ....core.plotting import TINTS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import clopper_pearson
from ..builders import constraints
from ..constraint_set import Constraints
from ..published import published_instances
from ..solvers import frobenius_max_margins, nuclear_max_margins, official_rank
from .common import T_axis, d_axis, n_axis, normal_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEASIBLE_SHARE = "share of feasible problems"
FROBENIUS, NUCLEAR = "mean rank, Frobenius norm", "mean rank, nuclear norm"
RECIPE: dict[Literal["frobenius", "nuclear"], str] = {
    "frobenius": "mean rank by the released recipe, Frobenius norm",
    "nuclear": "mean rank by the released recipe, nuclear norm",
}
RECIPE_LOOK = {"linestyle": (0, (3, 2)), "linewidth": 1.0, "marker": "", "band": False}
LOOKS = {
    FROBENIUS: {"label": "Frobenius, true", "color": TINTS[0]},
    NUCLEAR: {"label": "nuclear, true", "color": TINTS[1]},
    RECIPE["frobenius"]: {"label": "Frobenius, released recipe", "color": TINTS[0], **RECIPE_LOOK},
    RECIPE["nuclear"]: {"label": "nuclear, released recipe", "color": TINTS[1], **RECIPE_LOOK},
}
KNOWN_DIMS: tuple[int, ...] = (1, 2, 3, 4, 5, 10, 15, 20)
BATCH = 100  # seeds per batch
# fewest seeds for which the mean of the recipe is compared with the published mean over 100 seeds
MIN_OFFICIAL = 10
# n -> numbers at KNOWN_DIMS, read off the published figure at T = 5; infeasible problems count as rank 1
PAPER = {
    RECIPE["frobenius"]: {
        5: (1, 1.3, 2.3, 3.9, 4.95, 5, 5, 5),
        10: (1, 1, 1.2, 3.6, 5, 10, 10, 10),
        15: (1, 1, 1, 1.4, 4.8, 10, 15, 15),
    },
    RECIPE["nuclear"]: {
        5: (None, None, None, None, 4.5, 4.9),
        10: (None, None, None, None, None, 9.1, 10),
        15: (None, None, None, None, None, 9.6, 13.9, 14.9),
    },
}
KNOWN = {  # (n, T) -> d -> true means (Frobenius, nuclear) over 100 feasible seeds, computed independently
    (5, 5): {4: (3.98, 2.57), 5: (4.90, 2.57), 10: (5, 2.50), 15: (5, 2.53), 20: (5, 2.55)},
    (10, 5): {3: (3, 2.85), 4: (4, 3.43), 5: (5, 3.65), 10: (9.99, 3.77), 15: (10, 3.76), 20: (10, 3.83)},
    (15, 5): {4: (4, 3.75), 5: (5, 4.43), 10: (10, 4.67), 15: (14.99, 4.73), 20: (15, 4.61)},
    (5, 10): {10: (5, 3.07)},
    (5, 15): {10: (5, 3.28), 20: (5, 3.17)},
}


def published_constraints(seeds: range, inputs: int, tokens: int, dim: int) -> Constraints:
    """Returns the constraints of the best tokens in the published problems."""
    instance = published_instances(seeds, inputs=inputs, tokens=tokens, dim=dim)
    return constraints(instance.tokens, instance.query, instance.optimal())


@style()
def draw(result: Result) -> "Figure":
    """Draws the mean rank against the dimension, one panel per pair (n, T): the true ranks with their 95 %
    intervals, the released recipe, and the largest rank that Pataki's bound allows in the nuclear norm.
    """
    pairs: list[Any] = list(dict.fromkeys((row.at["n"], row.at["T"]) for row in result.table))
    height = -(-(len(pairs) + 1) // 3)  # the panel after the last pair holds the legend
    drawn, panels = axes(height, 3, width=7.0, height=0.4 + 2.3 * height)
    for (n, T), ax in zip(pairs, panels):
        # The largest r with r (r + 1) / 2 <= n (T - 1), the number of all constraints.
        bound = np.floor((np.sqrt(1 + 8 * n * (T - 1)) - 1) / 2)
        panel = Panel(
            f"n = {n}, T = {T}",
            tuple(LOOKS),
            {"n": n, "T": T},
            ("quantity", LOOKS),
            levels={"nuclear: Pataki's bound": bound},
            legend="",
            axes={"xscale": "log", "ylim": (0, max(n, bound) * 1.08)},
        )
        draw_curves(ax, result, panel, x="d")
        ax.set(xlabel="dimension d", ylabel="mean rank")
        ax.locator_params("y", integer=True)
    for ax in panels[len(pairs) :]:
        ax.axis("off")
    entries = {label: handle for ax in panels for handle, label in zip(*ax.get_legend_handles_labels())}
    panels[len(pairs)].legend(entries.values(), entries.keys(), loc="center left")
    caption(
        drawn,
        "True: mean over up to {feasible} feasible problems of {max_seeds} seeds, bands: 95 % interval of "
        "the mean; no mark where none is feasible. Released recipe: the notebook's computation on "
        "{official} seeds, which counts infeasible problems as rank one; numbers read off the paper's "
        "figure: 100 seeds. Pataki's bound: rank r with r(r + 1)/2 at most the number of constraints.".format(
            **result.settings
        ),
    )
    return drawn


@figure(
    "attention_svm.rank",
    source=(Source("tarzanagh2023transformers"), Source("pataki1998rank")),
    over={
        "n": n_axis(5, 10, 15),
        "T": T_axis(5, 10, 15),
        "d": d_axis(*KNOWN_DIMS),
    },
    where=lambda n, T: n == 5 or T == 5,
    view=draw,
    quick={
        "inputs": (3, 5),
        "tokens": (5,),
        "dims": (2, 4, 8),
        "feasible": 10,
        "max_seeds": 30,
        "official": 2,
    },
)
def rank(
    n: int,
    T: int,
    d: int,
    *,
    feasible: int = setting(100, ge=1, help="feasible problems per size"),
    max_seeds: int = setting(400, ge=1, help="largest number of seeds to try per size"),
    official: int = setting(10, ge=0, help="seeds for the released recipe; 0 skips it"),
) -> Iterator[Reading]:
    """Mean rank of the max-margin solutions in the Frobenius and in the nuclear norm against the dimension,
    with the published numbers.

    The theory predicts a rank of at most min(n, d) in both norms. The rank r of a unique nuclear solution
    satisfies Pataki's bound: r (r + 1) / 2 is at most the number of active constraints. The published curves
    break this bound: they count the error of an inexact solver as rank, and infeasible problems as rank one.
    The true means are over the first ``feasible`` feasible problems among the first ``max_seeds`` seeds. The
    released notebook's recipe runs here on the first ``official`` seeds; the notebook uses 100.
    """
    ranks, tried, unverified = {FROBENIUS: [], NUCLEAR: []}, 0, 0
    for first in range(0, max_seeds, BATCH):
        seeds = range(first, min(first + BATCH, max_seeds))
        pairs = published_constraints(seeds, n, T, d)
        solutions = frobenius_max_margins(pairs)
        solved = solutions.solved.nonzero().squeeze(-1)[: feasible - len(ranks[FROBENIUS])]
        tried = seeds[-1] + 1
        if len(solved):
            ranks[FROBENIUS] += solutions.rank[solved].tolist()
            smallest = nuclear_max_margins(pairs.problem(solved))
            ranks[NUCLEAR] += smallest.rank[smallest.solved].tolist()
            unverified += int((~smallest.solved).sum())
        if len(ranks[FROBENIUS]) == feasible:
            tried = first + int(solved[-1]) + 1  # the search stops at the last success
            break
    # at least one seed, because an empty batch is not an instance
    pairs = published_constraints(range(max(1, official)), n, T, d)
    for norm, quantity in RECIPE.items():
        ranks[quantity] = [official_rank(pairs.problem(trial), norm=norm) for trial in range(official)]

    count = len(ranks[FROBENIUS])
    ends = feasible_interval(count, tried, feasible)
    share = {"unit": "share", "n": tried, "interval": ends, "interval_kind": "over samples"}
    yield reading(FEASIBLE_SHARE, count / tried, **share)
    numbers: dict[str, Any] = dict(zip((FROBENIUS, NUCLEAR), KNOWN.get((n, T), {}).get(d, ())))
    if T == 5 and official >= MIN_OFFICIAL:
        numbers |= {name: dict(zip(KNOWN_DIMS, paper.get(n, ()))).get(d) for name, paper in PAPER.items()}
    for quantity, values in ranks.items():
        if values:
            note = f"at most {max(values)}"
            if quantity == NUCLEAR and unverified:
                note += f"; {unverified} more problems could not be verified"
            basis, needs = ("figure", ()) if quantity in PAPER else ("recomputed", ("feasible", "max_seeds"))
            known = numbers.get(quantity)
            here = {"reference": known and (float(known), basis), "needs": needs, "note": note}
            yield normal_mean(quantity, np.array(values), **here)


def feasible_interval(count: int, tried: int, target: int) -> tuple[float, float]:
    r"""Returns the 95 % interval for the share of feasible problems if the search stops at ``target``
    feasible seeds or after all seeds.

    Let k of the n seeds be feasible. The lower end p solves :math:`P(\mathrm{Bin}(n, p) \ge k) = 1/40` under
    either stopping rule. The upper end depends on the rule. If all seeds were tried, it solves
    :math:`P(\mathrm{Bin}(n, p) \le k) = 1/40`. If the search stopped at the k-th success, it took n or more
    trials exactly if the first n - 1 had fewer than k successes, so the upper end solves
    :math:`P(\mathrm{Bin}(n - 1, p) \le k - 1) = 1/40` (:cite:t:`clopper1934use`, for inverse binomial
    sampling).

    Args:
        count: k, the number of feasible problems.
        tried: n, the number of seeds tried.
        target: number of feasible problems at which the search stops.
    """
    low, high = clopper_pearson(count, tried)
    if count == target:
        high = clopper_pearson(count - 1, tried - 1)[1] if tried > count else 1.0
    return float(low), float(high)
