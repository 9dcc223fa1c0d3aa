"""The growth of B (Theorem 4, Figure 9). For fixed K and M, B at the snapping time depends only on the ratio
of the rates.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.experiment import Experiment, setting
from ....core.measurement import Arrays, Measurement, judge
from ....core.plotting import COLOURS, axes, caption, shades, style
from ....core.result import Result
from ....core.sources import Source
from ..closed_form import gamma, printed_B, snapping_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, FIGURE = "scan_snap", Source("tian2023scan", "Fig. 9")
B_AT_END, B_SPREAD = "B at the last step", "largest minus smallest B(t0) over eta_Z"
SPREAD_ATOL = 1e-12


@dataclass(frozen=True)
class BGrowth(Experiment):
    """B(t) in closed form for several learning rates of attention; each panel has a fixed ratio of the rates
    of decoder and attention.

    The published figure states neither C_0 nor K; with C_0 = 1 and K = 1 the curves fill its axes (B up to
    0.8 and 1.6).

    Raises:
        ValueError: a setting is out of range, or ``vocab_sizes``, ``ratios`` and ``ends`` have different
            lengths.
    """

    vocab_sizes: tuple[int, ...] = setting((100, 10_000), ge=3, help="vocabulary M, one per panel")
    ratios: tuple[float, ...] = setting((10.0, 1.0), ge=1e-3, le=1e3, help="eta_Y / eta_Z, one per panel")
    ends: tuple[float, ...] = setting((5.0, 50.0), ge=1e-3, le=1e6, help="last step, one per panel")
    eta_z: tuple[float, ...] = setting(
        (0.5, 1.0, 2.0, 4.0, 8.0), ge=1e-3, le=1e3, help="learning rates of attention"
    )
    classes: int = setting(1, ge=1, help="number K of classes")
    constant: float = setting(1.0, ge=1e-6, le=1e6, help="C_0, the constant of Theorem 4")

    name: ClassVar[str] = "scan_snap.b_growth"
    sources: ClassVar[tuple[Source, ...]] = (FIGURE,)

    @classmethod
    def quick(cls) -> "BGrowth":
        return cls(eta_z=(0.5, 8.0))

    def __post_init__(self):
        super().__post_init__()
        lengths = [len(self.vocab_sizes), len(self.ratios), len(self.ends)]
        if len(set(lengths)) > 1:
            raise ValueError(
                f"vocab_sizes, ratios and ends must have one entry per panel each, got lengths {lengths}; "
                "make them equal"
            )

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields B at the end of each curve, with a numerical integral of gamma, and the spread of B(t0) over
        the learning rates.
        """
        for panel, (M, ratio, end) in enumerate(zip(self.vocab_sizes, self.ratios, self.ends)):
            times = torch.linspace(0, end, 201, dtype=torch.float64)
            curves, snapping_times, at_t0 = [], [], []
            for eta_z in self.eta_z:
                rates = {"classes": self.classes, "vocab_size": M, "eta_y": ratio * eta_z}
                curves.append(printed_B(times, eta_z=eta_z, constant=self.constant, **rates))
                snapping_times.append(snapping_time(**rates))
                t0 = torch.tensor([snapping_times[-1]], dtype=torch.float64)
                at_t0.append(float(printed_B(t0, eta_z=eta_z, constant=self.constant, **rates)[0]))
                yield self._end(eta_z, end, rates, float(curves[-1][-1]))
            spread = max(at_t0) - min(at_t0)
            yield Measurement(
                NAME,
                "figure",
                B_SPREAD,
                spread,
                predicted=0.0,
                op="<=",
                threshold=SPREAD_ATOL,
                verdict=judge(spread, "<=", SPREAD_ATOL),
                source=FIGURE,
                at={"setting": f"M = {M}, eta_Y / eta_Z = {ratio:g}"},
                note=f"B(t0) = {at_t0[0]:.4f} depends on K, M and the ratio only; t0 = 2 K ln M / eta_Y",
            )
            arrays = {
                "times": times.numpy(),
                "b": torch.stack(curves).numpy(),
                "t0": np.array(snapping_times),
                "b_t0": np.array(at_t0),
            }
            yield Arrays({f"{NAME}/{key}_{panel}": value for key, value in arrays.items()})

    def _end(self, eta_z: float, end: float, rates: dict, value: float) -> Measurement:
        from scipy.integrate import quad

        def rate(t: float) -> float:
            return float(gamma(torch.tensor([t], dtype=torch.float64), **rates)[0])

        # The printed B is ln(C_0 + 4 Gamma) / 4, where Gamma is eta_Z times the integral of gamma.
        big_gamma = eta_z * quad(rate, 0, end, epsabs=0, epsrel=1e-10, limit=200)[0]
        return Measurement(
            NAME,
            "figure",
            B_AT_END,
            value,
            predicted=float(np.log(self.constant + 4 * big_gamma) / 4),
            basis="recomputed",
            source=FIGURE,
            at={"setting": f"M = {rates['vocab_size']}, eta_Z = {eta_z:g}, t = {end:g}"},
            note="predicted: gamma integrated numerically instead of in closed form",
        )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots B over the steps, one curve per learning rate. A dot marks t0; all dots have the same height."""
        settings = result.settings
        figure, panels = axes(1, len(settings["ends"]), height=2.8)
        for panel, ax in enumerate(panels):
            a = {key: result.arrays[f"{NAME}/{key}_{panel}"] for key in ("times", "b", "t0", "b_t0")}
            for k, (eta_z, curve, tint) in enumerate(
                zip(settings["eta_z"], a["b"], shades(len(settings["eta_z"])))
            ):
                ax.plot(a["times"], curve, color=tint, label=f"{eta_z:g}")
                if a["t0"][k] <= a["times"][-1]:
                    ax.plot(a["t0"][k], a["b_t0"][k], "o", color=tint, markersize=4)
            ax.axhline(a["b_t0"][0], color=COLOURS["null"], linewidth=0.9, linestyle=(0, (4, 3)))
            ax.set_ylim(bottom=0)
            ax.set_title(
                f"$B(t)$, $M$ = {settings['vocab_sizes'][panel]}, $\\eta_Y/\\eta_Z$ = "
                f"{settings['ratios'][panel]:g}"
            )
            ax.set_xlabel("step")
            ax.legend(title="$\\eta_Z$", loc="lower right")  # the curves end too close together for labels
        caption(figure, "Dots: the snapping time $t_0$. Dashed: B at $t_0$, the same for all.")
        return figure
