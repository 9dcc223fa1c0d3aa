"""Figures of networks: the timeline, learning curves, attention over the input images, features in a plane."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..core.plotting import COLOURS, axes, caption, colour, label_ends, line, plain, style
from ..core.result import Result
from .aggregate import NETWORK
from .attention_maps import attention_maps, displayed, ink
from .curves import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# used if a network has no fixed colour
_TINTS = ("#4477AA", "#AA3377", "#C78A1B", "#117733", "#56B4E9", "#661100")
MAX_ROWS = 6  # largest number of quantities of one network below one another
HEADING = 64  # characters of a line of a heading above one of two columns
# inches of the timeline, so that it fits on a page together with its caption; in two columns
MAX_HEIGHT, TALL = 6.5, 7.5
SMALL = 6.5  # points; the smallest type in the timeline
_TICKS = (0, 0.01, 0.05, 0.15, 0.3, 0.5, 0.75, 1)  # shares of the last step
_FEW_TICKS = (0, 0.05, 0.3, 0.6, 1)  # shares of the last step, for narrow panels


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
                ax.text(
                    0.5,
                    0.5,
                    "not measured",
                    transform=ax.transAxes,
                    ha="center",
                    va="center",
                    fontsize=SMALL,
                    color=COLOURS["null"],
                )
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
        heading = row[0].annotate(
            text, (0, 1), (0, 3), xycoords="axes fraction", textcoords="offset points", fontsize=7
        )
        heading.set(color=colour(of_row[0].theory), in_layout=False)
    for ax, model in zip(grid[0], () if two else models):
        ax.annotate(
            plain(model),
            (0.5, 1),
            (0, 15),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="center",
            fontweight="bold",
        )
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
        ax.fill_between(
            s.steps, s.null_low, s.null_high, color=COLOURS["null"], alpha=0.3, linewidth=0, zorder=1
        )
    if s.nulls is not None:
        line(ax, s.steps, s.nulls, color=COLOURS["null"], linewidth=0.8, linestyle=(0, (4, 3)), zorder=1.5)
    faint = s.judged and s.within
    if s.low is not None and s.high is not None:
        ax.fill_between(
            s.steps, s.low, s.high, color=tint, alpha=0.1 if faint else 0.22, linewidth=0, zorder=1.8
        )
    line(ax, s.steps, s.values, color=tint, linewidth=0.8 if faint else 1.6, alpha=0.6 if faint else 1.0)
    if s.judged and s.departure is not None:
        height = s.values[np.searchsorted(s.steps, s.departure)]
        ax.plot(
            s.departure,
            height,
            "o",
            color=tint,
            markersize=4.2,
            markeredgecolor="white",
            markeredgewidth=0.8,
            zorder=5,
            clip_on=False,
        )


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
    columns = min(2, len(quantities))
    rows = -(-len(quantities) // columns)  # -(-a // b) rounds up
    figure, panels = axes(rows, columns, 7.6, max(2.5, 0.8 + 0.17 * len(models) * min(2, len(splits))) * rows)
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
    for ax in panels[len(quantities) :]:
        ax.set_visible(False)
    return figure


@style()
def attention(result: Result, model: str, *, images: int = 3, layers: int = 2) -> "Figure | None":
    """Draws attention maps at several steps and layers: over the input images if the tokens are a square grid
    of patches, else alone.

    Args:
        result: result that stores the maps.
        model: name of the network.
        images: largest number of images.
        layers: largest number of layers.
    """
    stored = attention_maps(result, model, images)
    if stored is None:
        return None
    from matplotlib.colors import PowerNorm

    inputs = stored.images
    times = positions(len(stored.maps), 4)
    chosen = positions(stored.maps.shape[1], layers if len(times) > 1 else 6)
    maps = stored.maps[np.ix_(times, chosen)]  # [times, layers, n, rows, columns]
    count, first = maps.shape[2], 0 if inputs is None else 1  # a column of images comes first
    columns = first + len(chosen) * len(times)
    figure, panels = axes(count, columns, 7.6, 0.5 + 6.5 / max(columns, 5) * count)
    grid = panels.reshape(count, columns)
    for ax in panels:
        ax.set(xticks=[], yticks=[])
        ax.grid(False)
        ax.spines[:].set_visible(False)
    top = float(np.nanmax(maps)) or 1.0
    for i in range(count):
        if inputs is not None:
            grid[i, 0].imshow(displayed(inputs[i]), cmap="gray_r", vmin=0, vmax=1)
            grid[0, 0].set_title("input", fontsize=7.5, fontweight="normal")
        for a, layer in enumerate(chosen):
            for b, time in enumerate(times):
                ax = grid[i, first + a * len(times) + b]
                if inputs is not None:
                    ax.imshow(_overlay(maps[b, a, i] / top, ink(inputs[i])))
                else:
                    # rows of many keys have small shares
                    ax.imshow(maps[b, a, i], norm=PowerNorm(0.5, 0, top), cmap="YlOrBr")
                if i == 0:
                    start = f"layer {layer}" if b == 0 else ""
                    step = f"\nstep {int(stored.steps[time]):,}" if len(times) > 1 else ""
                    ax.set_title(f"{start}{step}", fontsize=7.5, fontweight="normal")
    _bar(figure, grid, top, "attention" if inputs is None else "attention received")
    return figure


@style()
def features(result: Result, models: Sequence[str]) -> "Figure | None":
    """Draws the features of each network in the plane of its first two principal components, coloured and
    numbered by class.
    """
    labels = result.arrays.get("network/labels")
    models = [
        model
        for model in models
        if (points := result.arrays.get(f"network/{model}/features")) is not None and points.ndim == 2
    ]
    if not models or labels is None:
        return None
    figure, panels = axes(1, max(2, len(models)), 7.6, 3.6)
    import matplotlib

    palette = matplotlib.colormaps["tab10"]
    for ax, model in zip(panels, models):
        points = result.arrays[f"network/{model}/features"]
        classes = labels[: len(points)]
        for label in np.unique(classes):
            members = points[classes == label]
            ax.scatter(
                members[:, 0], members[:, 1], s=7, color=palette(int(label) % 10), alpha=0.55, linewidths=0
            )
        for label in np.unique(classes):
            x, y = np.median(points[classes == label], axis=0)[:2]
            text = ax.text(
                x,
                y,
                str(int(label)),
                ha="center",
                va="center",
                fontsize=9,
                fontweight="bold",
                color="#15181C",
            )
            text.set_bbox(
                {
                    "boxstyle": "circle,pad=0.18",
                    "facecolor": "white",
                    "edgecolor": palette(int(label) % 10),
                    "alpha": 0.85,
                }
            )
        ax.set(xticks=[], yticks=[], title=plain(model), xlabel="first principal component", ylabel="second")
        ax.grid(False)
    for ax in panels[len(models) :]:
        ax.set_visible(False)
    return figure


def per_cent(ax: "Axes") -> None:
    """Formats the ticks of the y-axis, which are shares, in per cent."""
    from matplotlib.ticker import PercentFormatter

    low, high = ax.get_ylim()
    ax.yaxis.set_major_formatter(
        PercentFormatter(1, decimals=0 if high - low > 0.05 else 1, symbol="\u2009%")
    )


def positions(length: int, count: int) -> list[int]:
    """Returns at most ``count`` indices into a sequence of this length, evenly spaced, with the first and the
    last.
    """
    return sorted({round(float(x)) for x in np.linspace(0, length - 1, min(count, length))})


def _overlay(heat: np.ndarray, ink: np.ndarray) -> np.ndarray:
    """Combines an image with its heat map: each patch is tinted by its heat in [0, 1], and ink darkens the
    tint.

    Args:
        heat: share of attention of each patch, scaled to [0, 1], ``[rows, columns]``.
        ink: darkness of each pixel, ``[h, w]``.
    Returns:
        RGB values in [0, 1], ``[h, w, 3]``.
    """
    import matplotlib

    tint = matplotlib.colormaps["YlOrBr"](np.clip(heat, 0, 1) * 0.8)[..., :3]
    height, width = ink.shape[0] // heat.shape[0], ink.shape[1] // heat.shape[1]  # size of a patch in pixels
    # The Kronecker product repeats the tint of each patch for all of its pixels.
    return np.kron(tint, np.ones((height, width, 1))) * (1 - 0.6 * ink[..., None])


def _bar(figure: "Figure", grid: np.ndarray, top: float, label: str) -> None:
    """Adds the colour scale of attention to the right of the panels."""
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize, PowerNorm

    # Over images, whose label is "attention received", _overlay uses the first 80 % of the colours.
    cmap = (
        ListedColormap(matplotlib.colormaps["YlOrBr"](np.linspace(0, 0.8, 128)))
        if label != "attention"
        else "YlOrBr"
    )
    bar = figure.colorbar(
        ScalarMappable(PowerNorm(0.5, 0, top) if label == "attention" else Normalize(0, top), cmap),
        ax=list(grid.ravel()),
        fraction=0.02,
        pad=0.012,
        aspect=28,
    )
    bar.set_label(label, fontsize=7.5)
    bar.ax.tick_params(labelsize=7, length=2)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
