"""The information curve of a random joint law, with fixed points from random encoders, and the onset.

Source: :cite:t:`tishby1999information`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, axes, caption, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ..claims import OWN, random_encoder
from ..curve import information_bottleneck, iterate, point, random_joint
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

    name: ClassVar[str] = "bottleneck.plane"
    sources: ClassVar[tuple[Source, ...]] = (OWN,)

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
        yield Measurement(NAME, "figure", LOCAL, found.local_beta / found.beta, source=OWN)
        solved = information_bottleneck(joint, [found.beta * factor for factor in FACTORS]).points
        for factor, each in zip(FACTORS, solved):
            place = {
                "unit": "nats",
                "at": {"encoder": SOLVER, RATIO: factor},
                "n": round(1000 * each.beta / found.beta),
                "source": OWN,
            }
            yield Measurement(NAME, "figure", COMPRESSION, each.compression, **place)
            yield Measurement(NAME, "figure", RELEVANCE, each.relevance, **place)
        for start in range(self.starts):
            beta = 10 * found.beta
            encoder = iterate(joint, random_encoder(self.x, 3, generator), beta, 400)
            each = point(joint, encoder, beta, math.inf)
            place = {"unit": "nats", "at": {"encoder": RANDOM, "start": start}, "n": start, "source": OWN}
            yield Measurement(NAME, "figure", COMPRESSION, each.compression, **place)
            yield Measurement(NAME, "figure", RELEVANCE, each.relevance, **place)
        top = max(1.1, 1.05 * found.local_beta / found.beta)
        for step in range(17):
            factor = 0.95 + (top - 0.95) * step / 16
            value = information_bottleneck(joint, factor * found.beta).points[0].lagrangian
            yield Measurement(NAME, "figure", LAGRANGIAN, value, unit="nats", at={RATIO: factor}, source=OWN)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Draws the information plane, and the Lagrangian against beta over the onset."""
        rows = result.select(quantity=RELEVANCE, at={"encoder": SOLVER})
        if not rows:
            return text_figure(f"{self.name}: nothing was measured")
        figure, (plane, around) = axes(1, 2, width=7.0, height=3.0)
        plane.plot(
            [0, *result.select(quantity=COMPRESSION, at={"encoder": SOLVER}).column("value")],
            [0, *rows.column("value")],
            color=COLOURS[NAME],
            label="solver",
        )
        start = [
            result.select(quantity=quantity, at={"encoder": RANDOM}).column("value")
            for quantity in (COMPRESSION, RELEVANCE)
        ]
        plane.plot(*start, "o", color=COLOURS["null"], markersize=3.5, label="random starts")
        plane.set(xlabel="I(X;Z) in nats", ylabel="I(Z;Y) in nats")
        plane.legend(loc="lower right")
        lagrangian = result.select(quantity=LAGRANGIAN)
        around.plot(
            [row.at[RATIO] for row in lagrangian],
            lagrangian.column("value"),
            color=COLOURS[NAME],
            marker="o",
            markersize=3,
        )
        for x, text, side in ((1.0, "1/η", -24), (result.select(quantity=LOCAL).one().value, "1/σ²", 3)):
            around.axvline(x, color=COLOURS["null"], linewidth=0.8, linestyle=(0, (4, 3)))
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
