"""The growth of B (Theorem 4, Figure 9). For fixed K and M, B at the snapping time depends only on the ratio
of the rates.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.experiment import Experiment, setting
from ....core.figure import Panel, draw_curves
from ....core.measurement import Measurement, judge
from ....core.plotting import COLOURS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ..closed_form import gamma, printed_B, snapping_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE = Source("tian2023scan", "Fig. 9")
B_CURVE, B_SNAPPED = "B", "B at the snapping time t0"
B_AT_END, B_SPREAD = "B at the last step", "largest minus smallest B(t0) over eta_Z"
POINTS = 101  # points of a curve
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

    def measure(self) -> Iterator[Measurement]:
        """Yields B over time, at the end with a numerical integral of gamma, and at t0 with its spread over
        the learning rates.
        """
        for M, ratio, end in zip(self.vocab_sizes, self.ratios, self.ends):
            times, at, at_t0 = (
                torch.linspace(0, end, POINTS, dtype=torch.float64),
                {"M": M, "ratio": ratio},
                [],
            )
            for eta_z in self.eta_z:
                rates = {"classes": self.classes, "vocab_size": M, "eta_y": ratio * eta_z}
                t0 = snapping_time(**rates)
                found = torch.cat([times, torch.tensor([t0], dtype=torch.float64)])
                *curve, snapped = printed_B(found, eta_z=eta_z, constant=self.constant, **rates).tolist()
                here = at | {"eta_Z": eta_z}
                for t, value in zip(times.tolist()[:-1], curve):
                    yield self.row(B_CURVE, value, at=here | {"t": t})
                yield self.row(B_CURVE, curve[-1], at=here | {"t": end})
                yield self.row(B_SNAPPED, snapped, at=here | {"t": t0})
                yield self._end(here | {"t": end}, rates, curve[-1])
                at_t0.append(snapped)
            spread = max(at_t0) - min(at_t0)
            yield self.row(
                B_SPREAD,
                spread,
                predicted=0.0,
                op="<=",
                threshold=SPREAD_ATOL,
                verdict=judge(spread, "<=", SPREAD_ATOL),
                at=at,
                note=f"B(t0) = {at_t0[0]:.4f} depends on K, M and the ratio only; t0 = 2 K ln M / eta_Y",
            )

    def _end(self, at: dict[str, float], rates: dict, value: float) -> Measurement:
        from scipy.integrate import quad

        def rate(t: float) -> float:
            return float(gamma(torch.tensor([t], dtype=torch.float64), **rates)[0])

        # The printed B is ln(C_0 + 4 Gamma) / 4, where Gamma is eta_Z times the integral of gamma.
        big_gamma = at["eta_Z"] * quad(rate, 0, at["t"], epsabs=0, epsrel=1e-10, limit=200)[0]
        reference = float(np.log(self.constant + 4 * big_gamma) / 4), "recomputed"
        note = "predicted: gamma integrated numerically instead of in closed form"
        return self.row(B_AT_END, value, reference=reference, at=at, note=note)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots B over the steps, one curve per learning rate. A dot marks t0; all dots have the
        same height.
        """
        figure, panels = axes(1, len(self.ends), height=2.8)
        for ax, M, ratio, end in zip(panels, self.vocab_sizes, self.ratios, self.ends):
            at, title = {"M": M, "ratio": ratio}, f"$B(t)$, $M$ = {M}, $\\eta_Y/\\eta_Z$ = {ratio:g}"
            draw_curves(
                ax, result, Panel(title, B_CURVE, at, "eta_Z", legend="", axes={"xlabel": "step"}), x="t"
            )
            dots = {
                rate: {"linestyle": "", "marker": "o", "markersize": 4, "label": "_"} for rate in self.eta_z
            }
            draw_curves(ax, result, Panel("", B_SNAPPED, at, ("eta_Z", dots), legend=""), x="t")
            level = result.select(quantity=B_SNAPPED, at=at)[0].value
            ax.axhline(level, color=COLOURS["null"], linewidth=0.9, linestyle=(0, (4, 3)))
            ax.set(ylim=(0, None), xlim=(-0.05 * end, 1.05 * end))
            ax.legend([f"{rate:g}" for rate in self.eta_z], title="$\\eta_Z$", loc="lower right")
        caption(figure, "Dots: the snapping time $t_0$. Dashed: B at $t_0$, the same for all.")
        return figure
