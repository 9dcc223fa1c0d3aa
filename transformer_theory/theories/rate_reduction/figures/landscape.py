"""Where ascents of the rate reduction end."""

from typing import TYPE_CHECKING

from ....experiment import Result
from ....plotting import axes, line, null_band

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "rate_reduction"


def landscape(result: Result) -> "Figure":
    """The rate reduction that each start reaches, sorted, beside the optimum."""
    figure, (ax,) = axes(width=5, height=2.6)
    values = result.arrays[f"{NAME}/reached"]
    line(ax, range(1, len(values) + 1), values, name=NAME, marker=".", linestyle="none")
    null_band(ax, float(result.arrays[f"{NAME}/closed_form"]), label="optimum, closed form")
    ax.set_xlabel("start, sorted")
    ax.set_title("Rate reduction reached, nats")
    return figure
