"""The orbit of the linear MLP: one constant for all tokens, attention on one token after finite time, and a
slower clock.

Source: :cite:t:`tian2024joma`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ....core.experiment import Experiment, setting
from ....core.measurement import Arrays, Measurement, Null, judge
from ....core.plotting import axes, caption, label_ends, line, shades, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ..nonlinear import attention
from ..orbit import blow_up_time, limits, normalised_clock, orbit, progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, JOMA = "joma", Source("tian2024joma", "Theorem 2", "second-hand")
SPREAD = "spread of erf(v/√2)/Δ over the tokens"
END = "v at the end"
LEADING = "attention to the leading token"
SLOWDOWN = "slowdown by a common normaliser"


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

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the final v of the tokens, the spread of both candidates for the constant, and attention to
        the leading token.
        """
        delta = torch.tensor(self.discriminancy, dtype=torch.float64)
        remaining = torch.logspace(0, math.log10(self.end), 300, dtype=torch.float64)
        v = orbit(delta, remaining)
        uniform = torch.full_like(delta, 1 / len(delta))
        clock = normalised_clock(delta, uniform, remaining)
        leading, ends, moving = int(delta.abs().argmax()), limits(delta), delta != 0
        spread, other = (_spread(progress(v[-1] * inside, delta)[moving]) for inside in (1.0, math.sqrt(0.5)))
        yield Measurement(
            NAME,
            "figure",
            SPREAD,
            spread,
            predicted=0.0,
            op="<=",
            threshold=1e-9,
            verdict=judge(spread, "<=", 1e-9),
            nulls=(Null("erf(v/2)/Δ, which does not solve the equation", (other,)),),
            side="<=",
            source=JOMA,
            note=f"Largest over smallest, minus 1, at {self.end:g} of t* before the end.",
        )
        for token in range(len(delta)):
            if moving[token] and math.isfinite(float(ends[token])):
                where = f"token {token} (Δ = {float(delta[token]):g})"
                yield _limit(END, float(v[-1, token]), float(ends[token]), setting=where)
        b = attention(v)
        yield _limit(LEADING, float(b[-1, leading]), 1.0)
        slowdown = float(clock[-1]) / ((1 - self.end) * blow_up_time(delta))
        note = (
            "Ratio of the times to reach the same point of the orbit, common over constant normaliser; z = "
            "v²/2 is kept."
        )
        yield Measurement(NAME, "figure", SLOWDOWN, slowdown, source=JOMA, note=note)
        arrays = {"remaining": remaining, "lower": v, "clock": clock, "attention": b, "discriminancy": delta}
        arrays["time"] = (1 - remaining) * blow_up_time(delta)
        yield Arrays({f"{NAME}/{name}": values.numpy() for name, values in arrays.items()})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots v on the clocks of exponential attention and of a common normaliser, and softmax(v²/2)."""
        if f"{NAME}/lower" not in result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        figure, (left, middle, right) = axes(1, 3, height=2.8, width=8.0)
        v, shares = result.arrays[f"{NAME}/lower"], result.arrays[f"{NAME}/attention"]
        time, clock, remaining = (result.arrays[f"{NAME}/{name}"] for name in ("time", "clock", "remaining"))
        deltas = result.arrays[f"{NAME}/discriminancy"]
        for token, (delta, tint) in enumerate(zip(deltas, shades(len(deltas)))):
            line(left, time, v[:, token], color=tint)
            line(middle, clock, v[:, token], color=tint)
            line(right, remaining, shares[:, token], color=tint, label=f"$\\Delta$ = {delta:g}")
        left.set(title="Exponential attention", xlabel="time t", ylabel="v")
        middle.set(title="Common normaliser", xlabel="time t", ylabel="v")
        right.set(
            title="Attention",
            xlabel="$1 - t/t^*$ (exponential clock)",
            ylabel="softmax($v^2/2$)",
            xscale="log",
        )
        right.invert_xaxis()
        label_ends(right)
        caption(
            figure,
            "The same orbit in all panels: $\\mathrm{erf}(v/\\sqrt{2})/\\Delta$ is equal for all tokens, "
            "so the leading one blows up at $t^*$ and the others stop. Softmax attention is not shown: "
            "trained with the MLP it leaves this orbit.",
        )
        return figure


def _limit(quantity: str, value: float, predicted: float, *, setting: str = "") -> Measurement:
    return Measurement(
        NAME,
        "figure",
        quantity,
        value,
        predicted=predicted,
        basis="limit",
        at={"setting": setting},
        source=JOMA,
    )


def _spread(values: Tensor) -> float:
    return float(values.max() / values.min()) - 1
