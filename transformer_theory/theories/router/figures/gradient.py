"""The gradient of the relaxed choice over the temperature: its mean and its standard deviation, beside the
exact gradient.

Source: :cite:t:`jang2017categorical`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, reading
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
LINES = ("estimator", {RELAXED: {}})


@style()
def draw(result: Result) -> "Figure":
    """Draws both quantities with the exact gradient, the formula at temperature 1, the limit of the deviation
    at low temperature, and the deviation of REINFORCE.
    """
    delta = result.settings["delta"]
    exact = exact_gradient(delta)
    (other,) = result.table.select(quantity=DEVIATION, at={"estimator": REINFORCE}).column("value")
    start = {"ylim": (0, None)}
    drawn = curves(
        "temperature",
        panels=(
            Panel(MEAN, MEAN, lines=LINES, levels={"exact": exact}, axes=start),
            Panel(DEVIATION, DEVIATION, lines=LINES, levels={REINFORCE: other}, axes=start),
        ),
        log="x",
        caption="Two tokens whose scores differ by {delta:g}, losses 1 and 0; {draws:,} gradients for each "
        "point. Diamond: formula at 1; dotted: limit at low temperature. A low temperature lessens the bias "
        "and raises the deviation. REINFORCE has no bias.",
        size=(7.0, 2.9),
    )(result)
    left, right = drawn.axes
    left.plot(1.0, relaxed_gradient_mean(delta), "D", markerfacecolor="white", color=COLOURS["raw"], zorder=5)
    low = [t for t in TEMPERATURES if t <= 0.5]
    limit = [(relaxed_gradient_second_moment(delta, t) - exact**2) ** 0.5 for t in low]
    right.plot(low, limit, ":", color=COLOURS["raw"])
    return drawn


@figure(
    "router.gradient",
    source=Source("jang2017categorical", status="own"),
    view=draw,
    quick={"draws": 1000},
)
def gradient(
    *,
    draws: int = setting(100_000, ge=2, le=10**7, help="gradients for each temperature"),
    delta: float = setting(0.0, ge=-10.0, le=10.0, help="difference of the two scores"),
    seed: int = 0,
) -> Iterator[Reading]:
    """Two tokens and a linear loss: mean and standard deviation of the gradient by the first score."""
    generator = torch.Generator().manual_seed(seed)
    for temperature in TEMPERATURES:
        g = sampled_gradients(delta, temperature=temperature, generator=generator, draws=draws)
        columns = {"n": draws, "at": {"estimator": RELAXED, "temperature": temperature}}
        predicted = relaxed_gradient_mean(delta) if temperature == 1 else None
        yield reading(MEAN, float(g.mean()), predicted=predicted, **columns)
        yield reading(DEVIATION, float(g.std()), **columns)
    g = score_function_gradients(delta, generator=generator, draws=draws)
    columns = {"n": draws, "at": {"estimator": REINFORCE}}
    yield reading(MEAN, float(g.mean()), predicted=exact_gradient(delta), **columns)
    yield reading(DEVIATION, float(g.std()), **columns)
