"""The figure of one network: each theory's headline by layer and head, beside its null."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.measurement import Measurement
from ..core.plotting import COLOURS, axes, caption, colour, plain, style
from ..core.statistics import over_heads
from .network_figures import per_cent, positions
from .outcomes import side_of_null

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .own_quantities import Quantity

COLUMNS, WIDTH, ROW = 3, 7.6, 1.72  # panels per row; inches
MAX_JITTER = 0.28  # largest distance of a head from its layer, in layers
SMALL = 6.5  # points
MAX_TICKS = 8  # layers that are named below a panel


@style()
def by_layer(shown: "Sequence[Quantity]", titles: dict[str, str], subject: str) -> "Figure | None":
    """Draws one panel per quantity that was measured in layers: heads as dots, their mean as a line, the null
    of the mean as a band.

    Args:
        shown: the quantities.
        titles: titles of theories by name.
        subject: the network and its inputs in words.
    """
    shown = [each for each in shown if any(row.layer is not None for row in each.rows)]
    if not shown:
        return None
    rows = -(-len(shown) // COLUMNS)  # -(-a // b) rounds up
    figure, panels = axes(rows, COLUMNS, WIDTH, 0.5 + ROW * rows)
    for ax, quantity in zip(panels, shown):
        _panel(ax, quantity, titles.get(quantity.theory, quantity.theory))
    for ax in panels[len(shown) :]:
        ax.set_visible(False)
    for ax in panels[max(0, len(shown) - COLUMNS) : len(shown)]:
        ax.set_xlabel("layer", fontsize=7)
    dots = (
        "Small dots: heads; large dots: heads or layers beyond their own null (p ≤ .05). "
        if any(q.tested for q in shown)
        else "Dots: heads. "
    )
    caption(
        figure,
        f"{plain(subject)}. Line: mean over the heads of a layer. {dots}Grey: the null of the mean, from "
        "its smallest to its largest draw, and its median (dashed). ↑ or ↓: the side that the theory "
        "predicts.",
    )
    return figure


def _panel(ax: "Axes", quantity: "Quantity", title: str) -> None:
    tint, layers = (
        colour(quantity.theory),
        sorted({row.layer for row in quantity.rows if row.layer is not None}),
    )
    means = [over_heads([row for row in quantity.rows if row.layer == layer]) for layer in layers]
    _band(ax, layers, means)
    for layer in layers:
        _heads(ax, layer, [row for row in quantity.rows if row.layer == layer], tint)
    values = [float("nan") if row.value is None else row.value for row in means]
    ax.plot(
        layers,
        values,
        color=tint,
        linewidth=1.3,
        marker="_" if len(layers) == 1 else None,
        markersize=12,
        zorder=3,
    )
    arrow = {">=": " ↑", "<=": " ↓"}.get(quantity.mean.side or "", "")
    name = textwrap.fill(f"{plain(quantity.label)}{arrow}", 42, max_lines=2, placeholder=" …")
    null = quantity.mean.null
    name += (
        ""
        if null is None or not null.draws
        else f"\n{textwrap.shorten(f'null: {null.kind}', 46, placeholder=' …')}"
    )
    lines = "\n" * (1 + name.count("\n"))  # room for the name below the title
    ax.set_title(
        f"{textwrap.shorten(plain(title.partition(':')[0]), 38, placeholder=' …')}{lines}",
        fontsize=7,
        color=tint,
        pad=3,
    )
    ax.annotate(
        name,
        (0, 1),
        (0, 2),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=SMALL - 0.3,
        color=COLOURS["raw"],
        va="bottom",
    )
    ax.set_xlim(min(layers) - 0.5, max(layers) + 0.5)
    ax.set_xticks([layers[position] for position in positions(len(layers), MAX_TICKS)])
    ax.locator_params(axis="y", nbins=4)
    ax.tick_params(labelsize=SMALL, length=2)
    if quantity.mean.unit == "share":
        per_cent(ax)


def _band(ax: "Axes", layers: Sequence[int], means: Sequence[Measurement]) -> None:
    """Draws the null of each layer as a box from its smallest to its largest draw, with the median."""
    for layer, row in zip(layers, means):
        if row.null is not None and row.null.draws:
            box = (layer - 0.42, layer + 0.42)
            ax.fill_between(
                box, row.null.low, row.null.high, color=COLOURS["null"], alpha=0.3, linewidth=0, zorder=1
            )
            ax.plot(
                box,
                [row.null.median] * 2,
                color=COLOURS["null"],
                linewidth=0.9,
                linestyle=(0, (3, 2)),
                zorder=1.5,
            )


def _heads(ax: "Axes", layer: int, rows: Sequence[Measurement], tint: str) -> None:
    """Draws the heads of a layer side by side."""
    count = len(rows)
    for index, row in enumerate(sorted(rows, key=lambda row: row.head or 0)):
        if row.value is None:
            continue
        shift = 0.0 if count == 1 else MAX_JITTER * (2 * index / (count - 1) - 1)
        strong = side_of_null(row) == 1
        ax.plot(
            [layer + shift],
            [row.value],
            "o",
            color=tint,
            markersize=4.2 if strong else 2.0,
            alpha=0.95 if strong else 0.55,
            zorder=4,
        )
