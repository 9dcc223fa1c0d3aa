"""The table of variants as a picture, drawn from the stored arrays alone."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import axes, caption, colour

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKS = ("o", "s", "^")


def draw(arrays: Mapping[str, np.ndarray], compressions: Sequence[str], sparsifications: Sequence[str]) -> "Figure":
    """Accuracy, R^c last over first, non-zeros and time of a step: a line a compression, a mark a sparsification, bars the range of seeds.

    Args:
        arrays: ``crate/variants/table`` [variants, seeds, measured] and ``crate/variants/seconds`` [variants, rounds].
        compressions, sparsifications: names, the variants being their pairs in order.
    """
    table, seconds = arrays["crate/variants/table"], arrays["crate/variants/seconds"]
    relative = seconds / seconds[:1]  # by round, over the first variant
    figure, panels = axes(1, 4, width=8.4, height=2.8)
    shown = (
        ("Accuracy, test part", table[:, :, 0]),
        ("$R^c$, last over first layer", table[:, :, 1]),
        ("Non-zeros, last layer", table[:, :, 3]),
        ("Time of a training step", relative),
    )
    for ax, (title, values) in zip(panels, shown):
        for row in range(len(compressions)):
            for column, name in enumerate(sparsifications):
                own = values[row * len(sparsifications) + column]
                middle, place = float(np.median(own)), row + 0.22 * (column - 1)
                tint = colour(("crate", "rate_reduction", "scan_snap")[column])
                ax.plot([own.min(), own.max()], [place, place], color=tint, linewidth=1.2)
                ax.plot([middle], [place], MARKS[column], color=tint, label=name if row == 0 else "_")
        ax.set_yticks(range(len(compressions)), compressions if ax is panels[0] else [""] * len(compressions))
        ax.invert_yaxis()
        ax.set_title(title)
    panels[3].set_xlabel(f"{compressions[0]}, {sparsifications[0]} = 1")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    caption(
        figure,
        "Rows: compressions; marks: sparsifications, at medians of the seeds (of the rounds, for times); bars: their range. Token "
        "statistics is the attention that reads one second moment a channel.",
    )
    return figure
