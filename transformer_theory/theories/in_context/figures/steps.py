"""What one trained layer of linear attention learns: its matrix over training, and its risk against the
number of examples.

Source: :cite:t:`zhang2024trained`; the curves of plain descent and the noise are the library's own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Measurement
from ....core.plotting import COLOURS, axes, caption, line, style, text_figure
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

SOURCE = Source("zhang2024trained", "Theorem 4.1", "second-hand")
COSINE, RISK = "cosine of the trained layer's matrix", "risk"
TARGETS = {
    "best step": COLOURS[NAME],
    "inverse covariance": COLOURS["joma"],
    "plain descent": COLOURS["null"],
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

    name: ClassVar[str] = "in_context.steps"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE,)

    @classmethod
    def quick(cls) -> "Steps":
        """Two numbers of examples and 100 steps."""
        return cls(examples=(5, 20), steps=100)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields cosines by step, and risks by number of examples."""
        spectrum, generator = torch.tensor(self.spectrum, dtype=torch.float64), self.generator()
        covariance, eye = torch.diag(spectrum), torch.eye(len(spectrum), dtype=torch.float64)
        shown = self.examples[len(self.examples) // 2]
        stops = sorted({round(x) for x in np.linspace(0, self.steps, POINTS)})
        curves, risks = [], []
        for N in self.examples:
            best = preconditioner(covariance, N, noise=self.noise)
            plain = optimal_step(covariance, N, noise=self.noise) * eye
            targets = (best, torch.linalg.inv(covariance), eye)

            def draw(generator: torch.Generator, N: int = N) -> Prompts:
                return linear_prompts(
                    BATCH, N, gaussian_inputs(spectrum), noise=self.noise, generator=generator
                )

            def record(step: int, model, targets=targets) -> None:
                curves.append([float(cosine(model.preconditioner(), target)) for target in targets])

            callbacks = (at_steps(stops, record, limit=self.steps),) if shown == N else ()
            model = train_attention(
                draw, len(spectrum), steps=self.steps, generator=generator, callbacks=callbacks
            )
            found = model.preconditioner()
            risks.append([risk(G, covariance, N, noise=self.noise) for G in (best, plain, found)])
            for name, value in zip(TARGETS, (cosine(found, target) for target in targets)):
                yield Measurement(
                    NAME,
                    "figure",
                    COSINE,
                    float(value),
                    at={"matrix": name, "N": N},
                    step=self.steps,
                    source=SOURCE,
                )
            for name, value in zip(("best step", "best plain step", "trained layer"), risks[-1]):
                predicted = risks[-1][0] if name == "trained layer" else None
                yield Measurement(
                    NAME,
                    "figure",
                    RISK,
                    value,
                    predicted=predicted,
                    at={"matrix": name, "N": N},
                    source=SOURCE,
                )
        yield Arrays(
            {
                f"{NAME}/stops": np.array(stops),
                f"{NAME}/cosines": np.array(curves),
                f"{NAME}/risks": np.array(risks),
            }
        )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the cosines over training, and the risks."""
        if f"{NAME}/risks" not in result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        figure, (left, right) = axes(1, 2, height=3.0)
        for (name, colour), values in zip(TARGETS.items(), result.arrays[f"{NAME}/cosines"].T):
            line(left, result.arrays[f"{NAME}/stops"], values, color=colour, label=name)
        left.axhline(1.0, color="#3F4751", linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        shown = self.examples[len(self.examples) // 2]
        left.set(
            title=f"Matrix of the trained layer, N = {shown}",
            xlabel="step",
            ylabel="cosine",
            ylim=(None, 1.03),
        )
        left.legend(loc="lower right")
        best, plain, trained = result.arrays[f"{NAME}/risks"].T
        line(right, self.examples, plain, color=COLOURS["null"], label="best plain step")
        line(right, self.examples, best, color=COLOURS[NAME], label="best preconditioned step")
        right.plot(self.examples, trained, "o", color=COLOURS["joma"], label="trained layer", zorder=5)
        right.set(
            title="Risk", xlabel="examples N", ylabel="mean squared error", xscale="log", ylim=(0, None)
        )
        right.set_xticks(self.examples, [str(N) for N in self.examples])
        right.minorticks_off()
        right.legend(loc="lower left")
        caption(
            figure,
            "Lines on the right are closed forms; so is the risk of the trained layer's matrix. Dashed: 1.",
        )
        return figure
