"""Mirror descent in three geometries, compared with the max-margin solutions in three norms."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.errors import Infeasible, NotConverged
from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Measurement
from ....core.plotting import axes, caption, heatmap, style
from ....core.result import Result
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import constraints
from ..dynamics import bregman_divergence, mirror_descent, start
from ..published import published_instances
from ..solvers import lp_max_margin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = Source("julistiono2024optimizing")
COSINE = "cosine to the solution in the l_q norm"
DIVERGENCE = "Bregman divergence from the solution in the l_q norm"
NEAREST = "norm q with the smallest Bregman divergence"


@dataclass(frozen=True)
class Mirror(RandomExperiment):
    r"""Mirror descent with the potential :math:`\|W\|_p^p / p` from a random start, compared with max-margin
    solutions.

    The solutions are in the entrywise norms :math:`\ell_q`, for the tokens that descent selects. The theory
    predicts that descent with p is closest to the solution with q = p. Two measures compare the directions:
    the cosine, and the Bregman divergence of the potential, which the paper shows and which is zero if the
    directions agree. The sizes, the distribution of the start and the numbers of steps follow the released
    runs; p = 3 needs more steps, because the norm of W grows only like the square root of their number.
    Tokens, queries and scores are drawn as in :class:`~.local_convergence.LocalConvergence`.

    Raises:
        ValueError: ``steps`` and ``powers`` differ in length, or a setting is out of range.
    """

    inputs: int = setting(6, ge=1, help="number n of inputs")
    tokens: int = setting(8, ge=2, help="number T of tokens per input")
    dim: int = setting(10, ge=1, help="dimension d of the tokens")
    trials: int = setting(20, ge=1, help="random problems")
    powers: tuple[float, ...] = setting(
        (1.75, 2.0, 3.0), gt=1, le=10, help="exponents p of the potential and of the norms"
    )
    steps: tuple[int, ...] = setting((1500, 2000, 20000), ge=1, help="steps of descent, one number per power")
    rate: float = setting(0.1, gt=0, le=1e6, help="factor of the gradient in mirror descent")

    name = "attention_svm.mirror"
    sources = (SOURCE,)

    def __post_init__(self):
        super().__post_init__()
        if len(self.steps) != len(self.powers):
            raise ValueError(
                f"steps must hold one number for each of the {len(self.powers)} powers, got {self.steps}; "
                "give as many steps as powers"
            )

    def measure(self) -> Iterator[Measurement]:
        """Yields the mean of both measures per pair (p, q), and the nearest q."""
        instance = published_instances(
            range(1, self.trials + 1), inputs=self.inputs, tokens=self.tokens, dim=self.dim
        )
        W = torch.randn(self.trials, self.dim, self.dim, generator=self.generator(), dtype=torch.float64)
        for p, steps in zip(self.powers, self.steps, strict=True):
            end = mirror_descent(instance, start(instance, W=W), power=p, steps=steps, rate=self.rate).W
            pairs = constraints(instance.tokens, instance.query, instance.selected(end))
            cosines, divergences = [], []  # [solved trials, q]
            for trial in range(self.trials):
                try:
                    targets = [lp_max_margin(pairs.problem(trial), p=q).W for q in self.powers]
                except (Infeasible, NotConverged):
                    # a run that has not settled may select tokens that no W selects
                    continue
                cosines.append([float(cosine(end[trial], target)) for target in targets])
                divergences.append(
                    [float(bregman_divergence(target, end[trial], power=p)) for target in targets]
                )
            here = {"step": steps, "n": len(cosines), "reason": "" if cosines else "no trial has a solution"}
            note = f"mean over {len(cosines)} of {self.trials} trials"
            for column, q in enumerate(self.powers):
                for quantity, values in ((COSINE, cosines), (DIVERGENCE, divergences)):
                    value = float(np.mean([row[column] for row in values])) if values else None
                    yield self.row(quantity, value, at={"power": p, "q": q}, note=note, **here)
            if cosines:
                best = self.powers[int(np.mean(divergences, 0).argmin())]
                yield self.row(NEAREST, best, reference=(p, "limit"), at={"power": p}, **here)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots both measures as matrices: descent with the potential of p in rows, solutions in the norm of
        q in columns.
        """
        figure, panels = axes(1, 2, width=6.4, height=3.3)
        for ax, quantity, title in zip(panels, (COSINE, DIVERGENCE), ("Cosine", "Bregman divergence")):
            values = [row.value or 0.0 for row in result.select(quantity=quantity)]
            mean = np.array(values).reshape(len(self.powers), -1)
            closeness = mean if quantity == COSINE else -np.log10(np.maximum(mean, 1e-16))  # larger is closer
            heatmap(ax, closeness, cmap="Blues", bar=False)
            dark = closeness > closeness.min() + 0.6 * np.ptp(closeness)  # cells that need white text
            for row, column in np.ndindex(mean.shape):
                look = {"fontsize": 7.5, "fontweight": "bold" if row == column else "normal"}
                text = f"{mean[row, column]:.4f}" if quantity == COSINE else f"{mean[row, column]:.2g}"
                tint = "white" if dark[row, column] else "black"
                ax.text(column, row, text, ha="center", va="center", color=tint, **look)
            ticks, names = range(len(self.powers)), [f"{p:g}" for p in self.powers]
            ax.set(title=title, xlabel="max-margin solution in the norm of q", ylabel="mirror descent, p")
            ax.set_xticks(ticks, names)
            ax.set_yticks(ticks, names)
        caption(
            figure,
            f"Means over {self.trials} random problems (those whose selection is feasible). Darker means "
            "closer; each panel has its own scale. The theory predicts that the diagonal entry, in bold, "
            "is the closest of its row.",
        )
        return figure

    @classmethod
    def quick(cls) -> "Mirror":
        """Returns a small version: two trials in four dimensions."""
        return cls(inputs=2, tokens=4, dim=4, trials=2, steps=(300, 300, 600))
