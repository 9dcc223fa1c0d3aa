"""What the figures of JoMA share: curves whose bands are ranges over draws or seeds, as rows and in
a panel.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ....core.experiment import RANGE, Experiment, range_rows
from ....core.measurement import Measurement
from ....core.plotting import line
from ....core.table import Table
from ....core.views import coordinate

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def with_range(
    experiment: Experiment, quantity: str, value: float, values: Sequence[float], **columns: Any
) -> Iterator[Measurement]:
    """Yields the row of a mean or median, and those of the smallest and of the largest of its values."""
    row = experiment.row(quantity, value, **{"n": len(values), **columns})
    yield from (row, *range_rows(row, values))


def draw_range(ax: "Axes", rows: Table, quantity: str, x: str, *, color: str, label: str = "") -> None:
    """Plots a quantity against a coordinate or a column, with the band of :func:`with_range` if there
    is one.
    """
    curves: list[dict[Any, Any]] = [
        {place: row.value for row in rows.select(quantity=name) if (place := coordinate(row, x)) is not None}
        for name in (quantity, *(f"{end} of {quantity}" for end in RANGE))
    ]
    places = sorted(curves[0])
    drawn = [place for place in places if all(place in ends for ends in curves[1:])]
    low, high = ([curve[place] for place in drawn] for curve in curves[1:])
    ax.fill_between(drawn, low, high, color=color, alpha=0.18, linewidth=0)
    line(ax, places, [curves[0][place] for place in places], color=color, label=label)
