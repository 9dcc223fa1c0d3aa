"""What the room says about data, in one row of panels."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, heatmap, line, text_figure
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "rate_reduction"


def draw(result: Result) -> "Figure":
    """What ReduNet does to the data: ΔR per layer, cosines of unseen samples before and after, spectra of the classes."""
    if f"{NAME}/rates" not in result.arrays:
        reasons = [str(row.get("note", "")) for row in result.select(theory=NAME) if row["value"] is None]
        return text_figure("Rate reduction: " + (reasons[0] if reasons else "no data were measured"))
    cosines = [name for name in ("before", "after") if f"{NAME}/cosines_{name}" in result.arrays]
    figure, panels = axes(1, 2 + len(cosines), height=2.4)
    curve(panels[0], result)
    if f"{NAME}/null_reductions" in result.arrays:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=2, fontsize=7, frameon=False)
    for ax, name in zip(panels[1:], cosines):
        values, labels = result.arrays[f"{NAME}/cosines_{name}"], result.arrays[f"{NAME}/labels"]
        similarity(ax, values, labels, f"Cosines {name}", bar=name == cosines[-1])
    spectra(panels[-1], result)
    return figure


def curve(ax: "Axes", result: Result) -> None:
    """ΔR over the layers, with true and with shuffled labels, and the optimum."""
    rates = result.arrays[f"{NAME}/rates"]
    line(ax, range(len(rates)), rates[:, 0] - rates[:, 1], name=NAME, label="labels as given")
    if f"{NAME}/null_reductions" in result.arrays:
        null = result.arrays[f"{NAME}/null_reductions"]
        line(ax, range(len(null)), null, name="null", linewidth=1.1, label="shuffled labels")
    best = float(result.arrays[f"{NAME}/optimum"])
    if np.isfinite(best):
        ax.axhline(best, color=COLOURS[NAME], linewidth=0.9, linestyle=(0, (1, 2)))
        ax.annotate("optimum", (0, best), xytext=(2, 2), textcoords="offset points", color=COLOURS[NAME], fontsize=7)
        ax.set_ylim(0, 1.12 * max(best, float((rates[:, 0] - rates[:, 1]).max())))
    ax.set_title("Rate reduction")
    ax.set_ylabel("ΔR, nats")
    ax.set_xlabel("layer of ReduNet")


def similarity(ax: "Axes", cosines: np.ndarray, labels: np.ndarray, title: str, *, bar: bool) -> None:
    """Absolute cosines of samples sorted by class: orthogonal classes leave only the blocks on the diagonal."""
    heatmap(ax, np.abs(cosines), "|cosine| of two samples" if bar else "", vmin=0, vmax=1, bar=bar)
    ax.set_title(title)
    edges = np.flatnonzero(np.diff(labels)) + 0.5
    middles = np.convolve(np.concatenate([[-0.5], edges, [len(labels) - 0.5]]), [0.5, 0.5], "valid")
    shown = len(middles) <= 12
    ax.set_xticks([])
    ax.set_yticks(middles if shown else [], [str(label) for label in dict.fromkeys(labels.tolist())] if shown else [])
    ax.set_xlabel("unseen samples")


def spectra(ax: "Axes", result: Result) -> None:
    """Singular values of each class before and after: the optimum's are flat and then zero."""
    before, after = result.arrays[f"{NAME}/spectra_before"], result.arrays[f"{NAME}/spectra_after"]
    shown = min(before.shape[1], 30)
    for values, name, label in ((before, "null", "before"), (after, NAME, "after")):
        for k, row in enumerate(values[:20, :shown]):
            line(ax, range(1, shown + 1), row, name=name, label=label if k == 0 else "", linewidth=0.8, alpha=0.8)
    ax.set_title("Class spectra")
    ax.set_ylabel(r"singular value / $\sqrt{n_j}$")
    ax.set_xlabel("direction, a line a class")
    ax.locator_params(axis="x", integer=True)
    ax.legend(loc="upper right", fontsize=7, frameon=False)
