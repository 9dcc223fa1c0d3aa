"""Figures of a training run: learning curves, each theory's quantities over steps and layers, and profiles
over the layers at a few steps.

Values are means over seeds. Layers are coloured from dark to light, and nulls are dashed; the band of a
headline's null is filled. Up to :data:`MAX_LINES` layers are drawn as lines. More are drawn as two heat maps,
layer by step, one of the values and one of their nulls, with a common scale.
"""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..core import format
from ..core.plotting import COLOURS, axes, label_ends, line, shades, style
from .curves import Curves
from .network_figures import per_cent, positions
from .training import TrainingSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LINES = 6  # largest number of layers whose lines can be distinguished in a small panel
# largest number of points of a curve; more would enlarge the page without a visible difference
MAX_POINTS = 120
DASHES = (0, (4, 3))


@style()
def learning(curves: Sequence[Curves], summary: TrainingSummary) -> "Figure | None":
    """Draws one row per quantity of the whole network (loss, accuracy, ...): against steps on the left,
    against time on the right.
    """
    whole = [curve for curve in curves if curve.of_network and not (curve.empty or curve.setting)]
    selection = [curve for curve in whole if curve.split in ("train", "validation")]
    quantities = list(dict.fromkeys(curve.quantity for curve in selection))
    if not quantities:
        return None
    clock, unit = _clock(curves)
    figure, grid = axes(len(quantities), 2, 7.6, 0.2 + 2.2 * len(quantities))
    for row, quantity in zip(grid.reshape(-1, 2), quantities):
        for ax, times in zip(row, (None, clock)):
            _draw_learning(ax, [curve for curve in selection if curve.quantity == quantity], summary, times)
            ax.set_xlabel("training step" if ax is row[0] else f"{unit}, measurements included")
        row[0].set_title(quantity)
        row[1].sharey(row[0])
        label_ends(row[1], fontsize=7)
    return figure


def _draw_learning(
    ax: "Axes", curves: Sequence[Curves], summary: TrainingSummary, times: dict[int, float] | None
) -> None:
    """Draws the curves of one quantity against ``times``, or against steps if it is None; a dot marks the
    kept network.
    """
    for curve in curves:
        tint = COLOURS["network"] if curve.split == "train" else COLOURS["attention_svm"]
        x = [step if times is None else times.get(int(step), np.nan) for step in curve.steps]
        marker = "o" if len(curve.steps) == 1 else None  # a single point needs a marker to be visible
        line(
            ax,
            x,
            curve.values[:, 0],
            color=tint,
            label="\n".join(textwrap.wrap(curve.label, 24)),
            marker=marker,
        )
        if np.isfinite(curve.nulls).any():
            line(
                ax,
                x,
                curve.nulls[:, 0],
                color=COLOURS["null"],
                label=f"null, {curve.split}",
                linestyle=DASHES,
                marker=marker and "_",
            )
        if curve.label == summary.score and summary.kept is not None:
            x_kept = summary.kept if times is None else times.get(summary.kept, np.nan)
            score = curve.at(summary.kept)
            score = np.nan if score is None else score
            ax.plot(
                x_kept,
                score,
                "o",
                color=tint,
                markersize=5,
                markeredgecolor="white",
                markeredgewidth=0.8,
                zorder=5,
            )
    if any(curve.unit == "share" for curve in curves):
        per_cent(ax)
    if times is None:
        ax.locator_params(axis="x", integer=True)


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


@style()
def theory(headline: Curves | None, others: Sequence[Curves]) -> "Figure | None":
    """Draws a theory's quantities over the steps, one line per layer.

    The headline has a wide panel, which comes first. If there are many layers, the headline is drawn alone.
    """
    if headline is None or headline.empty:
        return None if many_layers(others) else panels(others)
    if not many_layers([headline, *others]):
        return _small(others, wide=headline)
    figure, (ax,) = axes(width=7.6, height=2.7)
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
def panels(curves: Sequence[Curves]) -> "Figure | None":
    """Draws several quantities over the steps: small panels of lines, or heat maps if there are many layers."""
    curves = [curve for curve in curves if not curve.empty]
    if not curves:
        return None
    return _heat_maps(curves) if many_layers(curves) else _small(curves)


def _small(curves: Sequence[Curves], wide: Curves | None = None) -> "Figure":
    """Draws three panels per row. The wide panel comes first and takes the place of two panels, or of three
    if it is alone.
    """
    wide_places = 0 if wide is None else 2 if curves else 3
    rows = -(-(len(curves) + wide_places) // 3)  # -(-a // b) rounds up
    figure, places = axes(rows, 3, 7.6, 0.35 + (1.75 if rows > 1 else 2.3) * rows)
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
    for ax in places[wide_places + len(curves) :]:
        ax.set_visible(False)
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
            line(
                ax,
                steps,
                nulls,
                color=tint,
                linewidth=0.9,
                linestyle=DASHES,
                alpha=0.75,
                zorder=1.5,
                marker=marker and "_",
            )
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
    rows = -(-len(curves) // 2)  # -(-a // b) rounds up
    layers = max(len(curve.layers) for curve in curves)
    figure, places = axes(rows, 4, 7.6, 0.2 + (1.35 + 0.03 * layers) * rows)
    grid = places.reshape(-1, 2)
    for (left, right), curve in zip(grid, curves):
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
        bar = figure.colorbar(image, ax=[left, right], fraction=0.05, pad=0.02, aspect=18)  # pyright: ignore[reportArgumentType]
        bar.ax.tick_params(labelsize=6.5, length=2)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    for ax in grid[len(curves) :].ravel():
        ax.set_visible(False)
    return figure


@style()
def by_layer(curves: Sequence[Curves], steps: Sequence[int]) -> "Figure | None":
    """Draws each quantity against the layer, one line per step; nulls are dashed, bars show the standard
    deviation over heads.
    """
    curves = [curve for curve in curves if not curve.empty and curve.layers != (None,)]
    if not curves:
        return None
    rows = -(-len(curves) // 3)  # -(-a // b) rounds up
    figure, places = axes(rows, 3, 7.6, 0.4 + 1.85 * rows)
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
                line(
                    ax,
                    layers + shift,
                    nulls,
                    color=tint,
                    linewidth=0.9,
                    linestyle=DASHES,
                    alpha=0.8,
                    marker="_",
                    zorder=1.5,
                )
                if curve.several_heads:
                    ax.errorbar(
                        layers + shift,
                        values,
                        spread,
                        color=tint,
                        linestyle="none",
                        elinewidth=0.8,
                        alpha=0.7,
                    )
        ax.set_title(_title(curve), fontsize=7.5, fontweight="normal")
        ax.set_xlim(layers.min() - 0.4, layers.max() + 0.4)
        ax.locator_params(axis="x", integer=True, nbins=6)
        ax.set_xlabel("layer", fontsize=7.5)
    for ax in places[len(curves) :]:
        ax.set_visible(False)
    _legend(figure, [(f"step {step:,}", tint, "-") for step, tint in zip(steps, tints)])
    return figure


def _legend(figure: "Figure", entries: list[tuple[str, str, object]]) -> None:
    """Adds one legend above all panels: the entries, and a dashed line for the nulls."""
    from matplotlib.lines import Line2D

    entries = [*entries, ("null", COLOURS["null"], DASHES)]
    handles = [Line2D([], [], color=tint, linestyle=dashes, label=text) for text, tint, dashes in entries]  # pyright: ignore
    figure.legend(
        handles=handles, loc="outside upper left", ncols=len(handles), handlelength=1.6, columnspacing=1.4
    )


def _layer(layer: int | None) -> str:
    return "" if layer is None else f"layer {layer}"


def _title(curve: Curves) -> str:
    return "\n".join(textwrap.wrap(curve.label, 34))


def _short(step: int) -> str:
    return f"{step / 1000:.3g}k" if step >= 10_000 else format.number(step)
