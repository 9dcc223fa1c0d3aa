"""Numbers that were known before a run, as marks: alike in every figure of the room, and each kind said apart."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ....core.measurement import Basis
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS: dict[str, tuple[str, str]] = {
    "figure": ("x", "read off the paper's figure"),
    "printed": ("x", "released code's output"),
    "recomputed": ("+", "recomputed independently"),
}
Known = dict[tuple[str, int | None], tuple[float, Basis]]


def known(result: Result) -> Known:
    """Quantity and step of the rows that stand beside such a number, with the number and where it comes from."""
    return {
        (row["quantity"], row.get("step")): (row["predicted"], row["basis"])
        for row in result.table
        if "predicted" in row and "basis" in row and row["basis"] in KINDS
    }


def mark(ax: "Axes", points: Iterable[tuple[float | int, float, Basis]]) -> None:
    """Draws points (x, y, where y comes from), with one entry of the legend for each kind."""
    points = list(points)
    for kind, (marker, words) in KINDS.items():
        shown = [(x, y) for x, y, basis in points if basis == kind]
        if shown:
            look = {"linestyle": "", "marker": marker, "markersize": 5 if marker == "x" else 7, "markeredgewidth": 1.2, "zorder": 6}
            ax.plot(*zip(*shown), color="black", label=words, **look)
