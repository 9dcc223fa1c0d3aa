"""Images of two objects, what the heads look at, what the tokens are; drawn from the stored arrays alone."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(arrays: Mapping[str, np.ndarray], networks: Sequence[str], ways: Sequence[str]) -> "Figure":
    """A row an image: itself, and for each network its first heads and the first three components as colours; below, IoU by network.

    Args:
        arrays: ``crate/emergence/<network>/images, attention, components`` and ``crate/emergence/<way>`` [networks, 3, seeds].
        networks, ways: names.
    """
    first = f"crate/emergence/{networks[0]}"
    images = arrays[f"{first}/images"][:3]
    heads = arrays[f"{first}/attention"].shape[1]
    columns = 1 + len(networks) * (heads + 1)
    figure, flat = axes(len(images) + 1, columns, width=0.82 * columns, height=1.05 * len(images) + 1.7)
    grid = flat.reshape(len(images) + 1, columns)
    for row, image in enumerate(images):
        _show(grid[row, 0], image.transpose(1, 2, 0), "image" if row == 0 else "")
        for number, network in enumerate(networks):
            start = 1 + number * (heads + 1)
            for head in range(heads):
                title = f"{network.split()[0]}\nhead {head + 1}" if row == 0 else ""
                _show(grid[row, start + head], arrays[f"crate/emergence/{network}/attention"][row, head], title)
            colours = arrays[f"crate/emergence/{network}/components"][row].transpose(1, 2, 0)
            _show(grid[row, start + heads], np.clip(0.5 + colours / 5, 0, 1), "\nPCA" if row == 0 else "")
    spec = grid[-1, 0].get_gridspec()
    for ax in grid[-1]:
        ax.remove()
    half = columns // 2
    overlaps = [arrays[f"crate/emergence/{way}"] for way in ways]
    right = 1.08 * max(float(own.max()) for own in overlaps)
    for part, way, own in zip((spec[-1, 1:half], spec[-1, half + 1 :]), ways, overlaps):
        ax = figure.add_subplot(part)
        _bars(ax, own, networks, way)
        ax.set_xlim(0, right)
    caption(
        figure,
        "Heads: attention of the class token, each map on a scale of its own from its smallest weight (dark) to its largest (bright). PCA: "
        "the first three principal components as red, green and blue, 2.5 deviations either way. Below: "
        "IoU of the best candidate with each object. Filled: trained; grey: untrained; hollow: random patches. Marks are seeds.",
    )
    return figure


def _show(ax: "Axes", picture: np.ndarray, title: str) -> None:
    ax.imshow(picture, cmap="viridis", interpolation="nearest")
    ax.set_title(title, fontsize=7)
    ax.axis("off")


def _bars(ax: "Axes", overlaps: np.ndarray, networks: Sequence[str], title: str) -> None:
    for number, network in enumerate(networks):
        for kind, (face, edge) in enumerate(
            ((COLOURS[network], COLOURS[network]), (COLOURS["null"], COLOURS["null"]), ("none", COLOURS[network]))
        ):
            values = overlaps[number, kind]
            ax.plot(values, np.full(len(values), number + 0.2 * (kind - 1)), "o", markerfacecolor=face, markeredgecolor=edge, markersize=4)
    ax.set_yticks(range(len(networks)), [network.split()[0] for network in networks])
    ax.set_ylim(len(networks) - 0.5, -0.5)
    ax.set_title(f"IoU, {title}", fontsize=7.5)
