"""The dynamics of one instance."""

from typing import TYPE_CHECKING

from ....core.plotting import COLOURS, axes, caption, line
from ....core.result import Result
from ..flow import CLOSED, EXACT, LEMMA4, MODIFIED
from .tints import DYNAMICS, TOKENS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "scan_snap"
FLOWS = {"exact": EXACT, "modified": MODIFIED, "lemma4": LEMMA4}  # as the arrays call them


def fates(result: Result) -> "Figure":
    """The four dynamics of one instance: the common token, all tokens in Lemma 4's flow, and the relative gain."""
    t = result.arrays[f"{NAME}/times"]
    figure, (left, middle, right) = axes(1, 3, width=7.4, height=3.1)
    for key, dynamics in FLOWS.items():
        line(left, t, result.arrays[f"{NAME}/common_{key}"], color=DYNAMICS[dynamics], label=dynamics)
        line(right, t, result.arrays[f"{NAME}/gain_error_{key}"], color=DYNAMICS[dynamics])
    line(left, t, result.arrays[f"{NAME}/common_closed"], color=DYNAMICS[CLOSED], label=CLOSED, linestyle="--")
    for token, values in enumerate(result.arrays[f"{NAME}/logits_lemma4"].T):
        line(middle, t, values, color=TOKENS["distinct" if token else "common"], linewidth=0.9)
    left.set(title="Common token", ylabel="attention logit z")
    middle.set(title=f"All tokens, {LEMMA4}", ylabel="attention logit z")
    right.set(title="Relative gains", ylabel="relative error of $r(0)\\,\\chi(t)$", yscale="log")
    for ax in (left, middle, right):
        ax.set(xscale="log", xlabel="step")
        ax.axvline(float(result.arrays[f"{NAME}/scanning_time"]), color=COLOURS["null"], linewidth=0.9, linestyle=(0, (4, 3)))
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=4)
    caption(
        figure,
        "Dashed upright: $t_0'$, when scanning ends. Middle: the common token falls, distinct ones rise, likelier ones more. "
        "Right: largest error over the pairs of tokens of a class.",
    )
    return figure
