"""The figure of the ranks of max-margin solutions."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption
from ....core.result import Result
from .marks import known

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NORMS = (("frobenius", "Frobenius", COLOURS["attention_svm"]), ("nuclear", "nuclear", COLOURS["scan_snap"]))


def rank(result: Result) -> "Figure":
    """Mean rank against dimension, a panel a pair (n, T): true ranks with their 95 % bands, the published recipe run again, the paper's
    numbers, and the largest rank that Pataki's bound allows in the nuclear norm."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    paper = {quantity: number for (quantity, _), (number, basis) in known(result).items() if basis == "figure"}
    count, columns = len(a["pairs"]) + 1, 3
    figure, panels = axes(-(-count // columns), columns, width=7.0, height=0.4 + 2.3 * -(-count // columns))
    place = np.arange(len(a["dims"]))
    for at, ((n, T), ax) in enumerate(zip(a["pairs"], panels)):
        for norm, words, tint in NORMS:
            centre, half = a[norm][at], a[f"{norm}_half"][at]
            ax.fill_between(place, centre - half, centre + half, color=tint, alpha=0.2, linewidth=0)
            ax.plot(place, centre, color=tint, marker="o", markersize=3, label=f"{words}, true")
            again = a[f"official_{norm}"][at]
            if np.isfinite(again).any():
                ax.plot(place, again, color=tint, linewidth=1.0, linestyle=(0, (3, 2)), label=f"{words}, their recipe again")
            marks = [paper.get(f"mean rank, {norm}, as published, n={n} T={T} d={d}", np.nan) for d in a["dims"]]
            if np.isfinite(marks).any():
                ax.plot(place, marks, "x", color=tint, markersize=5, markeredgewidth=1.2, label=f"{words}, paper's figure")
        bound = np.floor((np.sqrt(1 + 8 * n * (T - 1)) - 1) / 2)
        ax.axhline(bound, color=COLOURS["null"], linewidth=1.0, linestyle=":", label="nuclear: Pataki's bound")
        ax.set(title=f"n = {n}, T = {T}", ylim=(0, max(n, bound) * 1.08))
        ax.set_xticks(place, [str(d) for d in a["dims"]])
        ax.locator_params("y", integer=True)
        ax.set_xlabel("dimension d")
        if at % columns == 0:
            ax.set_ylabel("mean rank")
    for ax in panels[count - 1 :]:
        ax.axis("off")
    entries = {label: handle for ax in panels for handle, label in zip(*ax.get_legend_handles_labels())}
    panels[count - 1].legend(entries.values(), entries.keys(), loc="center left")
    p, crosses = result.params, "Crosses: read off the paper's figure, 100 seeds. " if paper else ""
    caption(
        figure,
        f"True: mean over up to {p['feasible']} feasible problems among {p['most']} seeds, bands: 95 % interval of the mean; no mark "
        f"where none is feasible. Their recipe again: the released notebook's, on {p['official']} seeds, infeasible problems counted "
        f"as rank one. {crosses}Pataki's bound: rank r with r(r + 1)/2 at most the number of constraints.",
    )
    return figure
