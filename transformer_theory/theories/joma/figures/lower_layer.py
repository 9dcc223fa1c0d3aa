"""The stable rank of the lower layer in the theory's dynamics: it falls and rises again if some tokens are
salient.

Source: :cite:t:`tian2024joma`.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import RANGE, Panel, Reading, draw_curves, figure, reading, with_range
from ....core.measurement import Null
from ....core.plotting import axes, caption, heatmap, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ....maths.linalg import stable_rank
from ..nonlinear import equal_columns, gaussian_points, linear_layer, nonlinear_layer, rank_bounce
from ..orbit import blow_up_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NONLINEAR, LINEAR, EQUAL = "nonlinear", "linear", "no token salient"
RANK = "stable rank"
STABLE_RANK = {
    "start": "stable rank at the start",
    "least": "smallest stable rank",
    "end": "stable rank at the end",
}
DROP, REBOUND = "drop of the stable rank", "rebound of the stable rank"
SHOWN, LAYERS = "joma/shown", "joma/layers"  # arrays: times, and V of the first draw at these times
LONGEST = 2  # largest ratio of the sides of a drawn matrix
FIRST_TIME = 1e-7  # first time of the curves; until then V is a multiple of the critical points
AXES = {"xlabel": "time t", "xscale": "log", "ylim": (0, None)}


@style()
def draw(result: Result) -> "Figure":
    """Plots the stable rank over time, and V of the first draw at three times; of a long matrix it draws a
    part.
    """
    drawn, (curve, *panels) = axes(1, 4, height=2.6, width=10.5)
    panel = Panel("Stable rank", RANK, lines="units", legend="ends", axes=AXES)
    draw_curves(curve, result, panel, x="time", spread=RANGE)
    layers = result.arrays[LAYERS]
    parts = [_part(layer) for layer in layers]
    for time, layer, part, ax in zip(result.arrays[SHOWN], layers, parts, panels):
        heatmap(
            ax,
            part / np.abs(layer).max(),
            "V / largest entry",
            vmin=-1,
            vmax=1,
            cmap="RdBu_r",
            bar=ax is panels[-1],
        )
        ax.set(title=f"V at t = {time:.2g}", xlabel="token", ylabel="unit")
    sides = zip(parts[0].shape, layers[0].shape, ("units", "tokens"))
    shown = "".join(f"; the first {few} of {many} {name}" for few, many, name in sides if few < many)
    text = "Lines: medians; bands: all draws. Linear units: first draw, up to its blow-up. Colour: first draw"
    caption(drawn, text + shown + ".")
    return drawn


@figure(
    "joma.lower_layer",
    source=(
        Source("tian2024joma", "end of Section 4", "second-hand"),
        Source("rudelson2007sampling"),
    ),
    view=draw,
    quick={"units": 6, "tokens": 8, "seeds": 3},
)
def lower_layer(
    *,
    units: int = setting(12, ge=2, le=500, help="units of the lower layer"),
    tokens: int = setting(20, ge=2, le=500, help="tokens of the context"),
    scale: float = setting(1.0, ge=1e-6, le=3, help="standard deviation of the critical points' entries"),
    until: float = setting(1e3, ge=1, le=1e5, help="last time of the flow"),
    seeds: int = setting(20, ge=1, le=1000, help="draws of the critical points"),
    seed: int = 0,
) -> Iterator[Reading | list[Reading] | Arrays]:
    """Stable rank of the lower layer over time: nonlinear units, linear units, and nonlinear units without a
    salient token.

    Curves are medians over the draws, while the rank of nonlinear units changes. The curve of linear units is
    that of the first draw, because the blow-up differs between draws.
    """
    generator = torch.Generator().manual_seed(seed)
    times = torch.logspace(math.log10(FIRST_TIME), math.log10(until), 200, dtype=torch.float64)
    remaining = torch.logspace(0, -12, 200, dtype=torch.float64)[1:]
    draws = [gaussian_points(generator, units=units, tokens=tokens, scale=scale) for _ in range(seeds)]
    equal = [equal_columns(points) for points in draws]
    points = {NONLINEAR: draws, LINEAR: draws, EQUAL: equal}
    layers = {
        NONLINEAR: [nonlinear_layer(salient, times) for salient in draws],
        LINEAR: [linear_layer(salient, remaining) for salient in draws],
        EQUAL: [nonlinear_layer(flat, times) for flat in equal],
    }
    bounces = {how: [rank_bounce(*pair) for pair in zip(points[how], layers[how])] for how in layers}
    for how, curves in bounces.items():
        for when, quantity in STABLE_RANK.items():
            values = [getattr(curve, when) for curve in curves]
            note = f"A mean over draws, from {min(values):.3g} to {max(values):.3g}."
            yield reading(quantity, sum(values) / seeds, at={"units": how}, n=seeds, note=note)
    for quantity, name, null in ((DROP, "drop", EQUAL), (REBOUND, "rebound", LINEAR)):
        least, nulls = (
            [getattr(curve, name) / curve.start for curve in bounces[how]] for how in (NONLINEAR, null)
        )
        note = "As a share of the start; the smallest of the draws."
        nulls = (Null(null, tuple(nulls)),)
        yield reading(quantity, min(least), nulls=nulls, side=">=", n=seeds, note=note)
    blow_up = blow_up_time(draws[0].norm(dim=0))
    clocks = {NONLINEAR: times, LINEAR: (1 - remaining) * blow_up, EQUAL: times}
    ranks = {how: torch.stack([stable_rank(layer) for layer in of_draws]) for how, of_draws in layers.items()}
    first, last = _moving(times.numpy(), ranks[NONLINEAR].numpy())
    for how, of_draws in ranks.items():
        for time, values in zip(clocks[how].tolist(), of_draws.T.tolist()):
            at = {"units": how, "time": time}
            if first <= time <= last and how == LINEAR:
                yield reading(RANK, values[0], at=at, n=1)
            elif first <= time <= last:
                yield with_range(reading(RANK, float(np.median(values)), at=at, n=seeds), values)
    shown = [0, int(ranks[NONLINEAR][0].argmin()), -1]
    yield Arrays({SHOWN: times[shown].numpy(), LAYERS: layers[NONLINEAR][0][shown].numpy()})


def _part(layer: np.ndarray) -> np.ndarray:
    """Returns the first rows and columns of a matrix, so many that neither side is more than :data:`LONGEST`
    times the other.
    """
    rows, columns = layer.shape
    return layer[: LONGEST * columns, : LONGEST * rows]


def _moving(times: np.ndarray, ranks: np.ndarray) -> tuple[float, float]:
    """Returns the time range in which the ranks change, with a margin of a decade on each side."""
    moved = np.flatnonzero((np.abs(ranks / ranks[:, :1] - 1) > 0.01).any(0))
    first, last = (moved[0], moved[-1]) if len(moved) else (0, len(times) - 1)
    return times[first] / 10, times[last] * 10
