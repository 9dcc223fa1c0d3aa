"""The growth factor of relative gains (Figure 3); the axis of the published figure does not fit its formula."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.experiment import Experiment, setting
from ....core.measurement import Arrays, Measurement, judge
from ....core.plotting import axes, caption, label_ends, shades, style
from ....core.result import Result
from ....core.sources import Source
from ..closed_form import Gamma, printed_B, snapping_time
from ..families import with_overlap
from ..flow import symmetric_lemma4_flow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, PAPER = "scan_snap", "tian2023scan"
CHI = "chi of the likeliest distinct token, Lemma 4's flow"
PANELS = (("chi", "$\\chi$, Lemma 4"), ("printed", "$\\exp(2B)$, as printed"), ("Gamma", "$\\Gamma$"))


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

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields chi at the end, its bounds exp(2 B / K) and exp(2 B), and Gamma."""
        t = torch.linspace(0, self.end, 141, dtype=torch.float64)[1:]
        family = with_overlap(
            self.classes,
            vocab_size=self.vocab_size,
            weights=torch.linspace(0.1, 1, 10, dtype=torch.float64),
            overlap=self.overlap,
        )
        constant = 1 / ((self.classes - 1) * self.overlap**2)
        collected: dict[str, list[np.ndarray]] = {"chi": [], "bound": [], "printed": [], "Gamma": []}
        starts = []
        for eta_y in self.eta_y:
            rates = {"classes": self.classes, "vocab_size": self.vocab_size, "eta_y": eta_y}
            starts.append(snapping_time(**rates))
            B = printed_B(t, eta_z=self.eta_z, constant=constant, **rates) - np.log(constant) / 4
            flow = symmetric_lemma4_flow(family, t, eta_y=eta_y, eta_z=self.eta_z)
            curves = {
                "chi": torch.exp(2 * flow.distinct[:, -1]),
                "bound": torch.exp(2 * B / self.classes),
                "printed": torch.exp(2 * B),
                "Gamma": Gamma(t, eta_z=self.eta_z, **rates),
            }
            for key, curve in curves.items():
                collected[key].append(curve.numpy())
            end = {key: float(curve[-1]) for key, curve in curves.items()}
            yield Measurement(
                NAME,
                "figure",
                CHI,
                end["chi"],
                op="<=",
                threshold=end["bound"],
                verdict=judge(end["chi"], "<=", end["bound"], covered=family.weak_overlap().holds),
                source=Source(PAPER, "Thm. 3"),
                at={"setting": f"eta_Y = {eta_y:g}"},
                note=f"the threshold is exp(2 B/K); exp(2 B) = {end['printed']:.2f}, Gamma = "
                f"{end['Gamma']:.1f}",
            )
        yield Arrays(
            {f"{NAME}/times": t.numpy(), f"{NAME}/t0": np.array(starts)}
            | {f"{NAME}/{key}": np.stack(curves) for key, curves in collected.items()}
        )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots chi with its bound, the printed bound, and Gamma; short marks at the top show t0 of each
        rate.
        """
        a, t, rates = result.arrays, result.arrays[f"{NAME}/times"], result.settings["eta_y"]
        figure, panels = axes(1, 3, width=7.4, height=2.9)
        for ax, (key, title) in zip(panels, PANELS):
            for k, (eta_y, tint) in enumerate(zip(rates, shades(len(rates)))):
                ax.plot(t, a[f"{NAME}/{key}"][k], color=tint, label=f"{eta_y:g}")
                if key == "chi":
                    ax.plot(t, a[f"{NAME}/bound"][k], color=tint, linewidth=0.9, linestyle=(0, (4, 3)))
                if a[f"{NAME}/t0"][k] <= t[-1]:
                    ax.plot(
                        2 * [a[f"{NAME}/t0"][k]], [0.94, 1.0], color=tint, transform=ax.get_xaxis_transform()
                    )
            ax.set_title(title)
            ax.set_xlabel("step")
            if key == "chi":  # the curves end too close together for labels
                ax.legend(title="$\\eta_Y$", loc="center right", bbox_to_anchor=(1.0, 0.56), ncols=2)
            else:
                label_ends(ax)
        caption(
            figure,
            "Labels at the right: $\\eta_Y$. Dashed: the bound $\\exp(2B/K)$. Marks at the top: $t_0$. The "
            "published figure shows $\\chi$ on an axis up to 600 and states neither $C_0$ nor $P(l|n)$. "
            "Neither $\\chi$ nor its bounds reach 600; $\\Gamma$ does.",
        )
        return figure
