"""The figure of the share of problems in which descent selects every best token."""

from typing import TYPE_CHECKING

from ....core.plotting import COLOURS, axes, caption
from ....core.result import Result
from .marks import known, mark

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TINTS = (COLOURS["attention_svm"], COLOURS["scan_snap"], COLOURS["rate_reduction"], COLOURS["crate"], COLOURS["joma"])


def global_convergence(result: Result, common: int) -> "Figure":
    """Share against dimension with its 95 % band: on the left for several numbers of inputs, on the right of tokens.

    Args:
        common: T on the left and n on the right.
    """
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    beside = {quantity: number for (quantity, _), number in known(result).items()}
    figure, panels = axes(1, 2, width=7.0, height=3.1)
    for ax, varied, other in zip(panels, (0, 1), ("T", "n")):
        shown = [at for at, pair in enumerate(a["pairs"]) if pair[1 - varied] == common]
        points = []
        for tint, at in zip(TINTS, sorted(shown, key=lambda at: a["pairs"][at][varied])):
            n, T = a["pairs"][at]
            ax.fill_between(a["dims"], a["low"][at], a["high"][at], color=tint, alpha=0.14, linewidth=0)
            ax.plot(a["dims"], a["share"][at], color=tint, marker="o", markersize=3, label=f"{'nT'[varied]} = {a['pairs'][at][varied]}")
            quantities = {d: f"share that selects every best token, n={n} T={T} d={d}" for d in a["dims"]}
            points += [(int(d), *beside[quantity]) for d, quantity in quantities.items() if quantity in beside]
        mark(ax, points)
        ax.set_xscale("log")
        ax.set_xticks(a["dims"], [str(d) for d in a["dims"]])
        ax.minorticks_off()
        ax.set(title=f"All best tokens selected, {other} = {common}", xlabel="dimension d", ylabel="share of problems")
        ax.set_ylim(-0.03, 1.04)
        ax.legend(loc="lower right")
    count = result.params["trials"]
    caption(figure, f"Share of {count} random problems for each size; bands: 95 % intervals (Clopper-Pearson).")
    return figure
