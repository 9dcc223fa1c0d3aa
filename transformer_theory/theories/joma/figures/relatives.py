"""Relatives on a binary latent tree: co-occurrence, and the order in which attention finds them."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption, label_ends, line, shades, text_figure
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "joma"


def relatives(result: Result) -> "Figure":
    """P(leaf | leaf) over H, formula and draws; change of the attention logits by H over training, in three settings."""
    if f"{NAME}/logits_softmax" not in result.arrays:
        return text_figure("joma.relatives: nothing was measured")
    figure, (left, *learnt) = axes(1, 4, height=2.9, width=10.5)
    formula, drawn, steps = (result.arrays[f"{NAME}/{name}"] for name in ("formula", "drawn", "steps"))
    up = np.arange(1, len(formula) + 1)
    line(left, up, formula, name=NAME, null=float(result.arrays[f"{NAME}/frequency"][0]))
    left.plot(up, drawn, "o", color=COLOURS["raw"], markersize=4, zorder=3)
    left.set(title="Co-occurrence", xlabel="H, levels to the ancestor", ylabel="P(leaf | leaf)", xticks=up)
    settings = (
        ("exponential", "Exponential attention"),
        ("exponential, sibling rare", "Sibling rarely heard"),
        ("softmax", "Softmax attention"),
    )
    for ax, (how, title) in zip(learnt, settings):
        curves = result.arrays[f"{NAME}/logits_{how}"]
        for H, tint in zip(up, shades(len(up))):
            values = curves[:, :, H - 1]
            ax.fill_between(steps, values.min(0), values.max(0), color=tint, alpha=0.18, linewidth=0)
            line(ax, steps, values.mean(0), color=tint, label=f"H = {H}")
        ax.set(title=title, xlabel="step", ylabel="change of the logit z")
        label_ends(ax)
    caption(
        figure,
        "Left, line: formula; dots: draws; dashed: P(leaf). The block guesses a leaf from the others; bands: all draws, lines: their mean.",
    )
    return figure
