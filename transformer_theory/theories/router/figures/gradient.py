"""The gradient of the relaxed choice over the temperature: its mean and its standard deviation, beside the
exact gradient.

Source: :cite:t:`jang2017categorical`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, axes, caption, line, style, text_figure
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

NAME, SOURCE = "router", Source("jang2017categorical", status="own")
MEAN, DEVIATION = "mean of the gradient", "standard deviation of the gradient"
RELAXED, REINFORCE = "straight-through", "REINFORCE"
TEMPERATURES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)


@dataclass(frozen=True)
class Gradient(RandomExperiment):
    """Two tokens and a linear loss: mean and standard deviation of the gradient by the first score."""

    draws: int = setting(100_000, ge=2, le=10**7, help="gradients for each temperature")
    delta: float = setting(0.0, ge=-10.0, le=10.0, help="difference of the two scores")

    name: ClassVar[str] = "router.gradient"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE,)

    @classmethod
    def quick(cls) -> "Gradient":
        """1,000 gradients."""
        return cls(draws=1000)

    def measure(self) -> Iterator[Measurement]:
        """Yields mean and standard deviation of both estimators; the setting has the temperature."""
        generator = self.generator()
        for temperature in TEMPERATURES:
            g = sampled_gradients(self.delta, temperature=temperature, draws=self.draws, generator=generator)
            columns = {
                "n": self.draws,
                "source": SOURCE,
                "at": {"estimator": RELAXED, "temperature": temperature},
            }
            predicted = relaxed_gradient_mean(self.delta) if temperature == 1 else None
            yield Measurement(NAME, "figure", MEAN, float(g.mean()), predicted=predicted, **columns)
            yield Measurement(NAME, "figure", DEVIATION, float(g.std()), **columns)
        g = score_function_gradients(self.delta, draws=self.draws, generator=generator)
        columns = {"n": self.draws, "source": SOURCE, "at": {"estimator": REINFORCE}}
        yield Measurement(
            NAME, "figure", MEAN, float(g.mean()), predicted=exact_gradient(self.delta), **columns
        )
        yield Measurement(NAME, "figure", DEVIATION, float(g.std()), **columns)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Draws both numbers over the temperature, with the exact gradient and the limit of the deviation."""
        if not result.select(quantity=MEAN):
            return text_figure(f"{self.name}: nothing was measured")
        figure, (left, right) = axes(1, 2, width=7.0, height=2.9)
        exact = exact_gradient(self.delta)
        for ax, quantity in ((left, MEAN), (right, DEVIATION)):
            rows = result.select(quantity=quantity, at={"estimator": RELAXED})
            label = RELAXED if ax is left else ""
            line(
                ax,
                [row.at["temperature"] for row in rows],
                [row.value for row in rows],
                name=NAME,
                marker="o",
                label=label,
            )
            ax.set(xscale="log", xlabel="temperature", title=quantity)
        left.axhline(exact, color="#3F4751", linestyle="--", label="exact")
        left.plot(
            [1.0],
            [relaxed_gradient_mean(self.delta)],
            "D",
            color="#3F4751",
            markerfacecolor="white",
            label="formula at 1",
            zorder=5,
        )
        limit = [
            (relaxed_gradient_second_moment(self.delta, t) - exact**2) ** 0.5
            for t in TEMPERATURES
            if t <= 0.5
        ]
        right.plot(
            TEMPERATURES[: len(limit)],
            limit,
            color="#3F4751",
            linestyle=":",
            label="limit at low temperature",
        )
        for row in result.select(quantity=DEVIATION, at={"estimator": REINFORCE}):
            right.axhline(row.value, color=COLOURS["null"], linestyle="--", label=REINFORCE)
        left.set(ylim=(0, None))
        right.set(ylim=(0, None))
        left.legend()
        right.legend()
        caption(
            figure,
            f"Two tokens whose scores differ by {self.delta:g}, losses 1 and 0; {self.draws:,} gradients "
            "for each point. A low temperature lessens the bias and raises the deviation. REINFORCE has no "
            "bias.",
        )
        return figure
