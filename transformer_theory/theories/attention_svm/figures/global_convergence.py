"""How often descent from W = 0 selects the best token of every input, as a function of the dimension."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ....core.experiment import Experiment, setting, sweep
from ....core.measurement import Arrays, Measurement
from ....core.plotting import COLOURS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import clopper_pearson
from ..dynamics import normalised_descent, start
from ..problem import Instance
from ..published import published_instances
from .common import NAME, arrays_of, figure_row, mark, references, size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = Source("tarzanagh2023transformers")
BEST_SELECTED = "share of problems that select every best token"
DIMS = (2, 5, 10, 20, 50, 100)
KNOWN = {  # (n, T) -> one share per dimension in DIMS, computed independently with the default settings
    (5, 5): (0.06, 0.69, 0.91, 0.98, 1.00, 0.99),
    (10, 5): (0.0, 0.21, 0.59, 0.86, 0.99, 0.99),
    (15, 5): (0.0, 0.03, 0.28, 0.78, 0.97, 1.00),
    (5, 10): (0.0, 0.41, 0.72, 0.83, 0.93, 0.98),
    (5, 15): (0.01, 0.37, 0.60, 0.70, 0.85, 0.92),
}
TINTS = (
    COLOURS["attention_svm"],
    COLOURS["scan_snap"],
    COLOURS["rate_reduction"],
    COLOURS["crate"],
    COLOURS["joma"],
)


def selects_best(instance: Instance, *, steps: int, rate: float, threshold: float) -> np.ndarray:
    """Returns, per trial, whether after descent from W = 0 every best token has more than ``1 - threshold``
    of the attention.
    """
    end = normalised_descent(instance, start(instance), steps=steps, rate=rate)
    attention = instance.attention(end.W)
    best = attention.gather(-1, instance.optimal()[..., None]).squeeze(-1)
    return (best > 1 - threshold).all(-1).numpy()


def count_best(
    inputs: int, tokens: int, dim: int, trials: int, steps: int, rate: float, threshold: float
) -> int:
    """Counts the seeds, among the first ``trials`` published ones, for which descent selects the best token
    of every input.
    """
    instance = published_instances(range(trials), inputs=inputs, tokens=tokens, dim=dim)
    return int(selects_best(instance, steps=steps, rate=rate, threshold=threshold).sum())


@dataclass(frozen=True)
class GlobalConvergence(Experiment):
    """Share of random problems in which normalised descent from W = 0 selects the best token of every input,
    against the dimension.

    The paper states the trend: the share goes to one as the dimension grows, and falls with the number of
    inputs and of tokens. The left panel varies the number of inputs at T = 5, the right panel the number of
    tokens at n = 5. A token is selected if at most 0.001 of the attention goes to other tokens. Data are
    drawn as in the paper's other figures (seeds 0 to 99). The paper does not publish the settings of this
    figure, so the reference numbers come from another program that ran with the default settings given here.
    """

    inputs: tuple[int, ...] = setting((5, 10, 15), ge=1, help="numbers n of inputs")
    tokens: tuple[int, ...] = setting((5, 10, 15), ge=2, help="numbers T of tokens per input")
    dims: tuple[int, ...] = setting(DIMS, ge=1, help="dimensions d of the tokens")
    common: int = setting(5, ge=2, help="value of n while T varies, and of T while n varies")
    trials: int = setting(100, ge=1, help="random problems per size")
    steps: int = setting(1000, ge=1, help="steps of descent")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")
    threshold: float = setting(
        1e-3, gt=0, lt=1, help="largest share of the attention that a selected token leaves to the others"
    )

    name = "attention_svm.global_convergence"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields one row per (n, T, d), and arrays with the shares and their 95 % intervals."""
        pairs = list(
            dict.fromkeys(
                [*((n, self.common) for n in self.inputs), *((self.common, T) for T in self.tokens)]
            )
        )
        fixed = {"trials": self.trials, "steps": self.steps, "rate": self.rate, "threshold": self.threshold}
        settings = [{"inputs": n, "tokens": T, "dim": d, **fixed} for n, T in pairs for d in self.dims]
        counts = np.array(sweep(count_best, settings)).reshape(len(pairs), len(self.dims))
        low, high = clopper_pearson(counts, self.trials)
        comparable = self.at_defaults("trials", "steps", "rate", "threshold")
        for pair, (n, T) in enumerate(pairs):
            reference_shares = dict(zip(DIMS, KNOWN.get((n, T), ()))) if comparable else {}
            for column, d in enumerate(self.dims):
                yield figure_row(
                    BEST_SELECTED,
                    float(counts[pair, column] / self.trials),
                    SOURCE,
                    reference=(reference_shares[d], "recomputed") if d in reference_shares else None,
                    unit="share",
                    at={"setting": size(n, T, d)},
                    step=self.steps,
                    n=self.trials,
                    interval=(float(low[pair, column]), float(high[pair, column])),
                    interval_kind="over samples",
                )
        yield Arrays(
            {
                f"{NAME}/pairs": np.array(pairs),
                f"{NAME}/dims": np.array(self.dims),
                f"{NAME}/share": counts / self.trials,
                f"{NAME}/low": low,
                f"{NAME}/high": high,
            }
        )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the share against the dimension with its 95 % band, for several numbers of inputs (left) and
        of tokens (right).
        """
        a, reference_rows = arrays_of(result), references(result.table.select(quantity=BEST_SELECTED))
        figure, panels = axes(1, 2, width=7.0, height=3.1)
        for ax, varied, fixed in zip(panels, (0, 1), ("T", "n")):
            panel_pairs = [pair for pair, sizes in enumerate(a["pairs"]) if sizes[1 - varied] == self.common]
            points = []
            for tint, pair in zip(TINTS, sorted(panel_pairs, key=lambda pair: a["pairs"][pair][varied])):
                n, T = (int(v) for v in a["pairs"][pair])
                ax.fill_between(
                    a["dims"], a["low"][pair], a["high"][pair], color=tint, alpha=0.14, linewidth=0
                )
                label = f"{'nT'[varied]} = {(n, T)[varied]}"
                ax.plot(a["dims"], a["share"][pair], color=tint, marker="o", markersize=3, label=label)
                rows = [
                    (int(d), row)
                    for d in a["dims"]
                    for row in reference_rows.select(at={"setting": size(n, T, int(d))})
                ]
                points += [(d, row.predicted, row.basis) for d, row in rows]
            mark(ax, points)
            ax.set_xscale("log")
            ax.set_xticks(a["dims"], [str(d) for d in a["dims"]])
            ax.minorticks_off()
            ax.set(
                title=f"All best tokens selected, {fixed} = {self.common}",
                xlabel="dimension d",
                ylabel="share of problems",
            )
            ax.set_ylim(-0.03, 1.04)
            ax.legend(loc="lower right")
        caption(
            figure,
            f"Share of {self.trials} random problems per size; bands: 95 % intervals (Clopper-Pearson).",
        )
        return figure

    @classmethod
    def quick(cls) -> "GlobalConvergence":
        """Returns a small version: ten trials and few sizes, about a second."""
        return cls(inputs=(3, 5), tokens=(3, 5), dims=(2, 5, 20), trials=10, steps=400)
