"""The cells of Syn-Medium: entropy of attention as published, as measured, and the difference."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import axes, caption, colour, heatmap, shades
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "scan_snap"


def syn_medium(result: Result) -> "Figure":
    """A column a number of classes; rows: released, ours, ours less released, as far as there are numbers."""
    K, eta_z, ratios = (result.arrays[f"{NAME}/{name}"] for name in ("classes", "eta_z", "ratios"))
    ours, theirs = result.arrays[f"{NAME}/entropy"], result.arrays[f"{NAME}/published"]
    both = np.concatenate([ours.ravel(), theirs[np.isfinite(theirs)]])
    gap = ours - theirs
    largest = max([0.05, *np.abs(gap[np.isfinite(gap)])])
    plain = {"vmin": both.min(), "vmax": both.max()}
    signed = {"vmin": -largest, "vmax": largest, "cmap": "RdBu_r"}
    rows = [("Released", theirs, plain), ("Ours", ours, plain), ("Difference", gap, signed)]
    rows = [row for row in rows if np.isfinite(row[1]).any()]
    figure, panels = axes(len(rows), len(K), width=max(4.0, 1.9 * len(K)), height=0.3 + 1.9 * len(rows))
    for row, (name, values, limits) in enumerate(rows):
        measured = [column for column in range(len(K)) if np.isfinite(values[column]).any()]
        for column, k in enumerate(K):
            ax, cells = panels[row * len(K) + column], values[column]
            if column not in measured:
                ax.axis("off")
                continue
            heatmap(ax, cells, "nats", bar=column == measured[-1], **limits)
            for (i, j), value in np.ndenumerate(cells):
                if np.isfinite(value):
                    dark = abs(value) < 0.5 * largest if limits is signed else value > 0.5 * (both.min() + both.max())
                    ax.text(j, i, f"{value:+.2f}" if limits is signed else f"{value:.2f}", ha="center", va="center", fontsize=6.5,
                            color="black" if dark else "white")  # fmt: skip
            ax.set_title(f"{name}, $K$ = {k}")
            ax.set_xticks(range(len(ratios)), [f"{ratio:g}" for ratio in ratios])
            ax.set_yticks(range(len(eta_z)), [f"{rate:g}" for rate in eta_z])
            if row == len(rows) - 1:
                ax.set_xlabel("$\\eta_Y / \\eta_Z$")
            if column == measured[0]:
                ax.set_ylabel("$\\eta_Z$")
    caption(figure, "Entropy of attention over each class's distinct tokens, renormalised, mean over classes and seeds, after training.")
    return figure


def recall(result: Result) -> "Figure":
    """Share of distinct tokens above a threshold: a panel a ratio (rows) and number of classes, a curve a learning rate of attention."""
    K, eta_z, ratios = (result.arrays[f"{NAME}/{name}"] for name in ("classes", "eta_z", "ratios"))
    thresholds, share = result.arrays[f"{NAME}/thresholds"], result.arrays[f"{NAME}/recall"]
    figure, panels = axes(len(ratios), len(K), width=max(4.0, 2.0 * len(K)), height=0.9 + 1.9 * len(ratios))
    for i, k in enumerate(K):
        for j, ratio in enumerate(ratios):
            ax = panels[j * len(K) + i]
            ax.plot(thresholds[i], result.arrays[f"{NAME}/start"][i], "--", color=colour("null"), label="uniform attention")
            for rate, curve, tint in zip(eta_z, share[i, :, j], shades(len(eta_z))):
                ax.plot(thresholds[i], curve, color=tint, label=f"$\\eta_Z$ = {rate:g}")
            ax.set_ylim(-0.03, 1.03)
            ax.locator_params(axis="x", nbins=3)
            ax.set_title(f"$K$ = {k}, $\\eta_Y$ = {ratio:g} $\\eta_Z$")
            if j == len(ratios) - 1:
                ax.set_xlabel("threshold on attention")
            if i == 0:
                ax.set_ylabel("share above it")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=int(figure.get_figwidth() / 1.3))
    return figure
