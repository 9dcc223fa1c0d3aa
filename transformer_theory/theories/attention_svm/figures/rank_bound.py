"""Descent on factors with few columns, which bound the rank of W, compared with max-margin solutions of
bounded rank.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.errors import NotConverged
from ....core.experiment import RandomExperiment, setting
from ....core.figure import Panel, draw_curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, axes, caption, colour, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ....maths.linalg import cosine
from ..balance import common_norm_descent
from ..builders import constraints
from ..dynamics import random_factors
from ..problem import Instance
from ..published import published_instances
from ..solvers import low_rank_max_margin, nuclear_max_margins
from .common import NAME, Reference, arrays_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = Source("tarzanagh2023transformers")
FREE = "share of problems in which the bound on the rank has no price"
PRICE = "price of the bound on the rank"
MARGIN = "smallest margin per nuclear norm, relative to the largest possible"
DISTANCE = "1 - cosine of K Q^T to the target"
TARGETS = {"bounded": "max-margin solution of bounded rank", "nuclear": "nuclear solution"}
SIDES = {True: "at least the rank of the nuclear solution", False: "below the rank of the nuclear solution"}
# columns of the array of one width
COLUMNS: tuple[str, ...] = ("rank", "price", "margin", "limit", "truncated", "bounded", "nuclear")
NO_PRICE = 1e-5  # largest price minus one that is rounding


def outcomes(
    instance: Instance, *, width: int, steps: int, rate: float, generator: torch.Generator
) -> np.ndarray:
    """Returns the numbers of ``COLUMNS`` of each trial, ``[k, 7]``; trials without a verified solution are
    left out.

    These are the rank of the nuclear solution, the price, the margin of descent, that of the solution of
    bounded rank, that of the nuclear solution cut to the rank, and 1 - cosine of descent to either solution.
    All solutions are those of the tokens that descent selects.
    """
    factors = common_norm_descent(
        instance, random_factors(instance, generator=generator, width=width), steps=steps, rate=rate
    )
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
    return np.array(rows, dtype=float).reshape(-1, len(COLUMNS))


@dataclass(frozen=True)
class RankBound(RandomExperiment):
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

    widths: tuple[int, ...] = setting((1, 2, 3, 4, 6), ge=1, help="numbers m of columns of K and Q")
    inputs: int = setting(8, ge=1, help="number n of inputs")
    tokens: int = setting(5, ge=2, help="number T of tokens per input")
    dim: int = setting(8, ge=2, help="dimension d of the tokens")
    trials: int = setting(40, ge=1, help="random problems, the same for each m")
    steps: int = setting(10_000, ge=1, help="steps of descent")
    rate: float = setting(0.1, gt=0, le=10, help="length of a step")

    name = "attention_svm.rank_bound"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields, per width, for all problems and for those on either side of the rank, shares, prices,
        margins and distances; arrays with the points of the prices.
        """
        sizes = {"inputs": self.inputs, "tokens": self.tokens, "dim": self.dim}
        instance = published_instances(range(self.trials), **sizes)
        for width in self.widths:
            run = {"width": width, "steps": self.steps, "rate": self.rate, "generator": self.generator()}
            found = outcomes(instance, **run)
            yield Arrays({f"{NAME}/prices_{width}": found[:, :2]})
            yield from self._rows({"m": width}, found)
            for enough, side in SIDES.items():
                these = found[(found[:, 0] <= width) == enough]
                yield from self._rows({"m": width, "rank": side}, these, enough)

    def _rows(
        self, at: dict[str, int | str], found: np.ndarray, enough: bool | None = None
    ) -> Iterator[Measurement]:
        """Yields the rows of some problems; ``enough`` tells whether the bound is at least their rank."""
        if not len(found):
            return
        median = {name: float(np.median(values)) for name, values in zip(COLUMNS, found.T)}
        here: dict = {"step": self.steps, "n": len(found)}
        free = float((found[:, COLUMNS.index("price")] < 1 + NO_PRICE).mean())
        share: Reference | None = None if enough is None else (float(enough), "theory")
        yield self.row(FREE, free, reference=share, unit="share", at=at, **here)
        here["note"] = "median over the problems"
        yield self.row(PRICE, median["price"], reference=(1.0, "theory") if enough else None, at=at, **here)
        limit: Reference = (median["limit"], "limit")
        yield self.row(MARGIN, median["margin"], reference=limit, at={"of": "descent"} | at, **here)
        yield self.row(
            MARGIN, median["truncated"], at={"of": "nuclear solution cut to the rank"} | at, **here
        )
        for name, target in TARGETS.items():
            yield self.row(DISTANCE, median[name], at={"target": target} | at, **here)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots margins against m, prices against m minus the rank of the nuclear solution, and distances of
        descent against m.
        """
        a, blue = arrays_of(result), colour("attention_svm")
        figure, (left, middle, right) = axes(1, 3, width=7.0, height=3.3)
        looks = {
            "descent": {"label": "descent, m columns", "color": "#000000", "linestyle": "", "marker": "x"},
            "nuclear solution cut to the rank": {"label": "nuclear solution, cut", "color": COLOURS["null"]},
        }
        of_all, titles = {"rank": ""}, ("Smallest margin, relative", "1 − cosine of descent to")
        margins = Panel(titles[0], MARGIN, of_all, ("of", looks), "rank at most m (predicted)", "upper left")
        draw_curves(left, result, margins, x="m")
        left.set_ylim(top=1.75)
        for m in self.widths:
            rank, price = a[f"prices_{m}"].T
            middle.scatter(
                m - rank + np.linspace(-0.2, 0.2, len(rank)), price, s=7, color=blue, alpha=0.5, linewidths=0
            )
        middle.axhline(1, color=COLOURS["null"], linewidth=1.0, linestyle=(0, (4, 3)))
        middle.set(yscale="log", xlabel="m − rank of the nuclear solution", title="Price of the bound")
        labels = {TARGETS["bounded"]: {"label": "solution of rank m"}, TARGETS["nuclear"]: {}}
        draw_curves(
            right, result, Panel(titles[1], DISTANCE, of_all, ("target", labels), legend="upper right"), x="m"
        )
        right.set(yscale="log")
        for ax in (left, right):
            ax.set_xlabel("columns m of K and Q")
        caption(
            figure,
            f"{self.trials} random problems. Left and right: medians. Left: smallest margin per nuclear "
            "norm, relative to the largest possible. Middle: one mark per problem and m; dashed: no price.",
        )
        return figure

    @classmethod
    def quick(cls) -> "RankBound":
        """Returns a small version: two widths, eight problems and 800 steps, about a second."""
        return cls(widths=(1, 4), trials=8, steps=800)
