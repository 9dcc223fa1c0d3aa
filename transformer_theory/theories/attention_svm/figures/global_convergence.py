"""The figure of the share of problems in which descent selects every best token."""

from typing import TYPE_CHECKING

from ....experiment import Result
from ....plotting import COLOURS, axes, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TINTS = (COLOURS["attention_svm"], COLOURS["scan_snap"], COLOURS["rate_reduction"], COLOURS["crate"], COLOURS["joma"])


def global_convergence(result: Result, common: int) -> "Figure":
    """Share against dimension with its 95 % band: on the left for several numbers of inputs, on the right of tokens.

    Args:
        common: T on the left and n on the right.
    """
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    known = {row["quantity"]: row["predicted"] for row in result.table if "predicted" in row}
    with style():
        figure, panels = axes(1, 2, width=7.0, height=2.9)
        for ax, varied, other in zip(panels, (0, 1), ("T", "n")):
            shown = [at for at, pair in enumerate(a["pairs"]) if pair[1 - varied] == common]
            for tint, at in zip(TINTS, sorted(shown, key=lambda at: a["pairs"][at][varied])):
                n, T = a["pairs"][at]
                ax.fill_between(a["dims"], a["low"][at], a["high"][at], color=tint, alpha=0.14, linewidth=0)
                ax.plot(a["dims"], a["share"][at], color=tint, marker="o", markersize=3, label=f"{'nT'[varied]} = {a['pairs'][at][varied]}")
                for d in a["dims"]:
                    if (quantity := f"share that selects every best token, n={n} T={T} d={d}") in known:
                        ax.plot(d, known[quantity], "x", color="black", markersize=5, markeredgewidth=1.0, zorder=5)
            if known:
                ax.plot([], [], "x", color="black", markersize=5, markeredgewidth=1.0, label="independent run")
            ax.set_xscale("log")
            ax.set_xticks(a["dims"], [str(d) for d in a["dims"]])
            ax.minorticks_off()
            ax.set(
                title=f"All best tokens selected, {other} = {common}", xlabel="dimension d", ylabel="share of problems", ylim=(-0.03, 1.04)
            )
            ax.legend(loc="lower right")
    return figure
