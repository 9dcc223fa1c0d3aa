"""The figure of mirror descent."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import axes, caption, heatmap
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def mirror(result: Result) -> "Figure":
    """Cosine and Bregman divergence of descent with the potential of p (rows) to the max-margin solutions in the norm of q (columns); the
    theory says that each row is best on the diagonal."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    names = [f"{p:g}" for p in a["powers"]]
    figure, panels = axes(1, 2, width=6.4, height=3.3)
    for ax, key, title in zip(panels, ("cosine", "divergence"), ("Cosine", "Bregman divergence")):
        held = ~np.isnan(a[key])
        mean = np.where(held, a[key], 0).sum(-1) / np.maximum(held.sum(-1), 1)
        shown = mean if key == "cosine" else -np.log10(np.maximum(mean, 1e-16))  # larger is nearer
        heatmap(ax, shown, cmap="Blues", bar=False)
        dark = shown > shown.min() + 0.6 * np.ptp(shown)
        for row, column in np.ndindex(mean.shape):
            text = f"{mean[row, column]:.4f}" if key == "cosine" else f"{mean[row, column]:.2g}"
            weight = "bold" if row == column else "normal"
            tint = "white" if dark[row, column] else "black"
            ax.text(column, row, text, ha="center", va="center", color=tint, fontsize=7.5, fontweight=weight)
        ticks = range(len(names))
        ax.set(title=title, xlabel="max-margin solution in the norm of q", ylabel="mirror descent, p")
        ax.set_xticks(ticks, names)
        ax.set_yticks(ticks, names)
    caption(
        figure,
        f"Means over {a['cosine'].shape[-1]} random problems (those whose selection is feasible). Darker is nearer, each panel on a "
        "scale of its own; the theory says that the diagonal, in bold, is the nearest of its row.",
    )
    return figure
