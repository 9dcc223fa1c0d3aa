"""The information curve of a random joint law, with fixed points from random encoders, and the onset.

Source: :cite:t:`tishby1999information`.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from ....core.experiment import setting
from ....core.figure import DASHED, Panel, Reading, draw_curves, figure, reading
from ....core.plotting import COLOURS, axes, caption, colour, style
from ....core.result import Result
from ..claims import OWN, random_encoder
from ..curve import Bottleneck, information_bottleneck, iterate, point, random_joint
from ..first_beta import onset

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPRESSION, RELEVANCE, LAGRANGIAN = "I(X;Z)", "I(Z;Y)", "Lagrangian at a multiple of the onset"
RATIO, SOLVER, RANDOM = "beta over the onset", "solver", "random start"
LOCAL = "local onset over the onset"
FACTORS = (1.01, 1.05, 1.1, 1.2, 1.4, 1.7, 2.0, 2.5, 3.2, 4.0, 6.0, 10.0, 20.0, 60.0)


@style()
def draw(result: Result) -> "Figure":
    """Draws the information plane, and the Lagrangian against beta over the onset."""
    drawn, (plane, around) = axes(1, 2, width=7.0, height=3.0)
    solver, random = (
        [
            result.table.select(quantity=of, at={"encoder": name}).column("value")
            for of in (COMPRESSION, RELEVANCE)
        ]
        for name in (SOLVER, RANDOM)
    )
    plane.plot(*([0, *values] for values in solver), color=colour("bottleneck"), label=SOLVER)
    plane.plot(*random, "o", color=COLOURS["null"], markersize=3.5, label=RANDOM)
    plane.set(xlabel="I(X;Z) in nats", ylabel="I(Z;Y) in nats")
    plane.legend(loc="lower right")
    draw_curves(around, result, Panel("", LAGRANGIAN), x=RATIO)
    local = result.table.select(quantity=LOCAL).one().value
    for place, name in ((1.0, "1/η"), (local, "1/σ²")):
        around.axvline(place, color=COLOURS["null"], linewidth=0.8, linestyle=DASHED)
        around.text(place, 0.02, name, transform=around.get_xaxis_transform(), fontsize=7.5)
    around.set(xlabel=RATIO, ylabel="lowest Lagrangian in nats")
    text = (
        "A random {x} x {y} joint law. Left: optimal encoders, and {starts} fixed points from random "
        "encoders with three code words at ten times the onset. Right: the lowest Lagrangian leaves zero at "
        "1/η, before the local value 1/σ²."
    )
    caption(drawn, text.format(**result.settings))
    return drawn


def informations(each: Bottleneck, **columns: Any) -> Iterator[Reading]:
    """Yields both informations of an encoder."""
    yield reading(COMPRESSION, each.compression, unit="nats", **columns)
    yield reading(RELEVANCE, each.relevance, unit="nats", **columns)


@figure("bottleneck.plane", source=OWN, view=draw, quick={"x": 4, "y": 3, "starts": 2})
def plane(
    *,
    seed: int = setting(
        1,
        ge=0,
        le=2**32 - 1,
        help="seed of the random numbers; the default shows a law with a clear gap of onsets",
    ),
    x: int = setting(8, ge=2, le=64, help="values of X"),
    y: int = setting(4, ge=2, le=32, help="values of Y"),
    starts: int = setting(20, ge=1, le=1000, help="random encoders with three code words"),
) -> Iterator[Reading]:
    """The curve of a random joint law, fixed points from random encoders, and the Lagrangian around the
    onset.
    """
    generator = torch.Generator().manual_seed(seed)
    joint = random_joint(x, y, generator)
    found = onset(joint)
    yield reading(LOCAL, found.local_beta / found.beta)
    solved = information_bottleneck(joint, [found.beta * factor for factor in FACTORS]).points
    for factor, each in zip(FACTORS, solved):
        at = {"encoder": SOLVER, RATIO: factor}
        yield from informations(each, at=at, n=round(1000 * each.beta / found.beta))
    beta = 10 * found.beta
    for start in range(starts):
        encoder = iterate(joint, random_encoder(x, 3, generator), beta, 400)
        each = point(joint, encoder, beta, math.inf)
        yield from informations(each, at={"encoder": RANDOM, "start": start}, n=start)
    top = max(1.1, 1.05 * found.local_beta / found.beta)
    for step in range(17):
        factor = 0.95 + (top - 0.95) * step / 16
        value = information_bottleneck(joint, factor * found.beta).points[0].lagrangian
        yield reading(LAGRANGIAN, value, unit="nats", at={RATIO: factor})
