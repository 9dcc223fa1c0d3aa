"""Figures of a training: how it learns, each theory's quantities over steps and layers, and layer by layer at a few readings.

Layers are coloured from dark to light, nulls dashed. Few layers are drawn as lines; many as pictures, layer by reading, in which the
measurement and its null share a scale.
"""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..core.notes import is_share
from ..core.plotting import COLOURS, axes, label_ends, line, shades, style
from .facts import TEST, Facts, base
from .figures import per_cent, positions
from .readings import Readings
from .wording import drawn, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW = 6  # layers that lines in a small panel tell apart
DRAWN = 120  # readings of a curve, at most: more are not told apart, and make the page large
DASHES = (0, (4, 3))
CLOCK = ("seconds", "images per second")


def learning(read: Sequence[Readings], facts: Facts) -> "Figure | None":
    """All that was measured of the whole network, against steps and against time: the loss, the score, and what else there is."""
    own = {r.quantity: r for r in read if r.theory == "network" and r.layers == (None,) and not r.empty}
    curves = {name: r for name, r in own.items() if name not in CLOCK and not name.startswith(TEST)}
    kinds = [[r for name, r in curves.items() if word in name] for word in ("loss", "accuracy")]
    kinds += [[r] for r in curves.values() if not any(r in kind for kind in kinds) and _base(r, curves) is r]
    for kind in kinds:
        kind += [r for r in curves.values() if r not in kind and _base(r, curves) in kind]
    kinds = [kind for kind in kinds if kind]
    if not kinds:
        return None
    clock, unit = _clock(own)
    figure, panels = axes(len(kinds), 2, 7.6, 0.2 + 2.2 * len(kinds))
    for row, kind in zip(panels.reshape(-1, 2), kinds):
        for ax, along in zip(row, (None, clock)):
            _learn(ax, kind, curves, facts, along)
            ax.set_xlabel("training step" if ax is row[0] else f"{unit}, readings included")
        row[0].set_title(drawn(_common(kind)))
        row[1].sharey(row[0])
        label_ends(row[1], fontsize=7)
    return figure


def _learn(ax: "Axes", kind: Sequence[Readings], curves: dict[str, Readings], facts: Facts, clock: dict[int, float] | None) -> None:
    for r in kind:
        own = _base(r, curves) is r
        tint = COLOURS["network"] if r.quantity == "loss" else COLOURS["attention_svm"] if own else COLOURS["null"]
        at = [step if clock is None else clock.get(int(step), np.nan) for step in r.steps]
        lone = "o" if len(r.steps) == 1 else None
        words = "\n".join(textwrap.wrap(drawn("training loss" if r.quantity == "loss" else r.quantity), 24))
        line(ax, at, r.values[:, 0], color=tint, label=words, linestyle="-" if own else DASHES, marker=lone)
        if r.quantity == facts.score and facts.kept is not None and facts.kept_score is not None:
            x = facts.kept if clock is None else clock.get(facts.kept, np.nan)
            ax.plot(x, facts.kept_score.value, "o", color=tint, markersize=5, markeredgecolor="white", markeredgewidth=0.8, zorder=5)
    if any(is_share(r.quantity) for r in kind):
        per_cent(ax)
    if clock is None:
        ax.locator_params(axis="x", integer=True)


def _base(r: Readings, curves: dict[str, Readings]) -> Readings:
    """What a reading is the null of; else itself."""
    return curves[base(r.quantity, curves)]


def _common(kind: Sequence[Readings]) -> str:
    return next((word for word in ("loss", "accuracy") if all(word in r.quantity for r in kind)), kind[0].quantity)


def _clock(own: dict[str, Readings]) -> tuple[dict[int, float], str]:
    """The time of each reading, in minutes, or in seconds where they are few."""
    clock = own.get("seconds")
    if clock is None:
        return {}, "minutes"
    unit = 1 if np.nanmax(clock.values) < 180 else 60
    return {int(step): float(second) / unit for step, second in zip(clock.steps, clock.values[:, 0])}, "seconds" if unit == 1 else "minutes"


def theory(order: Readings | None, others: Sequence[Readings]) -> "Figure | None":
    """A theory's quantities over the steps, a line a layer, its order parameter first and wide; of a network of many layers that alone."""
    if order is None or order.empty:
        return None if many(others) else panels(others)
    if not many([order, *others]):
        return _small(others, wide=order)
    figure, (ax,) = axes(width=7.6, height=2.7)
    _lines(ax, order, band=False)
    labelled = set(positions(len(order.layers), FEW))
    for position, curve in enumerate(ax.get_lines()[: len(order.layers)]):
        curve.set_label(_layer(order.layers[position]) if position in labelled else "_")
    ax.set_ylabel(drawn("\n".join(textwrap.wrap(order.quantity, 30))))
    ax.set_xlabel("training step")
    label_ends(ax)
    return figure


def many(read: Sequence[Readings]) -> bool:
    """Whether there are too many layers for lines in small panels."""
    return any(len(r.layers) > FEW for r in read)


def panels(read: Sequence[Readings]) -> "Figure | None":
    """Several quantities over the steps: small panels of lines, or pictures if there are many layers."""
    read = [r for r in read if not r.empty]
    if not read:
        return None
    return _pictures(read) if many(read) else _small(read)


def _small(read: Sequence[Readings], wide: Readings | None = None) -> "Figure":
    """Three panels a row; the wide one takes the place of two, or the whole row if it is alone."""
    taken = 0 if wide is None else 2 if read else 3
    rows = -(-(len(read) + taken) // 3)
    figure, places = axes(rows, 3, 7.6, 0.35 + (1.75 if rows > 1 else 2.3) * rows)
    for ax, r in zip(places[taken:], read):
        _lines(ax, r, band=True)
        ax.set_title(_title(r), fontsize=7.5, fontweight="normal")
    if wide is not None:
        with style():
            ax = figure.add_subplot(places[0].get_gridspec()[0, :taken])
        for empty in places[:taken]:
            empty.remove()
        _lines(ax, wide, band=True)
        ax.set_title(drawn(wide.quantity), fontsize=8.5)
    for ax in places[taken + len(read) :]:
        ax.set_visible(False)
    figure.supxlabel("training step", fontsize=7.5)
    every = read if wide is None else [wide, *read]
    _legend(figure, [(_layer(layer), tint, "-") for layer, tint in _tints(every)])
    return figure


def _lines(ax: "Axes", r: Readings, *, band: bool) -> None:
    """A line a layer, then the nulls, then the bands."""
    kept = positions(len(r.steps), DRAWN)
    steps, tints = r.steps[kept], shades(len(r.layers))
    lone = "o" if len(steps) == 1 else None
    width = 1.7 if len(r.layers) <= FEW else 1.2
    for values, tint in zip(r.values[kept].T, tints):
        line(ax, steps, values, color=tint, linewidth=width, marker=lone)
    for nulls, tint in zip(r.nulls[kept].T, tints):
        if np.isfinite(nulls).any():
            line(ax, steps, nulls, color=tint, linewidth=0.9, linestyle=DASHES, alpha=0.75, zorder=1.5, marker=lone and "_")
    if band and r.several:
        for values, spread, tint in zip(r.values[kept].T, r.spread[kept].T, tints):
            ax.fill_between(steps, values - spread, values + spread, color=tint, alpha=0.13, linewidth=0, zorder=1)
    ax.locator_params(axis="x", integer=True, nbins=5)


def _pictures(read: Sequence[Readings]) -> "Figure":
    """Two quantities a row, each as two pictures on one scale: what was measured and its null."""
    rows = -(-len(read) // 2)
    layers = max(len(r.layers) for r in read)
    figure, places = axes(rows, 4, 7.6, 0.2 + (1.35 + 0.03 * layers) * rows)
    grid = places.reshape(-1, 2)
    for (left, right), r in zip(grid, read):
        both = np.stack([r.values, r.nulls])
        finite = both[np.isfinite(both)]
        image = None
        for ax, table, name in ((left, r.values, "measured"), (right, r.nulls, "null")):
            if not np.isfinite(table).any():
                ax.set_visible(False)
                continue
            image = ax.imshow(table.T, vmin=finite.min(), vmax=finite.max(), aspect="auto", origin="lower", interpolation="nearest")
            ax.grid(False)
            ax.spines[:].set_visible(False)
            at, up = positions(len(r.steps), 3), positions(len(r.layers), 4)
            ax.set_xticks(at, [_short(int(r.steps[i])) for i in at])
            ax.set_yticks(up, [str(r.layers[i]) for i in up] if ax is left and r.layers != (None,) else [""] * len(up))
            ax.tick_params(length=2)
            ax.set_xlabel(f"step, {name}", fontsize=7)
        if r.layers != (None,):
            left.set_ylabel("layer", fontsize=7)
        left.set_title(_title(r), fontsize=7.5, fontweight="normal")
        bar = figure.colorbar(image, ax=[left, right], fraction=0.05, pad=0.02, aspect=18)  # pyright: ignore[reportArgumentType]
        bar.ax.tick_params(labelsize=6.5, length=2)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    for ax in grid[len(read) :].ravel():
        ax.set_visible(False)
    return figure


def by_layer(read: Sequence[Readings], steps: Sequence[int]) -> "Figure | None":
    """Quantities against the layer, a line for each of a few readings, nulls dashed, the standard deviation over heads as bars."""
    read = [r for r in read if not r.empty and r.layers != (None,)]
    if not read:
        return None
    rows = -(-len(read) // 3)
    figure, places = axes(rows, 3, 7.6, 0.4 + 1.85 * rows)
    tints = shades(len(steps))
    for ax, r in zip(places, read):
        layers = np.array(r.layers, dtype=float)
        for position, (step, tint) in enumerate(zip(steps, tints)):
            for values, nulls, spread in zip(r.values[r.steps == step], r.nulls[r.steps == step], r.spread[r.steps == step]):
                apart = 0.06 * (position - (len(steps) - 1) / 2)  # bars of several steps lie beside each other
                line(ax, layers + apart, values, color=tint, marker="o", markersize=3.2)
                line(ax, layers + apart, nulls, color=tint, linewidth=0.9, linestyle=DASHES, alpha=0.8, marker="_", zorder=1.5)
                if r.several:
                    ax.errorbar(layers + apart, values, spread, color=tint, linestyle="none", elinewidth=0.8, alpha=0.7)
        ax.set_title(_title(r), fontsize=7.5, fontweight="normal")
        ax.set_xlim(layers.min() - 0.4, layers.max() + 0.4)
        ax.locator_params(axis="x", integer=True, nbins=6)
        ax.set_xlabel("layer", fontsize=7.5)
    for ax in places[len(read) :]:
        ax.set_visible(False)
    _legend(figure, [(f"step {step:,}", tint, "-") for step, tint in zip(steps, tints)])
    return figure


def _legend(figure: "Figure", entries: list[tuple[str, str, object]]) -> None:
    """One legend above all panels, with the nulls."""
    from matplotlib.lines import Line2D

    entries = [*entries, ("null", COLOURS["null"], DASHES)]
    handles = [Line2D([], [], color=tint, linestyle=dashes, label=text) for text, tint, dashes in entries]  # pyright: ignore
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), handlelength=1.6, columnspacing=1.4)


def _tints(read: Sequence[Readings]) -> list[tuple[int, str]]:
    """Layers with their colours, which are the same in every panel that has all of them."""
    layers = max((r.layers for r in read), key=len)
    return [(layer, tint) for layer, tint in zip(layers, shades(len(layers))) if layer is not None]


def _layer(layer: int | None) -> str:
    return "" if layer is None else f"layer {layer}"


def _title(r: Readings) -> str:
    return drawn("\n".join(textwrap.wrap(r.quantity, 34)))


def _short(step: int) -> str:
    return f"{step / 1000:.3g}k" if step >= 10_000 else number(step)
