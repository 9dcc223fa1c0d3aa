"""Independent tokens in high dimension follow one curve: mean cosine over time, and the distance from the
curve over the dimension.

Source: :cite:t:`geshkovski2025mathematical`.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, reading
from ....core.plotting import COLOURS, style
from ....core.result import Result
from ....core.sources import Source
from ..clusters import mean_cosine
from ..dynamics import flow, softmax_field, unit
from ..equiangular import common_cosine

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DISTANCE, EXPONENT = "distance of cosines from the curve", "exponent of the distance in the dimension"
COSINE = "mean cosine of the tokens"
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
LINES = ("d", {d: {} for d in (8, 64, 256, 1024)})
LOGS = {"xscale": "log", "yscale": "log", "xlabel": "dimension", "ylabel": "largest distance from the curve"}


@style()
def draw(result: Result) -> "Figure":
    """Draws both panels, and a line with the exponent of the limit through the last distance."""
    drawn = curves(
        "time",
        panels=(
            Panel("", COSINE, lines=LINES, predicted="equation", axes={"ylabel": COSINE}),
            Panel("", DISTANCE, lines=("quantity", {DISTANCE: {"linestyle": ""}}), axes=LOGS, x="d"),
        ),
        caption="SA from {tokens} independent uniform tokens, beta = {beta:g}; {runs} sequences for each "
        "dimension. Dashed, right: $d^{{-1/2}}$. The distance is the root mean square over pairs, its "
        "largest value over time.",
        size=(7.4, 3.0),
    )(result)
    distances = result.table.select(quantity=DISTANCE).column("value")
    drawn.axes[1].plot(
        SIZES, distances[-1] * (np.array(SIZES) / SIZES[-1]) ** -0.5, "--", color=COLOURS["null"]
    )
    return drawn


@figure(
    "particles.dimension",
    source=Source("geshkovski2025mathematical", status="own"),
    view=draw,
    quick={"runs": 1, "tokens": 4, "time": 1.0},
)
def dimension(
    *,
    runs: int = setting(4, ge=1, le=1000, help="sequences for each dimension"),
    tokens: int = setting(32, ge=2, le=1024, help="tokens of a sequence"),
    beta: float = setting(4.0, ge=0.0, le=20.0, help="inverse temperature"),
    time: float = setting(20.0, gt=0.0, le=1000.0, help="end of the flow"),
    seed: int = 0,
) -> Iterator[Reading]:
    """Independent uniform tokens that move by SA in eight to 1,024 dimensions: the mean cosine over time, the
    largest distance over time of the root mean square kind for each dimension, and its exponent from 64 on.
    """
    generator, times = torch.Generator().manual_seed(seed), np.linspace(0, time, 25)
    curve = common_cosine(times.tolist(), n=tokens, beta=beta)
    pairs = ~torch.eye(tokens, dtype=torch.bool)
    distances = []
    for d in SIZES:
        X = unit(torch.randn(runs, tokens, d, generator=generator, dtype=torch.float64))
        states = flow(X, partial(softmax_field, beta=beta), times=times.tolist(), tolerance=1e-5)
        off = (states @ states.mT)[..., pairs] - torch.from_numpy(curve)[:, None, None]
        distances.append(float(off.square().mean((1, 2)).sqrt().max()))
        yield reading(DISTANCE, distances[-1], at={"d": d}, n=runs)
        for t, value, limit in zip(times, mean_cosine(states).mean(1).tolist(), curve):
            at = {"d": d, "time": float(t)}
            yield reading(COSINE, value, reference=(float(limit), "limit"), at=at, n=runs)
    slope = float(np.polyfit(np.log(SIZES[3:]), np.log(distances[3:]), 1)[0])
    yield reading(EXPONENT, slope, reference=(-0.5, "limit"), n=runs)
