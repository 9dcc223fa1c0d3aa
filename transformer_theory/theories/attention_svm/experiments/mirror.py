"""Mirror descent in three geometries against the max-margin solutions in three norms."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.errors import Infeasible, NotConverged
from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....core.sources import Source
from ....maths.linalg import cosine
from ..builders import constraints
from ..dynamics import start
from ..dynamics.mirror import bregman_divergence, mirror_descent
from ..figures import mirror
from ..published import published_instances
from ..solvers import lp_max_margin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "attention_svm"
SOURCE = Source("julistiono2024optimizing")


@dataclass(frozen=True)
class Mirror(RandomExperiment):
    r"""Mirror descent with the potential :math:`\|W\|_p^p / p` from a random start, against the max-margin solutions of the tokens that it
    selects in the entrywise norms :math:`\ell_q`.

    The theory says q = p. Two measures: the cosine, and the Bregman divergence of the potential between the two directions, which the
    paper shows; it is zero where they agree. Number of steps, law of the start and sizes as in the released runs (p = 3 needs more steps:
    the norm of W grows only like their square root); tokens, queries and scores as in :class:`LocalConvergence`.

    Raises:
        ValueError: not as many ``steps`` as ``powers``; or a setting is beyond its bounds.
    """

    inputs: int = setting(6, ge=1, help="number n of inputs")
    tokens: int = setting(8, ge=2, help="number T of tokens of an input")
    dim: int = setting(10, ge=1, help="dimension d of the tokens")
    trials: int = setting(20, ge=1, help="random problems")
    powers: tuple[float, ...] = setting((1.75, 2.0, 3.0), gt=1, le=10, help="exponents p of the potential and of the norms")
    steps: tuple[int, ...] = setting((1500, 2000, 20000), ge=1, help="steps of descent, one number for each power")
    rate: float = setting(0.1, gt=0, le=1e6, help="factor of the gradient in mirror descent")

    name = "attention_svm.mirror"
    sources = (SOURCE,)

    def __post_init__(self):
        super().__post_init__()
        if len(self.steps) != len(self.powers):
            raise ValueError(
                f"steps must hold one number for each of the {len(self.powers)} powers, got {self.steps}; give as many of both"
            )

    def measure(self) -> Iterator[Row | Arrays]:
        """Rows with the mean of both measures for each pair (p, q); arrays with those of every trial."""
        instance = published_instances(range(1, self.trials + 1), inputs=self.inputs, tokens=self.tokens, dim=self.dim)
        W = torch.randn(self.trials, self.dim, self.dim, generator=self.generator(), dtype=torch.float64)
        cosines, divergences = (np.full((len(self.powers), len(self.powers), self.trials), np.nan) for _ in range(2))
        for row, (p, steps) in enumerate(zip(self.powers, self.steps, strict=True)):
            end = mirror_descent(instance, start(instance, W=W), power=p, steps=steps, rate=self.rate).W
            pairs = constraints(instance.tokens, instance.query, instance.selected(end))
            for trial in range(self.trials):
                try:
                    targets = [lp_max_margin(pairs.problem(trial), p=q).W for q in self.powers]
                except (Infeasible, NotConverged):  # a run that has not settled selects tokens that nothing selects
                    continue
                cosines[row, :, trial] = [float(cosine(end[trial], target)) for target in targets]
                divergences[row, :, trial] = [float(bregman_divergence(target, end[trial], power=p)) for target in targets]
            solved = int((~np.isnan(cosines[row, 0])).sum())
            for column, q in enumerate(self.powers):
                for measure, values in (("cosine", cosines), ("Bregman divergence", divergences)):
                    yield Row(
                        theory=NAME,
                        quantity=f"{measure} of descent with p = {p:g} to the solution with q = {q:g}",
                        value=float(np.nanmean(values[row, column])) if solved else None,
                        step=steps,
                        source=str(SOURCE),
                        note=f"mean over {solved} of {self.trials} trials; " + ("same norm" if p == q else "other norm"),
                    )
            if solved:
                best = self.powers[int(np.nanmean(divergences[row], 1).argmin())]
                yield Row(
                    theory=NAME,
                    quantity=f"nearest norm q for descent with p = {p:g}",
                    value=best,
                    predicted=p,
                    basis="limit",
                    step=steps,
                    source=str(SOURCE),
                    note="smallest Bregman divergence, mean over trials",
                )
        yield Arrays({f"{NAME}/powers": np.array(self.powers), f"{NAME}/cosine": cosines, f"{NAME}/divergence": divergences})

    def draw(self, result: Result) -> "Figure":
        """Both measures as matrices, descent by rows and solutions by columns."""
        return mirror(result)

    @classmethod
    def quick(cls) -> "Mirror":
        """Two trials in four dimensions."""
        return cls(inputs=2, tokens=4, dim=4, trials=2, steps=(300, 300, 600))
