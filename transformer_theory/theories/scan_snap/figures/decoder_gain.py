"""The decoder's gain under gradient descent against its closed form (Figure 8)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from ....core.experiment import Experiment, setting
from ....core.figure import Panel, draw_curves
from ....core.measurement import Measurement, judge
from ....core.plotting import axes, caption, label_ends, style
from ....core.result import Result
from ....core.sources import Source
from ..closed_form import h, h_discrete

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE = Source("tian2023scan", "Fig. 8")
DISTANCE = "largest distance of h to its closed form, in units of 2 eta_Y / M"
STEPPED, CLOSED_FORM = "M h under gradient descent", "M h in closed form"
GAP = "distance of h to its closed form, in units of 2 eta_Y / M"
PLOTTED_STEPS = 40  # approximate number of dots per curve


@dataclass(frozen=True)
class DecoderGain(Experiment):
    """Distance between the recursion of h with finite steps and the root of the continuous equation, over the
    first steps.
    """

    vocab_sizes: tuple[int, ...] = setting((50, 1000), ge=2, help="vocabulary sizes M, one per panel")
    eta_y: tuple[float, ...] = setting(
        (0.1, 0.2, 0.5, 1.0, 2.0, 4.0), ge=1e-3, le=10, help="learning rates of the decoder"
    )
    steps: int = setting(80, ge=2, le=10**6, help="number of steps")

    name: ClassVar[str] = "scan_snap.decoder_gain"
    sources: ClassVar[tuple[Source, ...]] = (FIGURE,)

    def measure(self) -> Iterator[Measurement]:
        """Yields the largest distance, and at some steps both curves and their distance."""
        t, plotted = (
            torch.arange(self.steps, dtype=torch.float64),
            range(0, self.steps, max(1, self.steps // PLOTTED_STEPS)),
        )
        for M in self.vocab_sizes:
            for eta_y in self.eta_y:
                closed = h(t, vocab_size=M, eta_y=eta_y)
                stepped = h_discrete(self.steps, vocab_size=M, eta_y=eta_y)
                gap, at = (stepped - closed).abs(), {"M": M, "eta_Y": eta_y}
                value = float(gap.max()) * M / (2 * eta_y)
                yield self.row(
                    DISTANCE,
                    value,
                    op="<=",
                    threshold=1.0,
                    verdict=judge(value, "<=", 1.0),
                    at=at,
                    note=f"relative distance at the end {float(gap[-1] / closed[-1]):.1e}",
                )
                curves = {STEPPED: M * stepped, CLOSED_FORM: M * closed, GAP: gap * M / (2 * eta_y)}
                for quantity, curve in curves.items():
                    for step in plotted:
                        yield self.row(quantity, float(curve[step]), at=at, step=step)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots M h over the steps (closed form: curves, some steps of descent: dots), and below it the
        distance of h.
        """
        count = len(self.vocab_sizes)
        figure, panels = axes(2, count, height=4.4)
        looks = {rate: {"label": f"{rate:g}", "linewidth": 1.2} for rate in self.eta_y}
        dots = {rate: {"label": "_", "linestyle": "", "marker": ".", "markersize": 4} for rate in self.eta_y}
        for M, above, below in zip(self.vocab_sizes, panels[:count], panels[count:]):
            lines, at = ("eta_Y", looks), {"M": M}
            closed = Panel(f"$M h(t)$, $M$ = {M}", CLOSED_FORM, at, lines, legend="")
            draw_curves(above, result, closed, Panel("", STEPPED, at, ("eta_Y", dots)), x="step")
            title = "Distance of $h$, in units of $2\\eta_Y / M$"
            draw_curves(
                below, result, Panel(title, GAP, at, lines, legend="", axes={"xlabel": "step"}), x="step"
            )
            label_ends(above)
            label_ends(below)
        caption(
            figure,
            "Labels at the right: $\\eta_Y$. Lines: closed form; dots: every few steps of gradient descent.",
        )
        return figure
