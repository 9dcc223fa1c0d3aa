"""Decoders trained on four classes of functions, beside least squares, ridge and nearest neighbours.

Source: :cite:t:`garg2022what`, with larger decoders, 20 dimensions and 500,000 steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ....core.experiment import RandomExperiment, setting
from ....core.figure import DASHED, Panel, draw_curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, TINTS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ..learning import train_on_functions
from ..prompts import FUNCTIONS, function_prompts
from ..references import NAME, answers_of, least_squares, nearest, ridge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ERROR = "mean squared error as a share of that of the answer zero"
DECODER, OTHER = "decoder", "decoder, other context"
LINES = {
    DECODER: {"color": NAME},
    "least squares": {"color": COLOURS["raw"]},
    "ridge": {"color": TINTS[2]},
    "3 neighbours": {"color": TINTS[1]},
    OTHER: {"color": COLOURS["null"]},
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

    name = "in_context.functions"
    sources = (Source("garg2022what", status="own"),)

    @classmethod
    def quick(cls) -> "Functions":
        """Twenty steps and two numbers of examples."""
        return cls(examples=(2, 6), steps=20, tested=200)

    def measure(self) -> Iterator[Measurement]:
        """Yields one error per class, method and number of examples."""
        generator, n, d = self.generator(), self.tested, self.dimensions
        for kind in FUNCTIONS:
            model = train_on_functions(kind, d=d, N=max(self.examples), steps=self.steps, generator=generator)
            for N in self.examples:
                prompts = function_prompts(kind, n, N, d, generator=generator)
                others = prompts.with_contexts(torch.arange(n).roll(1))
                answers = {
                    DECODER: answers_of(model, prompts),
                    "least squares": least_squares(prompts),
                    "ridge": ridge(prompts, RIDGE / N),
                    "3 neighbours": nearest(prompts),
                    OTHER: answers_of(model, others),
                }
                zero = prompts.target.square().mean()
                for name, answer in answers.items():
                    error = float((answer - prompts.target).square().mean() / zero)
                    yield self.row(ERROR, error, at={"functions": kind, "method": name, "N": N}, n=n)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the errors of each class against the number of examples."""
        figure, panels = axes(2, 2, height=5.2)
        looks = {"xlabel": "examples", "ylabel": "error / error of zero", "ylim": (-0.05, SHOWN)}
        for ax, kind in zip(panels, FUNCTIONS):
            lines = ("method", LINES)
            panel = Panel(kind.capitalize(), ERROR, {"functions": kind}, lines, legend="", axes=looks)
            draw_curves(ax, result, panel, x="N")
            ax.axhline(1.0, color=COLOURS["raw"], linewidth=0.8, linestyle=DASHED, zorder=1)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(LINES))
        caption(
            figure,
            f"Dashed: the answer zero. Errors above {SHOWN} are cut; least squares has some where N is near "
            "the dimension.",
        )
        return figure
