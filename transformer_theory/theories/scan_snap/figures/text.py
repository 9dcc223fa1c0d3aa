"""Attention of language models that learn a text: maps over training, entropies against steps, rates and depths."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption, heatmap, label_ends, shades
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "scan_snap/text"


def attention(result: Result) -> "Figure":
    """A row of maps of the lowest layer for each decoder, and below the entropy of its layers over the steps."""
    steps, pictured = result.arrays[f"{NAME}/steps"], result.arrays[f"{NAME}/pictured"]
    depths_ = [int(depth) for depth in result.params["layers"]]
    columns = len(pictured)
    figure, flat = axes(len(depths_) + 1, columns, width=7.4, height=1.9 * len(depths_) + 2.6)
    grid = flat.reshape(len(depths_) + 1, columns)
    for row, depth in zip(grid, depths_):
        maps = result.arrays[f"{NAME}/{depth}/maps"][:, 0]
        for column, (ax, picture, step) in enumerate(zip(row, maps, pictured.tolist())):
            shown = np.where(np.tri(len(picture), dtype=bool), picture, np.nan)
            heatmap(ax, shown, "weight" if column == columns - 1 else "", vmin=0, vmax=1, bar=column == columns - 1)
            ax.set_title(f"{_layers(depth)}, step {step}", fontsize=7.5)
            ax.set_xlabel("key")
            if column == 0:
                ax.set_ylabel("query")
    spec = grid[-1, 0].get_gridspec()
    for ax in grid[-1]:
        ax.remove()
    cuts = np.linspace(0, columns, len(depths_) + 1).round().astype(int) if len(depths_) <= columns else None
    for number, depth in enumerate(depths_):
        place = spec[-1, cuts[number] : cuts[number + 1]] if cuts is not None else spec[-1, min(number, columns - 1)]
        _curves(figure.add_subplot(place), steps, result.arrays[f"{NAME}/{depth}/entropy"], f"Entropy, nats: {_layers(depth)}")
        figure.axes[-1].plot(steps, result.arrays[f"{NAME}/{depth}/shuffled"], color=COLOURS["null"], linewidth=0.9, linestyle=(0, (4, 3)))
    words = "Maps: the lowest layer's attention to one held-out window, keys after the query left white. Curves: means of all windows"
    caption(figure, f"{words}; dashed: the same words shuffled.")
    return figure


def rates(result: Result) -> "Figure":
    """Entropy of attention and held-out loss against the learning rate, a mark a seed."""
    at, entropy, loss = (result.arrays[f"{NAME}/{name}"] for name in ("rates", "entropy", "held_out"))
    figure, (left, right) = axes(1, 2, width=7.0, height=2.6)
    for ax, values, title in ((left, entropy[:, :, 1], "Attention entropy, nats"), (right, loss, "Held-out loss, nats a word")):
        ax.plot(at, values.mean(1), color=COLOURS["scan_snap"])
        ax.plot(at, values, "o", color=COLOURS["scan_snap"], alpha=0.5, markeredgewidth=0)
        ax.set(title=title, xlabel="learning rate")
    start = float(entropy[:, :, 0].mean())
    left.axhline(start, color=COLOURS["null"], linewidth=1.0, linestyle=(0, (4, 3)))
    left.set_ylim(0, 1.12 * max(start, float(entropy.max())))
    caption(figure, f"After {result.params['steps']} steps; marks are seeds, the line is their mean. Dashed: before training.")
    return figure


def depths(result: Result) -> "Figure":
    """A panel a depth (across) and rate (down), a curve a layer."""
    steps, layers, speeds = (result.arrays[f"{NAME}/{name}"] for name in ("steps", "layers", "rates"))
    figure, flat = axes(len(speeds), len(layers), width=2.5 * len(layers) + 0.3, height=1.8 * len(speeds) + 0.7)
    grid = flat.reshape(len(speeds), len(layers))
    most = max(float(np.nanmax(result.arrays[f"{NAME}/{rate:g}/{depth}"])) for rate in speeds for depth in layers)
    for row, rate in zip(grid, speeds.tolist()):
        for ax, depth in zip(row, layers.tolist()):
            ax.set_ylim(0, 1.08 * most)
            _curves(ax, steps, result.arrays[f"{NAME}/{rate:g}/{depth}"], f"{_layers(depth)}, Adam {rate:g}")
    caption(figure, "Entropy of attention in nats, mean over held-out windows; a curve a layer, 0 the lowest.")
    return figure


def _curves(ax: "Axes", steps: np.ndarray, entropy: np.ndarray, title: str) -> None:
    """A curve a layer over the steps."""
    for layer, (values, tint) in enumerate(zip(entropy.T, shades(entropy.shape[1]))):
        label = f"layer {layer}" if entropy.shape[1] > 1 else "_"
        ax.plot(steps, values, color=tint, label=label, linewidth=1.4)
    ax.set(title=title, xlabel="step")
    ax.locator_params(axis="x", integer=True)
    ax.set_ylim(0, max(float(np.nanmax(entropy)) * 1.08, ax.get_ylim()[1]))
    label_ends(ax, fontsize=6.5)


def _layers(depth: int) -> str:
    return f"{depth} layer{'s'[: depth > 1]}"
