"""The figure of a probed model: the headline of each theory in each layer, beside its null.

A panel is one quantity. A line joins the means over the heads of each layer, small dots are the heads. Grey is the null of the mean: the
range of its draws, and its median (dashed). Draw i of this null is the mean over the heads of their draws i.
"""

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..core.measurement import Measurement
from ..core.plotting import COLOURS, axes, caption, colour, line, plain, style
from ..core.result import Result
from ..core.statistics import over_heads
from ..core.theory import Theory
from .network_figures import per_cent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3  # panels side by side
SMALL = 7.0  # points


@style()
def by_layer(result: Result, theories: Iterable[Theory]) -> "Figure | None":
    """Draws the headlines of the theories at the last step by layer; None if no headline was measured in a layer.

    Args:
        result: result of a probe.
        theories: theories whose headlines are drawn.
    """
    panels = [(theory, rows) for theory in theories if (rows := headline_rows(result, theory))]
    if not panels:
        return None
    columns = min(COLUMNS, len(panels))
    lines = -(-len(panels) // columns)  # -(-a // b) rounds up
    figure, places = axes(lines, columns, 7.2, 0.75 + 1.55 * lines)
    for ax, (theory, rows) in zip(places, panels):
        _panel(ax, theory, rows)
    for ax in places[len(panels) :]:
        ax.set_visible(False)
    models = ", ".join(dict.fromkeys(row.model for _, rows in panels for row in rows if row.model))
    figure.suptitle(plain(models), x=0.01, ha="left", fontsize=9, fontweight="bold")
    several = " Dots: heads; line: their mean." if any(row.head is not None for _, rows in panels for row in rows) else ""
    text = f"The headline of each theory by layer.{several} Grey: the null, from its smallest to its largest draw, and its median (dashed)."
    caption(figure, f"{text} ↑ or ↓: the side of the null on which the theory predicts the values.")
    return figure


def headline_rows(result: Result, theory: Theory) -> list[Measurement]:
    """Returns the rows of a theory's headline in layers, at the last step that has any, of the setting that comes first."""
    if theory.in_networks is None:
        return []
    rows = result.select(theory=theory.name, kind="in network", quantity=theory.in_networks.headline)
    rows = [row for row in rows if row.layer is not None and row.value is not None]
    last = max((row.step for row in rows if row.step is not None), default=None)
    rows = [row for row in rows if row.step == last]
    return [row for row in rows if (row.setting, row.model) == (rows[0].setting, rows[0].model)]


def _panel(ax: "Axes", theory: Theory, rows: Sequence[Measurement]) -> None:
    """Draws one quantity."""
    assert theory.in_networks is not None
    layers = sorted({row.layer for row in rows if row.layer is not None})
    means = [over_heads([row for row in rows if row.layer == layer]) for layer in layers]
    tint = colour(theory.name)
    nulls = [row.null if row.null is not None and row.null.draws else None for row in means]
    low, median, high = (
        np.array([np.nan if null is None else float(getattr(null, name)) for null in nulls]) for name in ("low", "median", "high")
    )
    if np.isfinite(low).any():
        # A band needs two layers; a network of one layer has a bar.
        places = np.array(layers, dtype=float) if len(layers) > 1 else layers[0] + np.array([-0.2, 0.2])
        low, median, high = (values if len(layers) > 1 else np.repeat(values, 2) for values in (low, median, high))
        ax.fill_between(places, low, high, color=COLOURS["null"], alpha=0.3, linewidth=0, zorder=1)
        line(ax, places, median, color=COLOURS["null"], linewidth=0.9, linestyle=(0, (4, 3)), zorder=1.5)
    heads = np.array([(row.layer, row.value) for row in rows if row.head is not None], dtype=float).reshape(-1, 2)
    ax.plot(heads[:, 0], heads[:, 1], "o", color=tint, markersize=2.4, alpha=0.45, markeredgewidth=0)
    line(ax, layers, [row.value for row in means], name=theory.name, marker="o")
    arrow = {">=": " ↑", "<=": " ↓"}.get(theory.in_networks.side or "", "")
    quantity = textwrap.fill(f"{rows[0].quantity}{arrow}", 40)
    lines = 1 + quantity.count("\n")
    ax.set_title("\n" * lines, fontsize=SMALL)  # reserves the height of the two texts
    name = textwrap.shorten(theory.title.partition(":")[0], 38, placeholder="…")
    above = {"xycoords": "axes fraction", "textcoords": "offset points", "fontsize": SMALL, "va": "bottom"}
    ax.annotate(quantity, (0, 1), (0, 3), **above)
    ax.annotate(plain(name), (0, 1), (0, 4 + 1.25 * SMALL * lines), color=tint, fontweight="bold", **above)
    ax.set_xticks(layers if len(layers) <= 8 else layers[:: -(-len(layers) // 8)])
    ax.set_xlim(layers[0] - 0.35, layers[-1] + 0.35)
    ax.set_xlabel("layer", fontsize=SMALL)
    ax.locator_params(axis="y", nbins=4)
    if rows[0].unit == "share":
        per_cent(ax)
