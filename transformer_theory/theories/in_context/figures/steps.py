"""What one trained layer of linear attention learns: its matrix over training, and its risk against the
number of examples.

Source: :cite:t:`zhang2024trained`; the curves of plain descent and the noise are the library's own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ....core.experiment import RandomExperiment, setting
from ....core.figure import DASHED, Panel, draw_curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, TINTS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....maths.linalg import cosine
from ....training.fitting import at_steps
from ..learning import train_attention
from ..preconditioned import optimal_step, preconditioner, risk
from ..prompts import Prompts, gaussian_inputs, linear_prompts
from ..references import NAME

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COSINE, RISK = "cosine of the trained layer's matrix", "risk"
BEST, PLAIN, TRAINED = "best step", "best plain step", "trained layer"
TARGETS = {
    BEST: {"color": NAME},
    "inverse covariance": {"color": TINTS[2]},
    "plain descent": {"color": COLOURS["null"]},
}
RISKS = {
    PLAIN: {"color": COLOURS["null"]},
    BEST: {"color": NAME, "label": "best preconditioned step"},
    TRAINED: {"color": TINTS[2], "linestyle": "", "markersize": 4, "zorder": 5},
}
BATCH, POINTS = 256, 20


@dataclass(frozen=True)
class Steps(RandomExperiment):
    """Cosines of a trained layer's matrix with three candidates over training, and risks against the number
    of examples.
    """

    spectrum: tuple[float, ...] = setting(
        (2.0, 1.0, 0.5, 0.25, 0.1), gt=0, le=100, help="eigenvalues of the inputs' covariance"
    )
    noise: float = setting(0.0, ge=0, le=100, help="variance of the noise")
    examples: tuple[int, ...] = setting(
        (10, 20, 40), ge=1, le=1000, help="numbers of examples; the first panel has the middle one"
    )
    steps: int = setting(1500, ge=20, le=100_000, help="steps of training")

    name = "in_context.steps"
    sources = (Source("zhang2024trained", "Theorem 4.1", "second-hand"),)

    @classmethod
    def quick(cls) -> "Steps":
        """Two numbers of examples and 100 steps."""
        return cls(examples=(5, 20), steps=100)

    def measure(self) -> Iterator[Measurement]:
        """Yields cosines by step, and risks by number of examples."""
        spectrum, generator = torch.tensor(self.spectrum, dtype=torch.float64), self.generator()
        covariance, eye = torch.diag(spectrum), torch.eye(len(spectrum), dtype=torch.float64)
        shown = self.examples[len(self.examples) // 2]
        stops = sorted({round(x) for x in np.linspace(0, self.steps, POINTS)})
        for N in self.examples:
            best = preconditioner(covariance, N, noise=self.noise)
            plain = optimal_step(covariance, N, noise=self.noise) * eye
            targets = dict(zip(TARGETS, (best, torch.linalg.inv(covariance), eye)))
            curves: dict[int, Tensor] = {}

            def draw(generator: torch.Generator, N: int = N) -> Prompts:
                inputs = gaussian_inputs(spectrum)
                return linear_prompts(BATCH, N, inputs, noise=self.noise, generator=generator)

            def record(step: int, model, curves=curves) -> None:
                curves[step] = model.preconditioner().clone()

            callbacks = (at_steps(stops, record, limit=self.steps),) if shown == N else ()
            model = train_attention(
                draw, len(spectrum), steps=self.steps, generator=generator, callbacks=callbacks
            )
            found = model.preconditioner()
            for step, matrix in {**curves, self.steps: found}.items():
                for name, target in targets.items():
                    at = {"matrix": name, "N": N}
                    yield self.row(COSINE, float(cosine(matrix, target)), at=at, step=step)
            risks = [risk(G, covariance, N, noise=self.noise) for G in (best, plain, found)]
            for name, value in zip((BEST, PLAIN, TRAINED), risks):
                predicted = risks[0] if name == TRAINED else None
                yield self.row(RISK, value, predicted=predicted, at={"matrix": name, "N": N})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the cosines over training, and the risks."""
        figure, (left, right) = axes(1, 2, height=3.0)
        shown = self.examples[len(self.examples) // 2]
        cosines = Panel(
            f"Matrix of the trained layer, N = {shown}",
            COSINE,
            {"N": shown},
            ("matrix", TARGETS),
            legend="lower right",
            axes={"xlabel": "step", "ylabel": "cosine", "ylim": (None, 1.03)},
        )
        draw_curves(left, result, cosines, x="step")
        left.axhline(1.0, color=COLOURS["raw"], linewidth=0.8, linestyle=DASHED, zorder=1)
        look = {"xlabel": "examples N", "ylabel": "mean squared error", "xscale": "log", "ylim": (0, None)}
        risks = Panel("Risk", RISK, lines=("matrix", RISKS), legend="lower left", axes=look)
        draw_curves(right, result, risks, x="N")
        caption(
            figure,
            "Lines on the right are closed forms; so is the risk of the trained layer's matrix. Dashed: 1.",
        )
        return figure
