"""The information curve of a random joint law, with fixed points from random encoders, and the onset.

Source: :cite:t:`tishby1999information`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....core.experiment import RandomExperiment, setting
from ....core.figure import DASHED, Panel, draw_curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, axes, caption, colour, style
from ....core.result import Result
from ..claims import OWN, random_encoder
from ..curve import Bottleneck, information_bottleneck, iterate, point, random_joint
from ..first_beta import onset

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "bottleneck"
COMPRESSION, RELEVANCE, LAGRANGIAN = "I(X;Z)", "I(Z;Y)", "Lagrangian at a multiple of the onset"
RATIO, SOLVER, RANDOM = "beta over the onset", "solver", "random start"
LOCAL = "local onset over the onset"
FACTORS = (1.01, 1.05, 1.1, 1.2, 1.4, 1.7, 2.0, 2.5, 3.2, 4.0, 6.0, 10.0, 20.0, 60.0)


@dataclass(frozen=True)
class Plane(RandomExperiment):
    """The curve of a random joint law, fixed points from random encoders, and the Lagrangian around the
    onset.
    """

    seed: int = setting(
        1,
        ge=0,
        le=2**32 - 1,
        help="seed of the random numbers; the default shows a law with a clear gap of onsets",
    )

    x: int = setting(8, ge=2, le=64, help="values of X")
    y: int = setting(4, ge=2, le=32, help="values of Y")
    starts: int = setting(20, ge=1, le=1000, help="random encoders with three code words")

    name = "bottleneck.plane"
    sources = (OWN,)

    @classmethod
    def quick(cls) -> "Plane":
        """Four values of X, two starts."""
        return cls(x=4, y=3, starts=2)

    def measure(self) -> Iterator[Measurement]:
        """Yields the informations of the solver and of the random starts, and the Lagrangian around the
        onset.
        """
        generator = self.generator()
        joint = random_joint(self.x, self.y, generator)
        found = onset(joint)
        yield self.row(LOCAL, found.local_beta / found.beta)
        solved = information_bottleneck(joint, [found.beta * factor for factor in FACTORS]).points
        for factor, each in zip(FACTORS, solved):
            number = round(1000 * each.beta / found.beta)
            yield from self._informations(each, {"encoder": SOLVER, RATIO: factor}, number)
        for start in range(self.starts):
            beta = 10 * found.beta
            encoder = iterate(joint, random_encoder(self.x, 3, generator), beta, 400)
            each = point(joint, encoder, beta, math.inf)
            yield from self._informations(each, {"encoder": RANDOM, "start": start}, start)
        top = max(1.1, 1.05 * found.local_beta / found.beta)
        for step in range(17):
            factor = 0.95 + (top - 0.95) * step / 16
            value = information_bottleneck(joint, factor * found.beta).points[0].lagrangian
            yield self.row(LAGRANGIAN, value, unit="nats", at={RATIO: factor})

    def _informations(self, each: Bottleneck, at: dict[str, float | str], n: int) -> Iterator[Measurement]:
        yield self.row(COMPRESSION, each.compression, unit="nats", at=at, n=n)
        yield self.row(RELEVANCE, each.relevance, unit="nats", at=at, n=n)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Draws the information plane, and the Lagrangian against beta over the onset."""
        figure, (plane, around) = axes(1, 2, width=7.0, height=3.0)
        solver, random = (
            [
                result.select(quantity=each, at={"encoder": name}).column("value")
                for each in (COMPRESSION, RELEVANCE)
            ]
            for name in (SOLVER, RANDOM)
        )
        plane.plot(*([0, *values] for values in solver), color=colour(NAME), label=SOLVER)
        plane.plot(*random, "o", color=COLOURS["null"], markersize=3.5, label="random starts")
        plane.set(xlabel="I(X;Z) in nats", ylabel="I(Z;Y) in nats")
        plane.legend(loc="lower right")
        looks = {"marker": "o", "markersize": 3}
        draw_curves(
            around, result, Panel("", LAGRANGIAN, lines=("quantity", {LAGRANGIAN: looks}), legend=""), x=RATIO
        )
        (local,) = result.select(quantity=LOCAL).column("value")
        for x, text, side in ((1.0, "1/η", -24), (local, "1/σ²", 3)):
            around.axvline(x, color=COLOURS["null"], linewidth=0.8, linestyle=DASHED)
            around.annotate(
                text,
                (x, 0.02),
                xycoords=("data", "axes fraction"),
                xytext=(side, 0),
                textcoords="offset points",
                fontsize=7.5,
            )
        around.set(xlabel="beta over the onset", ylabel="lowest Lagrangian in nats")
        caption(
            figure,
            f"A random {self.x} x {self.y} joint law. Left: optimal encoders, and {self.starts} fixed "
            "points from random encoders with three code words at ten times the onset. Right: the lowest "
            "Lagrangian leaves zero at 1/η, before the local value 1/σ².",
        )
        return figure
