"""The phases of a row of Gaussian scores: participation over b at several numbers of keys, with the limit.

Source: :cite:t:`giorlandino2026two`, :cite:t:`derrida1981random`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, reading
from ....core.plotting import COLOURS, style
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import student_interval
from ..phases import FROZEN, WEAK, gaussian_participation, limit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTICIPATION = "mean participation of Gaussian scores"
KEYS, POINTS = (16, 256, 4096, 65536), tuple(0.25 * k for k in range(1, 17))


@style()
def draw(result: Result) -> "Figure":
    """Draws the participation with its limits, and both transitions."""
    drawn = curves(
        "b",
        panels=(Panel("", PARTICIPATION, lines="keys", predicted="limit", axes={"ylim": (0, 1)}),),
        xlabel=r"$b$ = score deviation / $\sqrt{\log n}$",
        ylabel="mean participation",
        caption="Means of {rows} rows. Dotted: the transitions; even 65,536 keys are far from the limit at "
        "the second one.",
        size=(4.8, 3.3),
    )(result)
    for place in (WEAK, FROZEN):
        drawn.axes[0].axvline(place, color=COLOURS["null"], linestyle=":")
    return drawn


@figure(
    "collapse.phases",
    source=(Source("giorlandino2026two", status="own"), Source("derrida1981random")),
    view=draw,
    quick={"rows": 8, "largest": 16},
)
def phases(
    *,
    rows: int = setting(100, ge=2, le=10**4, help="rows of each setting"),
    largest: int = setting(65536, ge=16, le=2**20, help="largest number of keys"),
    seed: int = 0,
) -> Iterator[Reading]:
    """Mean participation of rows of Gaussian scores at each number of keys and b."""
    generator = torch.Generator().manual_seed(seed)
    for n in KEYS:
        for b in POINTS if n <= largest else ():
            found = gaussian_participation(n, b, rows, generator)
            columns = {"interval": student_interval(found.tolist()), "interval_kind": "over rows", "n": rows}
            columns |= {"predicted": limit(b, n), "at": {"keys": n, "b": b}}
            yield reading(PARTICIPATION, float(found.mean()), **columns)
