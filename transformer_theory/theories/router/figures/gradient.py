"""The gradient of the relaxed choice over the temperature: its mean and its standard deviation, beside the
exact gradient.

Source: :cite:t:`jang2017categorical`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....core.experiment import RandomExperiment, setting
from ....core.figure import Panel, curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, style
from ....core.result import Result
from ....core.sources import Source
from ..choice import (
    exact_gradient,
    relaxed_gradient_mean,
    relaxed_gradient_second_moment,
    sampled_gradients,
    score_function_gradients,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEAN, DEVIATION = "mean of the gradient", "standard deviation of the gradient"
RELAXED, REINFORCE = "straight-through", "REINFORCE"
TEMPERATURES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
LOW = tuple(t for t in TEMPERATURES if t <= 0.5)  # where the limit of the deviation is drawn


@dataclass(frozen=True)
class Gradient(RandomExperiment):
    """Two tokens and a linear loss: mean and standard deviation of the gradient by the first score."""

    draws: int = setting(100_000, ge=2, le=10**7, help="gradients for each temperature")
    delta: float = setting(0.0, ge=-10.0, le=10.0, help="difference of the two scores")

    name = "router.gradient"
    sources = (Source("jang2017categorical", status="own"),)

    view = curves(
        "temperature",
        panels=[
            Panel(quantity, quantity, lines=("estimator", {RELAXED: {}}), axes={"ylim": (0, None)})
            for quantity in (MEAN, DEVIATION)
        ],
        log="x",
        caption="Two tokens whose scores differ by {delta:g}, losses 1 and 0; {draws:,} gradients for each "
        "point. A low temperature lessens the bias and raises the deviation. REINFORCE has no bias.",
        size=(7.0, 2.9),
    )

    @classmethod
    def quick(cls) -> "Gradient":
        """1,000 gradients."""
        return cls(draws=1000)

    def measure(self) -> Iterator[Measurement]:
        """Yields mean and standard deviation of both estimators."""
        generator, draws = self.generator(), self.draws
        for temperature in TEMPERATURES:
            g = sampled_gradients(self.delta, temperature=temperature, generator=generator, draws=draws)
            columns = {"n": self.draws, "at": {"estimator": RELAXED, "temperature": temperature}}
            predicted = relaxed_gradient_mean(self.delta) if temperature == 1 else None
            yield self.row(MEAN, float(g.mean()), predicted=predicted, **columns)
            yield self.row(DEVIATION, float(g.std()), **columns)
        g = score_function_gradients(self.delta, generator=generator, draws=draws)
        columns = {"n": self.draws, "at": {"estimator": REINFORCE}}
        yield self.row(MEAN, float(g.mean()), predicted=exact_gradient(self.delta), **columns)
        yield self.row(DEVIATION, float(g.std()), **columns)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Adds the exact gradient, the formula at temperature 1, the limit of the deviation at low
        temperature, and the deviation of REINFORCE.
        """
        figure, exact = super().plot(result), exact_gradient(self.delta)
        left, right = figure.axes
        dark: dict[str, Any] = {"color": COLOURS["raw"]}
        left.axhline(exact, linestyle="--", label="exact", **dark)
        formula: dict[str, Any] = {
            "marker": "D",
            "linestyle": "",
            "markerfacecolor": "white",
            "label": "formula at 1",
        }
        left.plot([1.0], [relaxed_gradient_mean(self.delta)], zorder=5, **dark, **formula)
        limit = [(relaxed_gradient_second_moment(self.delta, t) - exact**2) ** 0.5 for t in LOW]
        right.plot(LOW, limit, linestyle=":", label="limit at low temperature", **dark)
        for value in result.select(quantity=DEVIATION, at={"estimator": REINFORCE}).column("value"):
            right.axhline(value, color=COLOURS["null"], linestyle="--", label=REINFORCE)
        left.legend()
        right.legend()
        return figure
