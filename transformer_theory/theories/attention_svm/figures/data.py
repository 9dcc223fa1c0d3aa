"""The figure of the room on data: what descent did, a pure function of a stored result."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import axes, caption, text_figure
from ....core.result import Result
from .analysis import BLUE, draw_attention, draw_cosines, draw_margins

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(result: Result) -> "Figure":
    """Where descent went on the data: cosine to the max-margin direction, margins, attention, and which selections are feasible."""
    arrays = {name.split("/", 1)[1]: value for name, value in result.arrays.items() if name.startswith("attention_svm/")}
    if "cosine_selected" not in arrays:
        verdicts = [str(row.get("verdict", "")) for row in result.select(theory="attention_svm")]
        reasons = [verdict for verdict in verdicts if verdict.startswith("not applicable")]
        return text_figure(reasons[0] if reasons else "attention_svm: nothing was measured on these data")
    figure, (left, middle, right, last) = axes(2, 2, width=7.0, height=5.0)
    draw_cosines(left, arrays)
    draw_margins(middle, arrays)
    draw_attention(right, arrays)
    _feasible(last, arrays)
    caption(
        figure,
        "Descent on W from zero, over inputs whose best tokens have a max-margin solution together. Margins are in units of the "
        "largest smallest margin. Feasible: share of random sets of so many inputs whose best tokens some W selects.",
    )
    return figure


def _feasible(ax, arrays: dict[str, np.ndarray]) -> None:
    n, share = arrays["feasible_n"], arrays["feasible_share"]
    ax.plot(n, share, color=BLUE, marker="o")
    ax.set(title="Feasible random sets", xlabel="inputs in the set", ylabel="share", ylim=(-0.04, 1.06), xlim=(0, max(n.max(), 4) + 1))
