"""Figures of a training run: learning curves, each theory's quantities over steps and layers, and profiles over the layers at a few steps.

Layers are coloured from dark to light, and nulls are dashed. Up to :data:`MAX_LINES` layers are drawn as lines. More are drawn as two heat
maps, layer by step, one of the values and one of their nulls, with a common scale.
"""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..core.plotting import COLOURS, axes, label_ends, line, shades, style
from . import format
from .network_figures import per_cent, positions
from .timeline import Curves
from .training import TrainingSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_LINES = 6  # most layers that can be distinguished as lines in a small panel
MAX_POINTS = 120  # most points of a curve; more would enlarge the page without a visible difference
DASHES = (0, (4, 3))


@style()
def learning(own: Sequence[Curves], summary: TrainingSummary) -> "Figure | None":
    """Loss, accuracy and other quantities of the whole network, in one row each: against steps on the left, against time on the right."""
    shown = [one for one in own if one.of_network and one.split in ("train", "validation") and not (one.empty or one.setting)]
    quantities = list(dict.fromkeys(one.quantity for one in shown))
    if not quantities:
        return None
    clock, unit = _clock(own)
    figure, panels = axes(len(quantities), 2, 7.6, 0.2 + 2.2 * len(quantities))
    for row, quantity in zip(panels.reshape(-1, 2), quantities):
        for ax, times in zip(row, (None, clock)):
            _draw_learning(ax, [one for one in shown if one.quantity == quantity], summary, times)
            ax.set_xlabel("training step" if ax is row[0] else f"{unit}, measurements included")
        row[0].set_title(quantity)
        row[1].sharey(row[0])
        label_ends(row[1], fontsize=7)
    return figure


def _draw_learning(ax: "Axes", own: Sequence[Curves], summary: TrainingSummary, times: dict[int, float] | None) -> None:
    for one in own:
        tint = COLOURS["network"] if one.split == "train" else COLOURS["attention_svm"]
        x = [step if times is None else times.get(int(step), np.nan) for step in one.steps]
        lone = "o" if len(one.steps) == 1 else None  # a single point needs a marker to be visible
        line(ax, x, one.values[:, 0], color=tint, label="\n".join(textwrap.wrap(one.label, 24)), marker=lone)
        if np.isfinite(one.nulls).any():
            line(ax, x, one.nulls[:, 0], color=COLOURS["null"], label=f"null, {one.split}", linestyle=DASHES, marker=lone and "_")
        if one.label == summary.score and summary.kept is not None:
            at = summary.kept if times is None else times.get(summary.kept, np.nan)
            ax.plot(
                at, one.at(summary.kept) or np.nan, "o", color=tint, markersize=5, markeredgecolor="white", markeredgewidth=0.8, zorder=5
            )
    if any(one.unit == "share" for one in own):
        per_cent(ax)
    if times is None:
        ax.locator_params(axis="x", integer=True)


def _clock(own: Sequence[Curves]) -> tuple[dict[int, float], str]:
    """The time of each step and its unit: seconds for runs of less than 180 s, otherwise minutes."""
    clock = next((one for one in own if one.of_network and one.unit == "s"), None)
    if clock is None:
        return {}, "minutes"
    unit = 1 if np.nanmax(clock.values) < 180 else 60
    return {int(step): float(second) / unit for step, second in zip(clock.steps, clock.values[:, 0])}, "seconds" if unit == 1 else "minutes"


@style()
def theory(headline: Curves | None, others: Sequence[Curves]) -> "Figure | None":
    """A theory's quantities over the steps, a line per layer, its headline first and wide; if there are many layers, the headline alone."""
    if headline is None or headline.empty:
        return None if many_layers(others) else panels(others)
    if not many_layers([headline, *others]):
        return _small(others, wide=headline)
    figure, (ax,) = axes(width=7.6, height=2.7)
    _lines(ax, headline, band=False)
    labelled = set(positions(len(headline.layers), MAX_LINES))
    for position, curve in enumerate(ax.get_lines()[: len(headline.layers)]):
        curve.set_label(_layer(headline.layers[position]) if position in labelled else "_")
    ax.set_ylabel("\n".join(textwrap.wrap(headline.label, 30)))
    ax.set_xlabel("training step")
    label_ends(ax)
    return figure


def many_layers(own: Sequence[Curves]) -> bool:
    """Whether there are too many layers for lines in small panels."""
    return any(len(one.layers) > MAX_LINES for one in own)


@style()
def panels(own: Sequence[Curves]) -> "Figure | None":
    """Several quantities over the steps: small panels of lines, or heat maps if there are many layers."""
    own = [one for one in own if not one.empty]
    if not own:
        return None
    return _heat_maps(own) if many_layers(own) else _small(own)


def _small(own: Sequence[Curves], wide: Curves | None = None) -> "Figure":
    """Three panels per row. The wide one comes first and takes the place of two panels, or of the whole row if it is alone."""
    taken = 0 if wide is None else 2 if own else 3
    rows = -(-(len(own) + taken) // 3)
    figure, places = axes(rows, 3, 7.6, 0.35 + (1.75 if rows > 1 else 2.3) * rows)
    for ax, one in zip(places[taken:], own):
        _lines(ax, one, band=True)
        ax.set_title(_title(one), fontsize=7.5, fontweight="normal")
    if wide is not None:
        ax = figure.add_subplot(places[0].get_gridspec()[0, :taken])
        for empty in places[:taken]:
            empty.remove()
        _lines(ax, wide, band=True)
        ax.set_title(wide.label, fontsize=8.5)
    for ax in places[taken + len(own) :]:
        ax.set_visible(False)
    figure.supxlabel("training step", fontsize=7.5)
    layers = max((one.layers for one in (own if wide is None else [wide, *own])), key=len)
    _legend(figure, [(_layer(layer), tint, "-") for layer, tint in zip(layers, shades(len(layers))) if layer is not None])
    return figure


def _lines(ax: "Axes", one: Curves, *, band: bool) -> None:
    """Draws a line per layer, then the nulls, then bands of one standard deviation over heads."""
    kept = positions(len(one.steps), MAX_POINTS)
    steps, tints = one.steps[kept], shades(len(one.layers))
    lone = "o" if len(steps) == 1 else None
    width = 1.7 if len(one.layers) <= MAX_LINES else 1.2
    for values, tint in zip(one.values[kept].T, tints):
        line(ax, steps, values, color=tint, linewidth=width, marker=lone)
    for nulls, tint in zip(one.nulls[kept].T, tints):
        if np.isfinite(nulls).any():
            line(ax, steps, nulls, color=tint, linewidth=0.9, linestyle=DASHES, alpha=0.75, zorder=1.5, marker=lone and "_")
    if band and one.several_heads:
        for values, spread, tint in zip(one.values[kept].T, one.spread[kept].T, tints):
            ax.fill_between(steps, values - spread, values + spread, color=tint, alpha=0.13, linewidth=0, zorder=1)
    ax.locator_params(axis="x", integer=True, nbins=5)


def _heat_maps(own: Sequence[Curves]) -> "Figure":
    """Two quantities per row, each as two heat maps with a common scale: its values and their nulls."""
    rows = -(-len(own) // 2)
    layers = max(len(one.layers) for one in own)
    figure, places = axes(rows, 4, 7.6, 0.2 + (1.35 + 0.03 * layers) * rows)
    grid = places.reshape(-1, 2)
    for (left, right), one in zip(grid, own):
        both = np.stack([one.values, one.nulls])
        finite = both[np.isfinite(both)]
        image = None
        for ax, table, name in ((left, one.values, "measured"), (right, one.nulls, "null")):
            if not np.isfinite(table).any():
                ax.set_visible(False)
                continue
            image = ax.imshow(table.T, vmin=finite.min(), vmax=finite.max(), aspect="auto", origin="lower", interpolation="nearest")
            ax.grid(False)
            ax.spines[:].set_visible(False)
            across, up = positions(len(one.steps), 3), positions(len(one.layers), 4)
            ax.set_xticks(across, [_short(int(one.steps[i])) for i in across])
            ax.set_yticks(up, [str(one.layers[i]) for i in up] if ax is left and one.layers != (None,) else [""] * len(up))
            ax.tick_params(length=2)
            ax.set_xlabel(f"step, {name}", fontsize=7)
        if one.layers != (None,):
            left.set_ylabel("layer", fontsize=7)
        left.set_title(_title(one), fontsize=7.5, fontweight="normal")
        bar = figure.colorbar(image, ax=[left, right], fraction=0.05, pad=0.02, aspect=18)  # pyright: ignore[reportArgumentType]
        bar.ax.tick_params(labelsize=6.5, length=2)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    for ax in grid[len(own) :].ravel():
        ax.set_visible(False)
    return figure


@style()
def by_layer(own: Sequence[Curves], steps: Sequence[int]) -> "Figure | None":
    """Each quantity against the layer, one line per step; nulls are dashed, bars show the standard deviation over heads."""
    own = [one for one in own if not one.empty and one.layers != (None,)]
    if not own:
        return None
    rows = -(-len(own) // 3)
    figure, places = axes(rows, 3, 7.6, 0.4 + 1.85 * rows)
    tints = shades(len(steps))
    for ax, one in zip(places, own):
        layers = np.array(one.layers, dtype=float)
        for position, (step, tint) in enumerate(zip(steps, tints)):
            shift = 0.06 * (position - (len(steps) - 1) / 2)  # error bars of different steps are drawn side by side
            for values, nulls, spread in zip(*(table[one.steps == step] for table in (one.values, one.nulls, one.spread))):
                line(ax, layers + shift, values, color=tint, marker="o", markersize=3.2)
                line(ax, layers + shift, nulls, color=tint, linewidth=0.9, linestyle=DASHES, alpha=0.8, marker="_", zorder=1.5)
                if one.several_heads:
                    ax.errorbar(layers + shift, values, spread, color=tint, linestyle="none", elinewidth=0.8, alpha=0.7)
        ax.set_title(_title(one), fontsize=7.5, fontweight="normal")
        ax.set_xlim(layers.min() - 0.4, layers.max() + 0.4)
        ax.locator_params(axis="x", integer=True, nbins=6)
        ax.set_xlabel("layer", fontsize=7.5)
    for ax in places[len(own) :]:
        ax.set_visible(False)
    _legend(figure, [(f"step {step:,}", tint, "-") for step, tint in zip(steps, tints)])
    return figure


def _legend(figure: "Figure", entries: list[tuple[str, str, object]]) -> None:
    """One legend above all panels: the entries, and a dashed line for the nulls."""
    from matplotlib.lines import Line2D

    entries = [*entries, ("null", COLOURS["null"], DASHES)]
    handles = [Line2D([], [], color=tint, linestyle=dashes, label=text) for text, tint, dashes in entries]  # pyright: ignore
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), handlelength=1.6, columnspacing=1.4)


def _layer(layer: int | None) -> str:
    return "" if layer is None else f"layer {layer}"


def _title(one: Curves) -> str:
    return "\n".join(textwrap.wrap(one.label, 34))


def _short(step: int) -> str:
    return f"{step / 1000:.3g}k" if step >= 10_000 else format.number(step)
