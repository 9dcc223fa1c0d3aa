"""The decoder's gain under gradient descent against its closed form (Figure 8)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from ....core.experiment import Experiment, setting
from ....core.measurement import Arrays, Measurement, judge
from ....core.plotting import axes, caption, label_ends, shades, style
from ....core.result import Result
from ....core.sources import Source
from ..closed_form import h, h_discrete

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, FIGURE = "scan_snap", Source("tian2023scan", "Fig. 8")
DISTANCE = "largest distance of h to its closed form, in units of 2 eta_Y / M"
PLOTTED_STEPS = 20  # approximate number of dots per curve


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

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the largest distance, and both curves."""
        t = torch.arange(self.steps, dtype=torch.float64)
        for panel, M in enumerate(self.vocab_sizes):
            closed, stepped = [], []
            for eta_y in self.eta_y:
                closed.append(h(t, vocab_size=M, eta_y=eta_y))
                stepped.append(h_discrete(self.steps, vocab_size=M, eta_y=eta_y))
                gap = (stepped[-1] - closed[-1]).abs()
                value = float(gap.max()) * M / (2 * eta_y)
                yield Measurement(
                    NAME,
                    "figure",
                    DISTANCE,
                    value,
                    op="<=",
                    threshold=1.0,
                    verdict=judge(value, "<=", 1.0),
                    source=FIGURE,
                    at={"setting": f"M = {M}, eta_Y = {eta_y:g}"},
                    note=f"relative distance at the end {float(gap[-1] / closed[-1][-1]):.1e}",
                )
            arrays = {"closed": torch.stack(closed).numpy(), "stepped": torch.stack(stepped).numpy()}
            yield Arrays({f"{NAME}/{key}_{panel}": value for key, value in arrays.items()})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots M h over the steps (closed form: curves, some steps of descent: dots), and below it the
        distance of h.
        """
        settings = result.settings
        figure, panels = axes(2, len(settings["vocab_sizes"]), height=4.4)
        above, below = panels[: len(panels) // 2], panels[len(panels) // 2 :]
        for panel, M in enumerate(settings["vocab_sizes"]):
            closed, stepped = (result.arrays[f"{NAME}/{key}_{panel}"] for key in ("closed", "stepped"))
            steps = range(closed.shape[1])
            stride = max(1, closed.shape[1] // PLOTTED_STEPS)
            for k, (eta_y, tint) in enumerate(zip(settings["eta_y"], shades(len(settings["eta_y"])))):
                above[panel].plot(steps, M * closed[k], color=tint, linewidth=1.2, label=f"{eta_y:g}")
                above[panel].plot(steps[::stride], M * stepped[k][::stride], ".", color=tint, markersize=4)
                below[panel].plot(
                    steps,
                    abs(stepped[k] - closed[k]) * M / (2 * eta_y),
                    color=tint,
                    linewidth=1.2,
                    label=f"{eta_y:g}",
                )
            above[panel].set_title(f"$M h(t)$, $M$ = {M}")
            below[panel].set_title("Distance of $h$, in units of $2\\eta_Y / M$")
            below[panel].set_xlabel("step")
            label_ends(above[panel])
            label_ends(below[panel])
        caption(
            figure,
            "Labels at the right: $\\eta_Y$. Lines: closed form; dots: every few steps of gradient descent.",
        )
        return figure
