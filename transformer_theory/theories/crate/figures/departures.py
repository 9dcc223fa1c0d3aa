"""Accuracy and compression of the networks that each undo one departure, drawn from the stored table alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHANCE = 0.1  # of ten digits


def draw(table: np.ndarray, networks: Sequence[str]) -> "Figure":
    """A row a network: mark the mean of the seeds, bar their range; the released network is the dashed line, chance the dotted one.

    Args:
        table: [networks, seeds, (accuracy, R^c after over before)].
        networks: names, the released one first.
    """
    figure, panels = axes(1, 2, width=7.0, height=3.6)
    for column, (ax, title) in enumerate(zip(panels, ("Accuracy, test part", "$R^c$ after attention over before"))):
        values = table[:, :, column]
        ax.axvline(values[0].mean(), color=COLOURS["null"], linewidth=1.0, linestyle=(0, (4, 3)))
        for place, own in enumerate(values):
            tint = COLOURS["raw"] if place == 0 else COLOURS["crate"]
            ax.plot([own.min(), own.max()], [place, place], color=tint, linewidth=1.2)
            ax.plot([own.mean()], [place], "o", color=tint)
        ax.set_yticks(range(len(networks)), networks if column == 0 else [""] * len(networks))
        ax.invert_yaxis()
        ax.set_title(title)
    shown = panels[0].get_xlim()
    panels[0].axvline(CHANCE, color=COLOURS["null"], linewidth=1.0, linestyle=(0, (1, 2)))
    if shown[0] > 2 * CHANCE:  # far from every network: the line would only take the place of the differences
        panels[0].set_xlim(shown)
    panels[1].axvline(1.0, color=COLOURS["raw"], linewidth=0.8)
    caption(
        figure,
        "Each network but the first undoes one departure of the released form; the last but one is released, too. Marks: means of the "
        "seeds; bars: their range; dashed: the released network. Chance is an accuracy of .1 (dotted, if it is in sight). "
        "Left of 1 attention compresses.",
    )
    return figure
