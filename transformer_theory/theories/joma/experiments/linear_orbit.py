"""The linear MLP's orbit: one number for all tokens, attention on one of them after finite time, and the slower clock of a common
normaliser.

Source: :cite:t:`tian2024joma`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from ....core.claims import Evidence
from ....core.experiment import Experiment, setting
from ....core.measurement import Arrays, Row, finding
from ....core.result import Result
from ....core.sources import Source
from ..figures import linear_orbit
from ..nonlinear import attention
from ..orbit import blow_up_time, limits, normalised_clock, orbit, progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, JOMA = "joma", Source("tian2024joma")


@dataclass(frozen=True)
class LinearOrbit(Experiment):
    """Five tokens of given discriminancy from zero to a part ``end`` of the blow-up time before the blow-up, in closed form.

    The joint flow of attention and MLP follows it (claim joma/linear-orbit); here it is set beside the clock of a
    normaliser common to all samples, with z = v²/2 kept. Softmax attention has none, and leaves the orbit (claim
    joma/softmax-leaves-the-orbit).
    """

    discriminancy: tuple[float, ...] = setting((1.0, 0.8, 0.5, -0.3, 0.1), ge=-1e3, le=1e3, help="Δ of each token")
    end: float = setting(1e-4, ge=1e-12, lt=1, help="what is left of the time to the blow-up, as a share")

    name: ClassVar[str] = "joma.linear_orbit"
    sources: ClassVar[tuple[Source, ...]] = (JOMA,)

    @classmethod
    def quick(cls) -> "LinearOrbit":
        return cls(end=1e-2)

    def measure(self) -> Iterator[Row | Arrays]:
        """Where the tokens stand at the end, the spread of both candidates for the constant, and attention to the leading token."""
        delta = torch.tensor(self.discriminancy, dtype=torch.float64)
        remaining = torch.logspace(0, math.log10(self.end), 300, dtype=torch.float64)
        v = orbit(delta, remaining)
        uniform = torch.full_like(delta, 1 / len(delta))
        clock = normalised_clock(delta, uniform, remaining)
        leading, ends = int(delta.abs().argmax()), limits(delta)
        moving = delta != 0
        spread, other = (_spread(progress(v[-1] * inside, delta)[moving]) for inside in (1.0, math.sqrt(0.5)))
        note = (
            f"largest over smallest, less 1, at {self.end:g} of t* before the end; null: of erf(v/2)/Δ, which does not solve the equation"
        )
        evidence = Evidence(spread, 1e-9, "<=")
        yield finding(NAME, "spread of erf(v/√2)/Δ over the tokens", evidence, source=JOMA, predicted=0.0, null=other, note=note)
        for token in [token for token in range(len(delta)) if math.isfinite(float(ends[token])) and moving[token]]:
            yield Row(
                theory=NAME,
                quantity=f"v of token {token} (Δ = {float(delta[token]):g})",
                value=float(v[-1, token]),
                predicted=float(ends[token]),
                basis="limit",
                source=str(JOMA),
            )
        b = attention(v)
        yield Row(
            theory=NAME,
            quantity="attention to the leading token",
            value=float(b[-1, leading]),
            predicted=1.0,
            basis="limit",
            source=str(JOMA),
        )
        yield Row(
            theory=NAME,
            quantity="slowdown by a common normaliser",
            value=float(clock[-1]) / ((1 - self.end) * blow_up_time(delta)),
            note="time over that with a constant normaliser, at the same place of the orbit; z = v²/2 kept, which softmax does not do",
        )
        arrays = {"remaining": remaining, "lower": v, "clock": clock, "attention": b, "discriminancy": delta}
        arrays["time"] = (1 - remaining) * blow_up_time(delta)
        yield Arrays({f"{NAME}/{name}": values.numpy() for name, values in arrays.items()})

    def draw(self, result: Result) -> "Figure":
        """The orbit over both clocks, and attention."""
        return linear_orbit(result)


def _spread(values: Tensor) -> float:
    return float(values.max() / values.min()) - 1
