"""The orbit of the linear MLP: one constant for all tokens, attention on one token after finite time, and a
slower clock.

Source: :cite:t:`tian2024joma`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ....core.experiment import Experiment, setting
from ....core.figure import Panel, curves
from ....core.measurement import Measurement, Null, judge
from ....core.result import Result
from ....core.sources import Source
from ..nonlinear import attention
from ..orbit import blow_up_time, limits, normalised_clock, orbit, progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

JOMA = Source("tian2024joma", "Theorem 2", "second-hand")
SPREAD = "spread of erf(v/√2)/Δ over the tokens"
END = "v at the end"
LEADING = "attention to the leading token"
SLOWDOWN = "slowdown by a common normaliser"
LOWER, ATTENTION = "v", "attention"
AXES = {"xlabel": "time t", "ylabel": "v"}
EVERY = 13  # of the 300 points of the orbit, every 13th is drawn, from the first to the last


@dataclass(frozen=True)
class LinearOrbit(Experiment):
    """The closed form of five tokens with different discriminancy, from zero until a share ``end`` of the
    blow-up time remains.

    The joint flow of attention and MLP follows this orbit (claim joma/linear-orbit). A normaliser that all
    samples share, with z = v²/2 unchanged, gives the same orbit on a slower clock. Softmax attention has a
    normaliser per sample and leaves the orbit (claim joma/softmax-leaves-the-orbit).
    """

    discriminancy: tuple[float, ...] = setting(
        (1.0, 0.8, 0.5, -0.3, 0.1), ge=-1e3, le=1e3, help="Δ of each token, not all zero"
    )
    end: float = setting(1e-4, ge=1e-12, lt=1, help="share of the time to the blow-up that remains")

    name: ClassVar[str] = "joma.linear_orbit"
    sources: ClassVar[tuple[Source, ...]] = (JOMA,)

    @classmethod
    def quick(cls) -> "LinearOrbit":
        return cls(end=1e-2)

    view = curves(
        "time",
        panels=(
            Panel("Exponential attention", LOWER, lines="Δ", legend="", axes=AXES),
            Panel("Common normaliser", LOWER, lines="Δ", legend="", axes=AXES, x="clock"),
            Panel(
                "Attention",
                ATTENTION,
                lines="Δ",
                legend="upper left",
                axes={
                    "xlabel": "$1 - t/t^*$ (exponential clock)",
                    "ylabel": "softmax($v^2/2$)",
                    "xscale": "log",
                },
                x="remaining",
            ),
        ),
        caption="The same orbit in all panels: $\\mathrm{{erf}}(v/\\sqrt{{2}})/\\Delta$ is equal for all "
        "tokens, so the leading one blows up at $t^*$ and the others stop. Softmax attention is not shown: "
        "trained with the MLP it leaves this orbit.",
        size=(8.0, 2.8),
    )

    def measure(self) -> Iterator[Measurement]:
        """Yields the orbit, the final v of the tokens, the spread of both candidates for the constant, and
        attention to the leading token.
        """
        delta = torch.tensor(self.discriminancy, dtype=torch.float64)
        remaining = torch.logspace(0, math.log10(self.end), 300, dtype=torch.float64)
        v = orbit(delta, remaining)
        uniform = torch.full_like(delta, 1 / len(delta))
        clock = normalised_clock(delta, uniform, remaining)
        leading, ends, moving = int(delta.abs().argmax()), limits(delta), delta != 0
        spread, other = (_spread(progress(v[-1] * inside, delta)[moving]) for inside in (1.0, math.sqrt(0.5)))
        yield self.row(
            SPREAD,
            spread,
            predicted=0.0,
            op="<=",
            threshold=1e-9,
            verdict=judge(spread, "<=", 1e-9),
            nulls=(Null("erf(v/2)/Δ, which does not solve the equation", (other,)),),
            side="<=",
            note=f"Largest over smallest, minus 1, at {self.end:g} of t* before the end.",
        )
        tokens = [{"token": token, "Δ": value} for token, value in enumerate(self.discriminancy)]
        for token, at in enumerate(tokens):
            if moving[token] and math.isfinite(limit := float(ends[token])):
                yield self.row(END, float(v[-1, token]), reference=(limit, "limit"), at=at)
        b, last = attention(v), blow_up_time(delta)
        yield self.row(LEADING, float(b[-1, leading]), reference=(1.0, "limit"))
        slowdown = float(clock[-1]) / ((1 - self.end) * last)
        note = (
            "Ratio of the times to reach the same point of the orbit, common over constant normaliser; z = "
            "v²/2 is kept."
        )
        yield self.row(SLOWDOWN, slowdown, note=note)
        for index, (token, at) in product(range(0, len(remaining), EVERY), enumerate(tokens)):
            left, passed = float(remaining[index]), float(clock[index])
            clocks = {"time": (1 - left) * last, "clock": passed}
            yield self.row(LOWER, float(v[index, token]), at=at | clocks)
            yield self.row(ATTENTION, float(b[index, token]), at=at | {"remaining": left})

    def plot(self, result: Result) -> "Figure":
        """Draws the view; in the right panel time runs to the right."""
        figure = super().plot(result)
        figure.axes[2].invert_xaxis()
        return figure


def _spread(values: Tensor) -> float:
    return float(values.max() / values.min()) - 1
