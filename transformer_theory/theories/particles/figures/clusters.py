"""Clusters on the circle over time, their number over beta, and the energy, which rises in steps.

Sources: :cite:t:`geshkovski2025mathematical`, :cite:t:`geshkovski2024dynamic`, :cite:t:`bruno2025emergence`.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, distinct, figure, mean, reading
from ....core.plotting import COLOURS, style
from ....core.result import Result
from ....core.sources import Source
from ..clusters import count_clusters, energy
from ..dynamics import flow, softmax_field, unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUMBER, SLOPE = "clusters on the circle", "exponent of the number of clusters in beta"
ENERGY = "energy of one sequence"
BETAS, DRAWN = (1.0, 4.0, 9.0, 16.0, 25.0, 36.0, 49.0, 64.0, 81.0), (1.0, 4.0, 16.0, 36.0, 81.0)
LOGS = {"xscale": "log", "yscale": "log", "ylabel": "clusters"}


@style()
def draw(result: Result) -> "Figure":
    """Draws the number of clusters over time and over beta, and the energy of one sequence."""
    times = distinct(result.table.select(quantity=NUMBER), "time")
    early = min(times, key=lambda time: abs(time - times[-1] / 5))
    over_time = ("beta", {beta: {"label": f"beta = {beta:g}", "band": False} for beta in DRAWN})
    over_beta = {
        time: {"label": f"time {time:.3g}", "linestyle": "", "band": False} for time in (early, times[-1])
    }
    energies = {"xscale": "log", "ylabel": ENERGY, "ylim": (0, 1.04)}
    drawn = curves(
        "time",
        panels=(
            Panel("", NUMBER, lines=over_time, axes=LOGS),
            Panel("", NUMBER, lines=("time", over_beta), axes=LOGS | {"xlabel": "beta"}, x="beta"),
            Panel("", ENERGY, lines=over_time, legend="", axes=energies),
        ),
        caption="SA from {tokens} uniform tokens on the circle; means of {runs} sequences. Clusters last "
        "longer the larger beta is, and their number grows like its square root. The energy rises when "
        "clusters join.",
        size=(8.4, 3.0),
    )(result)
    drawn.axes[1].plot(BETAS, np.sqrt(BETAS), "--", color=COLOURS["null"], label="√β")
    drawn.axes[1].legend()
    return drawn


@figure(
    "particles.clusters",
    source=(
        Source("geshkovski2025mathematical", status="own"),
        Source("geshkovski2024dynamic"),
        Source("bruno2025emergence"),
    ),
    view=draw,
    quick={"runs": 2, "tokens": 8, "time": 5.0},
)
def clusters(
    *,
    runs: int = setting(24, ge=1, le=10**4, help="sequences for each beta"),
    tokens: int = setting(32, ge=2, le=1024, help="tokens of a sequence"),
    time: float = setting(100.0, gt=0.0, le=10**4, help="end of the flow"),
    seed: int = 0,
) -> Iterator[Reading]:
    """Sequences of uniform tokens on the circle that move by SA, for nine beta: the mean number of clusters
    and the energy of one sequence over time, and the exponent of the number over beta of at least 9 at a
    fifth of the time.
    """
    generator = torch.Generator().manual_seed(seed)
    times = np.geomspace(time / 1000, time, 40)
    early, early_means = int(np.abs(times - time / 5).argmin()), []
    for beta in BETAS:
        X = unit(torch.randn(runs, tokens, 2, generator=generator, dtype=torch.float64))
        states = flow(X, partial(softmax_field, beta=beta), times=times.tolist(), tolerance=1e-5)
        counts = np.stack([count_clusters(state).numpy() for state in states]).astype(float)
        early_means.append(counts[early].mean())
        for t, values, value in zip(times, counts, energy(states[:, 0], beta=beta).tolist()):
            at = {"beta": beta, "time": float(t)}
            yield mean(NUMBER, values, "sequences", at=at)
            yield reading(ENERGY, value, at=at)
    slope = float(np.polyfit(np.log(BETAS[2:]), np.log(early_means[2:]), 1)[0])
    yield reading(SLOPE, slope, reference=(0.5, "limit"), n=runs)
