"""Decoders trained on four classes of functions, beside least squares, ridge and nearest neighbours.

Source: :cite:t:`garg2022what`, with larger decoders, 20 dimensions and 500,000 steps.
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
from ..learning import train_on_functions
from ..prompts import FUNCTIONS, function_prompts
from ..references import NAME, answers_of, least_squares, nearest, ridge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = Source("garg2022what", status="own")
ERROR = "mean squared error as a share of that of the answer zero"
LINES = {
    "decoder": COLOURS[NAME],
    "least squares": "#3F4751",
    "ridge": COLOURS["joma"],
    "3 neighbours": COLOURS["crate"],
    "decoder, other context": COLOURS["null"],
}
RIDGE = 0.5  # strength times the number of examples
SHOWN = 2.5  # largest error in the picture


@dataclass(frozen=True)
class Functions(RandomExperiment):
    """Error of trained decoders and of three algorithms against the number of examples, for four classes of
    functions.
    """

    dimensions: int = setting(3, ge=1, le=20, help="coordinates of an input")
    examples: tuple[int, ...] = setting(
        (1, 2, 3, 4, 6, 9, 12, 16, 24), ge=1, le=200, help="numbers of examples; training has up to the last"
    )
    steps: int = setting(600, ge=1, le=1_000_000, help="steps of training")
    tested: int = setting(2000, ge=10, le=100_000, help="prompts per number of examples")

    name: ClassVar[str] = "in_context.functions"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE,)

    @classmethod
    def quick(cls) -> "Functions":
        """Twenty steps and two numbers of examples."""
        return cls(examples=(2, 6), steps=20, tested=200)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields one error per class, method and number of examples."""
        generator, n, d = self.generator(), self.tested, self.dimensions
        arrays = {}
        for kind in FUNCTIONS:
            model = train_on_functions(kind, d=d, N=max(self.examples), steps=self.steps, generator=generator)
            curves = []
            for N in self.examples:
                prompts = function_prompts(kind, n, N, d, generator=generator)
                others = prompts.with_contexts(torch.arange(n).roll(1))
                answers = (
                    answers_of(model, prompts),
                    least_squares(prompts),
                    ridge(prompts, RIDGE / N),
                    nearest(prompts),
                )
                zero = prompts.target.square().mean()
                errors = [
                    float((each - prompts.target).square().mean() / zero)
                    for each in (*answers, answers_of(model, others))
                ]
                curves.append(errors)
                for name, value in zip(LINES, errors):
                    yield Measurement(
                        NAME,
                        "figure",
                        ERROR,
                        value,
                        at={"functions": kind, "method": name, "N": N},
                        n=n,
                        source=SOURCE,
                    )
            arrays[f"{NAME}/{kind}"] = np.array(curves)
        yield Arrays(arrays)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the errors of each class against the number of examples."""
        if f"{NAME}/linear" not in result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        figure, panels = axes(2, 2, height=5.2)
        for ax, kind in zip(np.ravel(panels), FUNCTIONS):
            for (name, colour), values in zip(LINES.items(), result.arrays[f"{NAME}/{kind}"].T):
                line(ax, self.examples, values, color=colour, label=name)
            ax.axhline(1.0, color="#3F4751", linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
            ax.set(
                title=kind.capitalize(),
                xlabel="examples",
                ylabel="error / error of zero",
                ylim=(-0.05, SHOWN),
            )
        handles, names = np.ravel(panels)[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=len(LINES))
        caption(
            figure,
            f"Dashed: the answer zero. Errors above {SHOWN} are cut; least squares has some where N is near "
            "the dimension.",
        )
        return figure
