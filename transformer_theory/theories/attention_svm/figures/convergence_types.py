"""Where descent on W and on K and Q ends, against the dimension: the best tokens, a locally optimal
selection, or another one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Measurement
from ....core.plotting import COLOURS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import clopper_pearson
from ..builders import constraints
from ..dynamics import normalised_descent, random_factors, start
from ..published import published_instances
from ..selection import NEIGHBOUR_RTOL, locally_optimal
from ..solvers import frobenius_max_margins, nuclear_max_margins
from .common import NAME, arrays_of, figure_row, mark, references, size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = Source("tarzanagh2023transformers")
Run = Literal["W", "KQ"]
RUNS: dict[Run, str] = {"W": "descent on W", "KQ": "descent on K and Q"}
TITLES: dict[Run, str] = {"W": "Descent on $W$", "KQ": "Descent on $(K, Q)$"}
NORMS: dict[Run, str] = {"W": "Frobenius norm", "KQ": "nuclear norm"}
BATCH = 25  # trials per batch, few enough to stay in the processor's cache
TYPES = {  # outcome of a run -> quantity
    "best": "share of problems that select every best token",
    "local": "share of problems whose selection is locally optimal",
    "not_local": "share of problems whose selection is not locally optimal",
    "open": "share of problems that have not settled",
}
SUPPORT = "share of problems in which all tokens are support vectors"
DIMS = (5, 10, 20, 50, 100, 200)
# Frobenius norm, by another program on the same problems
KNOWN_SUPPORT = {20: 0.01, 50: 0.49, 100: 0.83, 200: 1.0}
# descent on W, by another program on the same problems
KNOWN_BEST = {5: 0.69, 10: 0.91, 20: 0.98, 50: 1.0, 100: 0.99}
TINTS = {
    "best": COLOURS["scan_snap"],
    "local": COLOURS["attention_svm"],
    "not_local": COLOURS["joma"],
    "open": COLOURS["null"],
}
LABELS = {
    "best": "all best tokens",
    "local": "locally optimal (best included)",
    "not_local": "not locally optimal",
    "open": "not settled",
}


def classify(
    run: Run,
    inputs: int,
    tokens: int,
    dim: int,
    trials: int,
    steps: int,
    rate: float,
    threshold: float,
    seed: int,
) -> dict[str, int]:
    """Counts the outcomes of descent on the first published problems, and the problems in which all tokens
    are support vectors.

    Args:
        run: the weights that descend: W from zero, or K and Q from random factors.
        inputs, tokens, dim, trials, steps, rate, threshold: as in :class:`ConvergenceTypes`.
        seed: seed of the factors.
    Returns:
        One count per key of :data:`TYPES`, where ``local`` includes ``best``; and ``support``, for the best
        tokens in the norm of the run.
    """
    generator = torch.Generator().manual_seed(seed)
    solve = frobenius_max_margins if run == "W" else nuclear_max_margins
    counts = dict.fromkeys([*TYPES, "support"], 0)
    for first in range(0, trials, BATCH):
        instance = published_instances(
            range(first, min(first + BATCH, trials)), inputs=inputs, tokens=tokens, dim=dim
        )
        if run == "W":
            W = normalised_descent(instance, start(instance), steps=steps, rate=rate).W
        else:
            W = normalised_descent(
                instance, random_factors(instance, generator=generator), steps=steps, rate=rate
            ).W
        best = instance.optimal()
        attention, select = instance.attention(W).max(-1)
        pairs = constraints(instance.tokens, instance.query, select)
        solutions = solve(pairs)
        settled = (attention > 1 - threshold).all(-1) & solutions.solved
        selects_best = settled & (select == best).all(-1)
        local = settled & (selects_best | locally_optimal(instance.scores, select, pairs, solutions).all(-1))
        of_best = solve(constraints(instance.tokens, instance.query, best))
        support = of_best.solved & (of_best.margins <= 1 + NEIGHBOUR_RTOL).all(-1)
        masks = {
            "best": selects_best,
            "local": local,
            "not_local": settled & ~local,
            "open": ~settled,
            "support": support,
        }
        for name, mask in masks.items():
            counts[name] += int(mask.sum())
    return counts


@dataclass(frozen=True)
class ConvergenceTypes(RandomExperiment):
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

    inputs: int = setting(5, ge=1, help="number n of inputs")
    tokens: int = setting(5, ge=2, help="number T of tokens per input")
    dims: tuple[int, ...] = setting(DIMS, ge=1, help="dimensions d of the tokens")
    trials: int = setting(100, ge=1, help="random problems per dimension")
    steps: int = setting(1000, ge=1, help="steps of descent")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")
    threshold: float = setting(
        1e-3, gt=0, lt=1, help="largest share of the attention that a selected token leaves to the others"
    )

    name = "attention_svm.convergence_types"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields five rows per descent and dimension, and arrays [dims] with the shares and the ends of their
        95 % intervals.
        """
        fixed = {
            name: getattr(self, name)
            for name in ("inputs", "tokens", "trials", "steps", "rate", "threshold", "seed")
        }
        counts = sweep(classify, [{"run": run, "dim": d, **fixed} for run in RUNS for d in self.dims])
        yield Arrays({f"{NAME}/dims": np.array(self.dims)})
        for number, run in enumerate(RUNS):
            of_run = counts[number * len(self.dims) : (number + 1) * len(self.dims)]
            for name, quantity in (TYPES | {"support": SUPPORT}).items():
                successes = np.array([count[name] for count in of_run])
                low, high = clopper_pearson(successes, self.trials)
                for d, success, *ends in zip(self.dims, successes, low, high):
                    known = self._known(run, name).get(d)
                    yield figure_row(
                        quantity,
                        float(success / self.trials),
                        SOURCE,
                        reference=None if known is None else (known, "recomputed"),
                        unit="share",
                        at={
                            "setting": f"{NORMS[run] if name == 'support' else RUNS[run]}, "
                            f"{size(self.inputs, self.tokens, d)}"
                        },
                        step=0 if name == "support" else self.steps,
                        n=self.trials,
                        interval=(float(ends[0]), float(ends[1])),
                        interval_kind="over samples",
                    )
                values = {name: successes / self.trials, f"{name}_low": low, f"{name}_high": high}
                yield Arrays({f"{NAME}/{run}_{key}": value for key, value in values.items()})

    def _known(self, run: Run, name: str) -> dict[int, float]:
        """Returns the reference numbers by dimension; none under other settings than those of the reference."""
        if run != "W" or not self.at_defaults("inputs", "tokens", "trials"):
            return {}
        if name == "support":
            return KNOWN_SUPPORT
        return KNOWN_BEST if name == "best" and self.at_defaults("steps", "rate", "threshold") else {}

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the shares of the outcomes and of problems in which all tokens are support vectors: W on the
        left, K and Q on the right.
        """
        a = arrays_of(result)
        figure, panels = axes(1, 2, width=7.0, height=3.3)
        for ax, run in zip(panels, RUNS):
            for name, label in LABELS.items():
                ax.fill_between(
                    a["dims"],
                    a[f"{run}_{name}_low"],
                    a[f"{run}_{name}_high"],
                    color=TINTS[name],
                    alpha=0.12,
                    linewidth=0,
                )
                ax.plot(
                    a["dims"], a[f"{run}_{name}"], color=TINTS[name], marker="o", markersize=3, label=label
                )
            ax.plot(
                a["dims"],
                a[f"{run}_support"],
                color=COLOURS["network"],
                linestyle=(0, (4, 2)),
                marker="s",
                markersize=3,
                label="all tokens are support vectors",
            )
            points = []
            for quantity, kind in ((TYPES["best"], RUNS[run]), (SUPPORT, NORMS[run])):
                for d in a["dims"]:
                    rows = references(
                        result.table.select(
                            quantity=quantity,
                            at={"setting": f"{kind}, {size(self.inputs, self.tokens, int(d))}"},
                        )
                    )
                    points += [(int(d), row.predicted, row.basis) for row in rows]
            mark(ax, points)
            ax.set_xscale("log")
            ax.set_xticks(a["dims"], [str(d) for d in a["dims"]])
            ax.minorticks_off()
            ax.set(title=TITLES[run], xlabel="dimension d", ylim=(-0.03, 1.04))
        panels[0].set_ylabel("share of problems")
        panels[1].legend(*panels[0].get_legend_handles_labels(), loc="center left", fontsize=7)
        caption(
            figure,
            f"Shares of {self.trials} random problems per dimension (n = {self.inputs}, T = {self.tokens}) "
            f"after {self.steps} steps; bands: 95 % intervals (Clopper-Pearson).",
        )
        return figure

    @classmethod
    def quick(cls) -> "ConvergenceTypes":
        """Returns a small version: ten problems of three dimensions, about a second."""
        return cls(dims=(5, 20, 50), trials=10, steps=300)
