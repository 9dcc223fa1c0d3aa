"""Latents of a hierarchy: their recovery beside chance, stable rank and entropy over training."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import axes, caption, label_ends, line, shades, text_figure
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, ENDING = "joma", "_recovered"


def hierarchy(result: Result) -> "Figure":
    """A row a setting: recovery by layer with the reading for shuffled latents, stable rank as a share of its start, entropy."""
    start = len(NAME) + 1
    kinds = [key[start : -len(ENDING)] for key in result.arrays if key.startswith(f"{NAME}/") and key.endswith(ENDING)]
    if not kinds:
        return text_figure("joma.hierarchy: nothing was measured")
    figure, panels = axes(len(kinds), 3, width=8.5, height=2.2 * len(kinds) + 0.9)
    steps = result.arrays[f"{NAME}/steps"] + 1
    for row, kind in enumerate(kinds):
        left, middle, right = panels[3 * row : 3 * row + 3]
        names = ("recovered", "rank", "entropy", "shuffled")
        recovered, rank, entropy, shuffled = (result.arrays[f"{NAME}/{kind}_{name}"] for name in names)
        for layer, tint in enumerate(shades(recovered.shape[2])):
            null = float(shuffled[layer]) if layer < recovered.shape[2] - 1 else None  # classes are what they are, shuffled or not
            line(left, steps, recovered[:, :, layer].mean(0), color=tint, null=null)
            for ax, values in ((middle, rank / rank[:, :1]), (right, entropy)):
                ax.fill_between(steps, values[:, :, layer].min(0), values[:, :, layer].max(0), color=tint, alpha=0.18, linewidth=0)
                line(ax, steps, values[:, :, layer].mean(0), color=tint, label=f"layer {layer}")
        left.set(title=f"{kind}: recovery", ylabel="largest correlation", ylim=(min(0.4, float(np.min(shuffled))) - 0.02, 1.02))
        middle.set(title="Stable rank, share of the start")
        right.set(title="Entropy of attention", ylabel="nats", ylim=(0, None))
        label_ends(right)
        for ax in (left, middle, right):
            ax.set(xscale="log")
            ax.set_xlabel("step + 1" if row == len(kinds) - 1 else "")
    caption(
        figure,
        "Recovery: the largest correlation of any unit with a latent of the same layer (of the last: with a class), mean over latents. Its "
        "first point is the untrained network; dashed: shuffled latents, after training. Bands: all seeds.",
    )
    return figure
