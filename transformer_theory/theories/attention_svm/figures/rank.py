"""The figure of the ranks of max-margin solutions."""

from typing import TYPE_CHECKING

import numpy as np

from ....experiment import Result
from ....plotting import COLOURS, axes, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NORMS = (("frobenius", "Frobenius", COLOURS["attention_svm"]), ("nuclear", "nuclear", COLOURS["scan_snap"]))


def rank(result: Result) -> "Figure":
    """Mean rank against dimension, a panel a pair (n, T): true ranks with their 95 % bands, the published recipe run again, the paper's
    numbers, and the largest rank that Pataki's bound allows in the nuclear norm."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    paper = {row["quantity"]: row["predicted"] for row in result.table if "predicted" in row and "as published" in row["quantity"]}
    count, columns = len(a["pairs"]) + 1, 3
    with style():
        figure, panels = axes(-(-count // columns), columns, width=7.4, height=2.35 * -(-count // columns))
        place = np.arange(len(a["dims"]))
        for at, ((n, T), ax) in enumerate(zip(a["pairs"], panels)):
            for norm, words, tint in NORMS:
                centre, half = a[norm][at], a[f"{norm}_half"][at]
                ax.fill_between(place, centre - half, centre + half, color=tint, alpha=0.2, linewidth=0)
                ax.plot(place, centre, color=tint, marker="o", markersize=3, label=f"{words}, true")
                again = a[f"official_{norm}"][at]
                if np.isfinite(again).any():
                    ax.plot(place, again, color=tint, linewidth=1.0, linestyle=(0, (3, 2)), label=f"{words}, published recipe, rerun")
                marks = [paper.get(f"mean rank, {norm}, as published, n={n} T={T} d={d}", np.nan) for d in a["dims"]]
                ax.plot(place, marks, "x", color=tint, markersize=5, markeredgewidth=1.1, label=f"{words}, paper's figure")
            bound = np.floor((np.sqrt(1 + 8 * n * (T - 1)) - 1) / 2)
            ax.axhline(bound, color=COLOURS["null"], linewidth=1.0, linestyle=":", label="nuclear, largest possible (Pataki)")
            ax.set(title=f"n = {n}, T = {T}", ylim=(0, max(n, bound) * 1.08))
            ax.set_xticks(place, [str(d) for d in a["dims"]])
            ax.set_xlabel("dimension d")
            if at % columns == 0:
                ax.set_ylabel("mean rank")
        for ax in panels[count - 1 :]:
            ax.axis("off")
        panels[count - 1].legend(*panels[0].get_legend_handles_labels(), loc="center left", fontsize=7.5)
    return figure
