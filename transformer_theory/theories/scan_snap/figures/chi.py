"""The growth factor of relative gains (Figure 3); the axis of the published figure does not fit
its formula.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.experiment import Experiment, setting
from ....core.figure import Panel, draw_curves
from ....core.measurement import Measurement, judge
from ....core.plotting import axes, caption, shades, style
from ....core.result import Result
from ....core.sources import Source
from ..closed_form import Gamma, printed_B, snapping_time
from ..families import with_overlap
from ..flow import symmetric_lemma4_flow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER = "tian2023scan"
CHI = "chi of the likeliest distinct token, Lemma 4's flow"
BOUND, PRINTED, GAMMA = "exp(2 B / K)", "exp(2 B)", "Gamma"
PANELS = {CHI: "$\\chi$, Lemma 4", PRINTED: "$\\exp(2B)$, as printed", GAMMA: "$\\Gamma$"}


@dataclass(frozen=True)
class Chi(Experiment):
    """The growth factor chi of relative gains for several learning rates of the decoder, with its bounds.

    The published figure shows chi_l(t) on an axis up to 600 and states neither C_0 nor P(l | n). With C_0 = 1
    the printed bound exp(2 B) reaches at most 45, whereas Gamma would fill the axis. With the class's share
    of the steps the bound is exp(2 B / K), and the measured chi of Lemma 4's flow lies below it.
    """

    classes: int = setting(10, ge=2, help="number K of classes")
    vocab_size: int = setting(1000, ge=2, help="number M of next tokens, at least K")
    eta_y: tuple[float, ...] = setting(
        (0.5, 1.0, 2.0, 5.0), ge=1e-2, le=1e2, help="learning rates of the decoder"
    )
    eta_z: float = setting(0.5, ge=1e-4, le=1e2, help="learning rate of attention")
    end: float = setting(700.0, ge=1.0, le=1e6, help="last step")
    overlap: float = setting(
        1 / 3, ge=1e-4, le=0.99, help="overlap E_0 of the classes; (K - 1) E_0^2 = 1 corresponds to C_0 = 1"
    )

    name: ClassVar[str] = "scan_snap.chi"
    sources: ClassVar[tuple[Source, ...]] = (Source(PAPER, "Fig. 3"),)

    def measure(self) -> Iterator[Measurement]:
        """Yields chi, its bounds exp(2 B / K) and exp(2 B), and Gamma over time, and chi with its bound at
        the end.
        """
        t = torch.linspace(0, self.end, 141, dtype=torch.float64)[1:]
        weights = torch.linspace(0.1, 1, 10, dtype=torch.float64)
        family = with_overlap(self.classes, vocab_size=self.vocab_size, weights=weights, overlap=self.overlap)
        constant = 1 / ((self.classes - 1) * self.overlap**2)
        for eta_y in self.eta_y:
            rates = {"classes": self.classes, "vocab_size": self.vocab_size, "eta_y": eta_y}
            B = printed_B(t, eta_z=self.eta_z, constant=constant, **rates) - np.log(constant) / 4
            flow = symmetric_lemma4_flow(family, t, eta_y=eta_y, eta_z=self.eta_z)
            curves = {
                CHI: torch.exp(2 * flow.distinct[:, -1]),
                BOUND: torch.exp(2 * B / self.classes),
                PRINTED: torch.exp(2 * B),
                GAMMA: Gamma(t, eta_z=self.eta_z, **rates),
            }
            for quantity, curve in curves.items():
                for time, value in zip(t.tolist()[1::2], curve.tolist()[1::2]):
                    if quantity != CHI or time < self.end:
                        yield self.row(quantity, value, at={"eta_Y": eta_y, "t": time})
            end, bound, printed, big_gamma = (float(curve[-1]) for curve in curves.values())
            yield self.row(
                CHI,
                end,
                op="<=",
                threshold=bound,
                verdict=judge(end, "<=", bound, covered=family.weak_overlap().holds),
                source=Source(PAPER, "Thm. 3"),
                at={"eta_Y": eta_y, "t": self.end},
                note=f"the threshold is exp(2 B/K); exp(2 B) = {printed:.2f}, Gamma = {big_gamma:.1f}",
            )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots chi with its bound, the printed bound, and Gamma; short marks at the top show t0 of each
        rate.
        """
        figure, panels = axes(1, 3, width=7.4, height=2.9)
        dashed = {rate: {"linewidth": 0.9, "linestyle": (0, (4, 3)), "label": "_"} for rate in self.eta_y}
        labels = {rate: {"label": f"{rate:g}"} for rate in self.eta_y}
        for ax, (quantity, title) in zip(panels, PANELS.items()):
            bound = [Panel("", BOUND, lines=("eta_Y", dashed))] if quantity == CHI else []
            legend = "" if quantity == CHI else "ends"  # the curves of chi end too close together for labels
            panel = Panel(title, quantity, lines=("eta_Y", labels), legend=legend, axes={"xlabel": "step"})
            draw_curves(ax, result, panel, *bound, x="t")
            for eta_y, tint in zip(self.eta_y, shades(len(self.eta_y))):
                t0 = snapping_time(classes=self.classes, vocab_size=self.vocab_size, eta_y=eta_y)
                if t0 <= self.end:
                    ax.plot([t0, t0], [0.94, 1.0], color=tint, transform=ax.get_xaxis_transform())
        panels[0].legend(title="$\\eta_Y$", loc="center right", bbox_to_anchor=(1.0, 0.56), ncols=2)
        caption(
            figure,
            "Labels at the right: $\\eta_Y$. Dashed: the bound $\\exp(2B/K)$. Marks at the top: $t_0$. The "
            "published figure shows $\\chi$ on an axis up to 600 and states neither $C_0$ nor $P(l|n)$. "
            "Neither $\\chi$ nor its bounds reach 600; $\\Gamma$ does.",
        )
        return figure
