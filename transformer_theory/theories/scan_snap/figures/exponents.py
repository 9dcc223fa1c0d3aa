"""Local exponents of the growth of attention over a hundred decades of time, in closed form and in
the flows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from ....core.experiment import Experiment, setting
from ....core.figure import Panel, curves
from ....core.measurement import Measurement, judge
from ....core.plotting import COLOURS, style
from ....core.result import Result
from ....core.sources import Source
from ..closed_form import scanning_time
from ..families import with_overlap
from ..flow import CLOSED, EXACT, LEMMA4, symmetric_exact_flow, symmetric_lemma4_flow
from ..growth import growth_exponents, longest_logarithmic_growth
from ..plots import DYNAMICS_COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THEOREM = Source("tian2023scan", "Thm. 4")
POWER, DECADES = "dln B/dln t", "decades of logarithmic growth"
TIMES = (0.01, 0.1, 0.5, 5.0, 1e2, 1e6, 1e20, 1e100)  # times at which the power is reported, in units of t0'
# until this time, the smallest power that counts as close to its limit 2
QUADRATIC_UNTIL, MIN_POWER = 0.1, 1.95
SLOPE = "d|z|/dln ln(M eta_Y t/K)"
DENSE_DECADES = 6  # decades from the first point of the curves with several points each
LINES = (
    "dynamics",
    {
        CLOSED: {"color": DYNAMICS_COLOURS[CLOSED], "linestyle": "--", "zorder": 3},
        LEMMA4: {"color": DYNAMICS_COLOURS[LEMMA4], "zorder": 2},
        EXACT: {"color": DYNAMICS_COLOURS[EXACT], "zorder": 2},
    },
)


@dataclass(frozen=True)
class Exponents(Experiment):
    """Local exponents of t, ln t and ln ln t in the fall of the common token's logit, and the times of the
    theorem's two regimes.
    """

    classes: int = setting(2, ge=2, help="number K of classes")
    vocab_size: int = setting(1000, ge=2, help="number M of next tokens, at least K")
    overlap: float = setting(0.3, ge=1e-4, le=0.99, help="overlap E_0 of the classes")
    eta_z: float = setting(0.01, ge=1e-4, le=1e2, help="learning rate of attention; the decoder's is 1")
    decades: float = setting(100.0, ge=1.0, le=280.0, help="the curves end at 10 to this power times t0'")

    name: ClassVar[str] = "scan_snap.exponents"
    sources: ClassVar[tuple[Source, ...]] = (THEOREM,)

    @classmethod
    def quick(cls) -> "Exponents":
        return cls(decades=12.0)

    view = curves(
        "t",
        panels=(
            Panel(
                "Power: $\\mathrm{d}\\,\\ln |z| / \\mathrm{d}\\,\\ln t$",
                POWER,
                lines=LINES,
                legend="upper right",
            ),
            Panel(
                "Slope: $\\mathrm{d} |z| / \\mathrm{d}\\,\\ln \\ln (M \\eta_Y t / K)$",
                SLOPE,
                lines=LINES,
                legend="",
            ),
        ),
        xlabel="$t / t_0'$",
        log="x",
        caption="z: the common token's logit. Grey lines: limits of the closed form, 2 for small t (left) "
        "and 1/2 for large t (right).",
        size=(7.0, 3.0),
    )

    def measure(self) -> Iterator[Measurement]:
        """Yields exponents at selected times in closed form, and curves of the closed form, Lemma 4's flow
        and the exact flow.
        """
        K, M = self.classes, self.vocab_size
        t0 = scanning_time(classes=K, vocab_size=M, eta_y=1.0)
        exponents_at = partial(
            growth_exponents, classes=K, vocab_size=M, eta_y=1.0, eta_z=self.eta_z, overlap=self.overlap
        )
        for time in (time for time in TIMES if time <= 10**self.decades):
            growth = exponents_at(torch.tensor([time * t0], dtype=torch.float64))
            power, columns = float(growth.power[0]), {}
            if time <= QUADRATIC_UNTIL:
                verdict = judge(power, ">=", MIN_POWER)
                columns = {
                    "predicted": 2.0,
                    "basis": "limit",
                    "op": ">=",
                    "threshold": MIN_POWER,
                    "verdict": verdict,
                }
            note = (
                f"dB/dln t = {float(growth.per_log[0]):.4f}, dB/dln ln(M eta_Y t/K) = "
                f"{float(growth.per_loglog[0]):.4f}"
            )
            yield self.row(POWER, power, at={"dynamics": CLOSED, "t": time}, note=note, **columns)
        length = longest_logarithmic_growth(
            classes=K, vocab_size=M, eta_y=1.0, eta_z=self.eta_z, overlap=self.overlap
        )
        note = "dB/dln t within 10 % of 1/2, in closed form"
        yield self.row(DECADES, length, note=note)
        t = t0 * torch.logspace(-2, self.decades, int(12 * (self.decades + 2)), dtype=torch.float64)
        family = with_overlap(
            K, vocab_size=M, weights=torch.linspace(0.1, 1, 10, dtype=torch.float64), overlap=self.overlap
        )
        closed = exponents_at(t)
        inner = (M * t / K).log().numpy()
        found = {CLOSED: (closed.power.numpy(), closed.per_loglog.numpy())}
        for dynamics, flow in ((LEMMA4, symmetric_lemma4_flow), (EXACT, symmetric_exact_flow)):
            fall = -flow(family, t, eta_y=1.0, eta_z=self.eta_z, tolerance=1e-11).common[:, 0].numpy()
            # Numerical derivative on the logarithmic grid; then d|z|/dln ln u = (dln|z|/dln t) |z| ln u, with
            # u = M t / K.
            power = np.gradient(np.log(fall), t.log().numpy())
            found[dynamics] = (power, power * fall * inner)
        # three points per decade at first, then one for two decades
        plotted = [
            k for k in range(len(t)) if k % (3 if k < 12 * DENSE_DECADES else 24) == 0 or k == len(t) - 1
        ]
        for dynamics, (power, slope) in found.items():
            for k in plotted:
                at = {"dynamics": dynamics, "t": float(t[k] / t0)}
                yield self.row(POWER, float(power[k]), at=at)
                yield self.row(SLOPE, float(slope[k]), at=at)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Adds the limits of the closed form, 2 for small t and 1/2 for large t."""
        figure = super().plot(result)
        for ax, limit in zip(figure.axes, (2, 0.5)):
            ax.axhline(limit, color=COLOURS["null"], linewidth=0.9)
            ax.locator_params(axis="x", numticks=6)
        figure.axes[0].set_yscale("log")
        return figure
