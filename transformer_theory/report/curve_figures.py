"""Figures of quantities of networks: over the training steps, over the layers, and by layer and head.

Values are means over seeds; nulls are dashed, and the bands of headlines' nulls are filled. Layers are
coloured from dark to light. Up to :data:`MAX_LINES` layers are drawn as lines. More are drawn as two heat
maps, layer by step, one of the values and one of their nulls, with a common scale.
"""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..comparison.pooling import NETWORK
from ..core import format
from ..core.measurement import Measurement
from ..core.plotting import COLOURS, TINTS, axes, caption, colour, label_ends, line, plain, shades, style
from ..core.statistics import over_heads
from .curves import Curves, Series, positions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..comparison.judged import Quantity

WIDTH = 7.6  # inches
SMALL = 6.5  # points; the smallest type
DASHES = (0, (4, 3))  # of nulls
# used if a network has no fixed colour
_TINTS = ("#4477AA", "#AA3377", "#C78A1B", "#117733", "#56B4E9", "#661100")
MAX_ROWS = 6  # largest number of quantities of one network below one another in the timeline
HEADING = 64  # characters of a line of a heading above one of two columns
# inches of the timeline, so that it fits on a page together with its caption; in two columns
MAX_HEIGHT, TALL = 6.5, 7.5
_TICKS = (0, 0.01, 0.05, 0.15, 0.3, 0.5, 0.75, 1)  # shares of the last step
_FEW_TICKS = (0, 0.05, 0.3, 0.6, 1)  # shares of the last step, for narrow panels
MAX_LINES = 6  # largest number of layers whose lines can be distinguished in a small panel
# largest number of points of a curve; more would enlarge the page without a visible difference
MAX_POINTS = 120
MAX_JITTER = 0.28  # largest distance of a head from its layer, in layers
MAX_TICKS = 8  # layers that are named below a panel


def per_cent(ax: "Axes") -> None:
    """Formats the ticks of the y-axis, which are shares, in per cent."""
    from matplotlib.ticker import PercentFormatter

    low, high = ax.get_ylim()
    ax.yaxis.set_major_formatter(
        PercentFormatter(1, decimals=0 if high - low > 0.05 else 1, symbol="\u2009%")
    )


def _grid(count: int, columns: int, head: float, row: float) -> "tuple[Figure, np.ndarray]":
    """Returns a figure and its first ``count`` panels; those left over in the last row are hidden.

    Args:
        count: number of panels.
        columns: panels per row.
        head, row: inches of the figure above the panels, and of each row.
    """
    rows = -(-count // columns)  # -(-a // b) rounds up
    figure, panels = axes(rows, columns, WIDTH, head + row * rows)
    for ax in panels[count:]:
        ax.set_visible(False)
    return figure, panels[:count]


def _dot(ax: "Axes", x: float, y: float, tint: str, size: float, **options) -> None:
    """Draws a dot with a white edge on a curve."""
    edge = {"markeredgecolor": "white", "markeredgewidth": 0.8, "zorder": 5}
    ax.plot(x, y, "o", color=tint, markersize=size, **edge, **options)


def _band(ax: "Axes", x: "Sequence[float] | np.ndarray", low, high) -> None:
    """Fills the band of a null, from its smallest to its largest draw."""
    ax.fill_between(x, low, high, color=COLOURS["null"], alpha=0.3, linewidth=0, zorder=1)


def _above(ax: "Axes", text: str, x: float, offset: float, **options) -> None:
    """Writes a text ``offset`` points above a panel, at the share ``x`` of its width."""
    ax.annotate(text, (x, 1), (0, offset), xycoords="axes fraction", textcoords="offset points", **options)


# ---- the timeline


@style()
def timeline(group: Sequence[Series]) -> "Figure | None":
    """Draws every theory's headline over the training steps: a row per quantity, a column per network.

    The panels of a row have the same y-axis, which points upwards to the values that the theory predicts: it
    is reversed if the theory predicts small values. The band of the null and the range over seeds are filled.
    A curve that does not leave the band is faint, and the panel is at least twice as high as its band, so
    noise does not look like a change. A dot marks the step of departure from the band.
    """
    group = [s for s in group if len(s.steps) > 1]
    models = list(dict.fromkeys(s.model for s in group))
    # Quantities of the networks come first, theories follow in order.
    rows = list(dict.fromkeys((s.theory, s.label) for s in sorted(group, key=lambda s: s.theory != NETWORK)))
    if not models:
        return None
    # Many quantities of one network would be too flat below one another: they get two columns, and headings
    # of two lines.
    two = len(models) == 1 and len(rows) > MAX_ROWS
    height = -(-len(rows) // 2) if two else len(rows)  # -(-a // b) rounds up
    figure, panels = axes(
        height,
        2 if two else len(models),
        7.2,
        min(TALL, 0.75 + 1.15 * height) if two else min(MAX_HEIGHT, 0.75 + 1.02 * height),
    )
    grid = panels.reshape(height, -1)
    places = [grid[i % height, i // height :][:1] for i in range(len(rows))] if two else list(grid)
    lowest = [*places[height - 1], *places[-1]]
    for ax in grid.T.ravel()[len(rows) :] if two else ():
        ax.set_visible(False)
    square_root = False
    for row, quantity in zip(places, rows):
        of_row = [s for s in group if (s.theory, s.label) == quantity]
        low, high = _limits(of_row)
        for ax, model in zip(row, models):
            ax.tick_params(labelsize=SMALL, length=2, labelleft=ax is row[0])
            of_panel = [s for s in of_row if s.model == model]
            if not of_panel:
                centred = {"transform": ax.transAxes, "ha": "center", "va": "center"}
                ax.text(0.5, 0.5, "not measured", fontsize=SMALL, color=COLOURS["null"], **centred)
            for s in of_panel:
                _draw_series(ax, s)
            square_root |= _steps(
                [s for s in group if s.model == model], ax, _FEW_TICKS if len(models) > 1 else _TICKS
            )
            ax.locator_params(axis="y", nbins=3)
            ax.set_ylim(*((high, low) if of_row[0].side == "<=" else (low, high)))
            ax.tick_params(labelbottom=ax in lowest)
            if of_row[0].unit == "share":
                per_cent(ax)
        # reserves the height of the heading, which may extend over other panels
        row[0].set_title("\n" if two else " ", fontsize=7, pad=3)
        text = "\n".join(textwrap.wrap(_heading(of_row[0]), HEADING)) if two else _heading(of_row[0])
        _above(row[0], text, 0, 3, fontsize=7, color=colour(of_row[0].theory), in_layout=False)
    for ax, model in zip(grid[0], () if two else models):
        _above(ax, plain(model), 0.5, 15, ha="center", fontweight="bold")
    if two:
        figure.suptitle(plain(models[0]), fontsize=9, fontweight="bold")
    for ax in lowest:
        ax.set_xlabel(f"training step{' (square-root scale)' if square_root else ''}", fontsize=7)
    seeds = max(s.seeds for s in group)
    several = f" Lines are means over {seeds} seeds, coloured bands their range." if seeds > 1 else ""
    caption(
        figure,
        "Upwards is what the theory predicts. Grey: the null, from its smallest to its largest draw, and "
        f"its median (dashed).{several} Dot: the curve leaves this band and stays outside. Faint: it does "
        "not leave it.",
    )
    return figure


def _draw_series(ax: "Axes", s: Series) -> None:
    """Draws the band of the null, the range over seeds and the curve; a dot marks the departure from the
    band.
    """
    tint = colour(s.theory)
    if s.null_low is not None and s.null_high is not None:
        _band(ax, s.steps, s.null_low, s.null_high)
    if s.nulls is not None:
        line(ax, s.steps, s.nulls, color=COLOURS["null"], linewidth=0.8, linestyle=DASHES, zorder=1.5)
    faint = s.judged and s.within
    if s.low is not None and s.high is not None:
        ax.fill_between(
            s.steps, s.low, s.high, color=tint, alpha=0.1 if faint else 0.22, linewidth=0, zorder=1.8
        )
    line(ax, s.steps, s.values, color=tint, linewidth=0.8 if faint else 1.6, alpha=0.6 if faint else 1.0)
    if s.judged and s.departure is not None:
        _dot(ax, s.departure, s.values[np.searchsorted(s.steps, s.departure)], tint, 4.2, clip_on=False)


def _limits(group: Sequence[Series]) -> tuple[float, float]:
    """Returns the limits of the y-axis that panels of one quantity share.

    They hold all values, seeds and bands. The band of a curve that does not leave it takes at most half of
    the height.
    """
    parts = [
        part
        for s in group
        for part in (s.values, s.low, s.high, s.nulls, s.null_low, s.null_high)
        if part is not None
    ]
    low, high = min(float(part.min()) for part in parts), max(float(part.max()) for part in parts)
    for s in group:
        if s.null_low is not None and s.null_high is not None and s.nulls is not None and s.within:
            widest = float((s.null_high - s.null_low).max())
            low, high = min(low, float(s.nulls.min()) - widest), max(high, float(s.nulls.max()) + widest)
    space = 0.07 * (high - low) or 0.1 * abs(high) or 1.0
    return low - space, high + space


def _heading(s: Series) -> str:
    """Names the theory, the quantity and the predicted direction."""
    if s.theory == NETWORK:
        return s.label
    direction = {">=": "  ↑ predicted", "<=": "  ↑ predicted: small values (axis reversed)"}.get(
        s.side or "", ""
    )
    return f"{plain(s.title or s.theory)}: {s.label}{direction}"


def _steps(group: Sequence[Series], ax: "Axes", shares: Sequence[float] = _TICKS) -> bool:
    """Sets up the axis of steps and returns whether its scale is the square root; its ticks are then at these
    shares of the last step.

    The square root is used if the first measurements are much denser than later ones.
    """
    ax.locator_params(axis="x", integer=True)
    steps = max((s.steps for s in group), key=len)
    gaps = np.diff(steps)
    # Only the first half of the gaps is compared with the largest gap. The last gap is short if training ends
    # between two regular measurements; this is not a reason to change the scale.
    if len(steps) < 4 or steps[0] < 0 or gaps.max() < 4 * gaps[: len(gaps) // 2].min():
        return False
    ax.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0)), np.square))
    last = float(steps[-1])
    ticks = [round(last * share) for share in shares]
    ax.set_xticks(ticks)
    ax.set_xlim(0, last * 1.015)
    ax.minorticks_off()
    return True


# ---- learning curves


@style()
def learning(available: Sequence[Series]) -> "Figure | None":
    """Draws loss, accuracy and other quantities with a split over the training steps, one panel per quantity;
    shares come last.
    """
    group = [s for s in available if s.theory == NETWORK and s.split]
    quantities = sorted(
        dict.fromkeys(s.quantity for s in group),
        key=lambda name: any(s.unit == "share" for s in group if s.quantity == name),
    )
    if not quantities:
        return None
    models = list(dict.fromkeys(s.model for s in group))
    known = all(model in COLOURS for model in models)
    tints = {model: colour(model) if known else _TINTS[i % len(_TINTS)] for i, model in enumerate(models)}
    splits = list(dict.fromkeys(s.split for s in group))
    row = max(2.5, 0.8 + 0.17 * len(models) * min(2, len(splits)))  # the labels of the curves need it
    figure, panels = _grid(len(quantities), min(2, len(quantities)), 0, row)
    for ax, quantity in zip(panels, quantities):
        selection = [s for s in group if s.quantity == quantity]
        for s in selection:
            dashes = ("-", (0, (4, 2)), (0, (1, 1)))[splits.index(s.split) % 3]
            label = plain(s.model) if len(splits) == 1 else f"{plain(s.model)}:\n{s.split}"
            line(ax, s.steps, s.values, label=label, linestyle=dashes, color=tints[s.model])
        ax.set_title(selection[0].label if len(splits) == 1 else quantity)
        if selection[0].unit == "share":
            per_cent(ax)
        ax.set_xlabel(f"training step{', square-root scale' if _steps(selection, ax) else ''}")
        label_ends(ax)
    return figure


@style()
def learning_of_run(curves: Sequence[Curves], score: str | None, kept: int | None) -> "Figure | None":
    """Draws one row per quantity of the whole network (loss, accuracy, ...): against steps on the left,
    against time on the right.

    Args:
        curves: curves of one training.
        score: label of the quantity that selected the kept network, which a dot marks; None without one.
        kept: step of the kept network; None without one.
    """
    selection = [
        curve
        for curve in curves
        if curve.of_network and not (curve.empty or curve.setting) and curve.split in ("train", "validation")
    ]
    quantities = list(dict.fromkeys(curve.quantity for curve in selection))
    if not quantities:
        return None
    clock, unit = _clock(curves)
    figure, panels = _grid(2 * len(quantities), 2, 0.2, 2.2)
    for (left, right), quantity in zip(panels.reshape(-1, 2), quantities):
        of_quantity = [curve for curve in selection if curve.quantity == quantity]
        for ax, times in ((left, None), (right, clock)):
            for curve in of_quantity:
                _draw_learning(ax, curve, times, kept if curve.label == score else None)
            if any(curve.unit == "share" for curve in of_quantity):
                per_cent(ax)
        left.locator_params(axis="x", integer=True)
        left.set_xlabel("training step")
        right.set_xlabel(f"{unit}, measurements included")
        left.set_title(quantity)
        right.sharey(left)
        label_ends(right, fontsize=7)
    return figure


def _draw_learning(ax: "Axes", curve: Curves, times: dict[int, float] | None, kept: int | None) -> None:
    """Draws a curve and its null against ``times``, or against steps if it is None; a dot marks the step
    ``kept``.
    """
    tint = COLOURS["network"] if curve.split == "train" else TINTS[0]
    x = [step if times is None else times.get(int(step), np.nan) for step in curve.steps]
    marker = "o" if len(curve.steps) == 1 else None  # a single point needs a marker to be visible
    label = "\n".join(textwrap.wrap(curve.label, 24))
    line(ax, x, curve.values[:, 0], color=tint, label=label, marker=marker)
    if np.isfinite(curve.nulls).any():
        null = {"color": COLOURS["null"], "linestyle": DASHES, "marker": marker and "_"}
        line(ax, x, curve.nulls[:, 0], label=f"null, {curve.split}", **null)
    if kept is not None:
        score = curve.at(kept)
        x_kept = kept if times is None else times.get(kept, np.nan)
        _dot(ax, x_kept, np.nan if score is None else score, tint, 5)


def _clock(curves: Sequence[Curves]) -> tuple[dict[int, float], str]:
    """Returns the time of each step, and its unit: seconds for runs of less than 180 s, otherwise minutes.

    The times are empty if none were measured.
    """
    clock = next((curve for curve in curves if curve.of_network and curve.unit == "s"), None)
    if clock is None:
        return {}, "minutes"
    unit = 1 if np.nanmax(clock.values) < 180 else 60
    return {
        int(step): float(second) / unit for step, second in zip(clock.steps, clock.values[:, 0])
    }, "seconds" if unit == 1 else "minutes"


# ---- quantities of theories in training


@style()
def in_training(headline: Curves | None, others: Sequence[Curves]) -> "Figure | None":
    """Draws a theory's quantities over the steps, one line per layer.

    The headline has a wide panel, which comes first. If there are many layers, the headline is drawn alone.
    """
    if headline is None or headline.empty:
        return None if many_layers(others) else every_quantity(others)
    if not many_layers([headline, *others]):
        return _small(others, wide=headline)
    figure, (ax,) = axes(width=WIDTH, height=2.7)
    _lines(ax, headline, band=False)
    _null_bands(ax, headline)
    labelled = set(positions(len(headline.layers), MAX_LINES))
    for position, layer_line in enumerate(ax.get_lines()[: len(headline.layers)]):
        layer_line.set_label(_layer(headline.layers[position]) if position in labelled else "_")
    ax.set_ylabel("\n".join(textwrap.wrap(headline.label, 30)))
    ax.set_xlabel("training step")
    label_ends(ax)
    return figure


def many_layers(curves: Sequence[Curves]) -> bool:
    """Returns whether there are too many layers for lines in small panels."""
    return any(len(curve.layers) > MAX_LINES for curve in curves)


@style()
def every_quantity(curves: Sequence[Curves]) -> "Figure | None":
    """Draws several quantities over the steps: small panels of lines, or heat maps if there are many
    layers.
    """
    curves = [curve for curve in curves if not curve.empty]
    if not curves:
        return None
    return _heat_maps(curves) if many_layers(curves) else _small(curves)


def _small(curves: Sequence[Curves], wide: Curves | None = None) -> "Figure":
    """Draws three panels per row. The wide panel comes first and takes the place of two panels, or of three
    if it is alone.
    """
    wide_places = 0 if wide is None else 2 if curves else 3
    count = len(curves) + wide_places
    figure, places = _grid(count, 3, 0.35, 1.75 if count > 3 else 2.3)
    for ax, curve in zip(places[wide_places:], curves):
        _lines(ax, curve, band=True)
        ax.set_title(_title(curve), fontsize=7.5, fontweight="normal")
    if wide is not None:
        # The wide panel spans the first places of the grid; their own panels are removed.
        ax = figure.add_subplot(places[0].get_gridspec()[0, :wide_places])
        for covered in places[:wide_places]:
            covered.remove()
        _lines(ax, wide, band=False)
        _null_bands(ax, wide)
        ax.set_title(wide.label, fontsize=8.5)
    figure.supxlabel("training step", fontsize=7.5)
    layers = max((curve.layers for curve in (curves if wide is None else [wide, *curves])), key=len)
    _legend(
        figure,
        [(_layer(layer), tint, "-") for layer, tint in zip(layers, shades(len(layers))) if layer is not None],
    )
    return figure


def _lines(ax: "Axes", curve: Curves, *, band: bool) -> None:
    """Draws a line per layer, then the nulls, then bands of one standard deviation over heads."""
    points = positions(len(curve.steps), MAX_POINTS)
    steps, tints = curve.steps[points], shades(len(curve.layers))
    marker = "o" if len(steps) == 1 else None
    width = 1.7 if len(curve.layers) <= MAX_LINES else 1.2
    for values, tint in zip(curve.values[points].T, tints):
        line(ax, steps, values, color=tint, linewidth=width, marker=marker)
    for nulls, tint in zip(curve.nulls[points].T, tints):
        if np.isfinite(nulls).any():
            null = {"linewidth": 0.9, "linestyle": DASHES, "alpha": 0.75, "marker": marker and "_"}
            line(ax, steps, nulls, color=tint, zorder=1.5, **null)
    if band and curve.several_heads:
        for values, spread, tint in zip(curve.values[points].T, curve.spread[points].T, tints):
            ax.fill_between(
                steps, values - spread, values + spread, color=tint, alpha=0.13, linewidth=0, zorder=1
            )
    ax.locator_params(axis="x", integer=True, nbins=5)


def _null_bands(ax: "Axes", curve: Curves) -> None:
    """Fills the band of the null of each layer, from its smallest to its largest draw."""
    points = positions(len(curve.steps), MAX_POINTS)
    low, high = curve.null_band[:, points]
    for bottom, top, tint in zip(low.T, high.T, shades(len(curve.layers))):
        if np.isfinite(bottom).any():
            ax.fill_between(curve.steps[points], bottom, top, color=tint, alpha=0.13, linewidth=0, zorder=1)


def _heat_maps(curves: Sequence[Curves]) -> "Figure":
    """Draws two quantities per row, each as two heat maps with a common scale: its values and their nulls."""
    layers = max(len(curve.layers) for curve in curves)
    figure, places = _grid(2 * len(curves), 4, 0.2, 1.35 + 0.03 * layers)
    for (left, right), curve in zip(places.reshape(-1, 2), curves):
        both = np.stack([curve.values, curve.nulls])  # [2, steps, layers]
        finite = both[np.isfinite(both)]
        image = None
        for ax, table, name in ((left, curve.values, "measured"), (right, curve.nulls, "null")):
            if not np.isfinite(table).any():
                ax.set_visible(False)
                continue
            image = ax.imshow(
                table.T,
                vmin=finite.min(),
                vmax=finite.max(),
                aspect="auto",
                origin="lower",
                interpolation="nearest",
            )
            ax.grid(False)
            ax.spines[:].set_visible(False)
            step_ticks, layer_ticks = positions(len(curve.steps), 3), positions(len(curve.layers), 4)
            ax.set_xticks(step_ticks, [_short(int(curve.steps[i])) for i in step_ticks])
            labelled = ax is left and curve.layers != (None,)
            ax.set_yticks(layer_ticks, [str(curve.layers[i]) if labelled else "" for i in layer_ticks])
            ax.tick_params(length=2)
            ax.set_xlabel(f"step, {name}", fontsize=7)
        if curve.layers != (None,):
            left.set_ylabel("layer", fontsize=7)
        left.set_title(_title(curve), fontsize=7.5, fontweight="normal")
        assert image is not None  # a curve with values has a map
        bar = figure.colorbar(image, ax=[left, right], fraction=0.05, pad=0.02, aspect=18)
        bar.ax.tick_params(labelsize=6.5, length=2)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return figure


@style()
def over_layers(curves: Sequence[Curves], steps: Sequence[int]) -> "Figure | None":
    """Draws each quantity against the layer, one line per step; nulls are dashed, bars show the standard
    deviation over heads.
    """
    curves = [curve for curve in curves if not curve.empty and curve.layers != (None,)]
    if not curves:
        return None
    figure, places = _grid(len(curves), 3, 0.4, 1.85)
    tints = shades(len(steps))
    for ax, curve in zip(places, curves):
        layers = np.array(curve.layers, dtype=float)
        for position, (step, tint) in enumerate(zip(steps, tints)):
            # error bars of different steps are drawn side by side
            shift = 0.06 * (position - (len(steps) - 1) / 2)
            for values, nulls, spread in zip(
                *(table[curve.steps == step] for table in (curve.values, curve.nulls, curve.spread))
            ):
                line(ax, layers + shift, values, color=tint, marker="o", markersize=3.2)
                null = {"linewidth": 0.9, "linestyle": DASHES, "alpha": 0.8, "marker": "_", "zorder": 1.5}
                line(ax, layers + shift, nulls, color=tint, **null)
                if curve.several_heads:
                    bars = {"linestyle": "none", "elinewidth": 0.8, "alpha": 0.7}
                    ax.errorbar(layers + shift, values, spread, color=tint, **bars)
        ax.set_title(_title(curve), fontsize=7.5, fontweight="normal")
        ax.set_xlim(layers.min() - 0.4, layers.max() + 0.4)
        ax.locator_params(axis="x", integer=True, nbins=6)
        ax.set_xlabel("layer", fontsize=7.5)
    _legend(figure, [(f"step {step:,}", tint, "-") for step, tint in zip(steps, tints)])
    return figure


def _legend(figure: "Figure", entries: list[tuple[str, str, object]]) -> None:
    """Adds one legend above all panels: the entries, and a dashed line for the nulls."""
    from matplotlib.lines import Line2D

    entries = [*entries, ("null", COLOURS["null"], DASHES)]
    handles = [
        Line2D([], [], color=tint, linestyle=dashes, label=text)  # pyright: ignore[reportArgumentType]
        for text, tint, dashes in entries
    ]
    figure.legend(
        handles=handles, loc="outside upper left", ncols=len(handles), handlelength=1.6, columnspacing=1.4
    )


def _layer(layer: int | None) -> str:
    return "" if layer is None else f"layer {layer}"


def _title(curve: Curves) -> str:
    return "\n".join(textwrap.wrap(curve.label, 34))


def _short(step: int) -> str:
    return f"{step / 1000:.3g}k" if step >= 10_000 else format.number(step)


# ---- one network


@style()
def heads_by_layer(shown: "Sequence[Quantity]", subject: str) -> "Figure | None":
    """Draws one panel per quantity that was measured in layers: heads as dots, their mean as a line, the null
    of the mean as a band.

    Args:
        shown: the quantities.
        subject: the network and its inputs in words.
    """
    shown = [each for each in shown if any(row.layer is not None for row in each.rows)]
    if not shown:
        return None
    figure, panels = _grid(len(shown), 3, 0.5, 1.72)
    for ax, quantity in zip(panels, shown):
        _panel(ax, quantity)
    for ax in panels[-3:]:
        ax.set_xlabel("layer", fontsize=7)
    dots = (
        "Small dots: heads; large dots: heads or layers beyond their copies. "
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


def _panel(ax: "Axes", quantity: "Quantity") -> None:
    tint = colour(quantity.theory)
    layers = sorted({row.layer for row in quantity.rows if row.layer is not None})
    means = [over_heads([row for row in quantity.rows if row.layer == layer]) for layer in layers]
    for layer, mean in zip(layers, means):
        if mean.null is not None and mean.null.draws:
            box = (layer - 0.42, layer + 0.42)
            _band(ax, box, mean.null.low, mean.null.high)
            median = {"linewidth": 0.9, "linestyle": (0, (3, 2)), "zorder": 1.5}
            ax.plot(box, [mean.null.median] * 2, color=COLOURS["null"], **median)
    for layer in layers:
        _heads(ax, layer, [row for row in quantity.rows if row.layer == layer], tint, quantity.beyond)
    values = [float("nan") if row.value is None else row.value for row in means]
    marker = "_" if len(layers) == 1 else None  # a line of one point cannot be seen
    ax.plot(layers, values, color=tint, linewidth=1.3, marker=marker, markersize=12, zorder=3)
    arrow = {">=": " ↑", "<=": " ↓"}.get(quantity.mean.side or "", "")
    name = textwrap.fill(f"{plain(quantity.label)}{arrow}", 42, max_lines=2, placeholder=" …")
    null = quantity.mean.null
    if null is not None and null.draws:
        name += "\n" + textwrap.shorten(f"null: {null.kind}", 46, placeholder=" …")
    heading = textwrap.shorten(plain(quantity.short_title), 38, placeholder=" …")
    room = "\n" * (1 + name.count("\n"))  # for the name below the heading
    ax.set_title(heading + room, fontsize=7, color=tint, pad=3)
    _above(ax, name, 0, 2, fontsize=SMALL - 0.3, color=COLOURS["raw"], va="bottom")
    ax.set_xlim(min(layers) - 0.5, max(layers) + 0.5)
    ax.set_xticks([layers[position] for position in positions(len(layers), MAX_TICKS)])
    ax.locator_params(axis="y", nbins=4)
    ax.tick_params(labelsize=SMALL, length=2)
    if quantity.mean.unit == "share":
        per_cent(ax)


def _heads(
    ax: "Axes", layer: int, rows: Sequence[Measurement], tint: str, beyond: Sequence[Measurement]
) -> None:
    """Draws the heads of a layer side by side, those beyond their copies larger."""
    count = len(rows)
    for index, row in enumerate(sorted(rows, key=lambda row: row.head or 0)):
        if row.value is None:
            continue
        shift = 0.0 if count == 1 else MAX_JITTER * (2 * index / (count - 1) - 1)
        strong = any(row is each for each in beyond)
        ax.plot(
            [layer + shift],
            [row.value],
            "o",
            color=tint,
            markersize=4.2 if strong else 2.0,
            alpha=0.95 if strong else 0.55,
            zorder=4,
        )
