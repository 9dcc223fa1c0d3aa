"""Local exponents over many decades of time."""

from typing import TYPE_CHECKING

from ....experiment import Result
from ....plotting import COLOURS, axes, line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "scan_snap"
CURVES = (("closed", "closed form", "raw", "--"), ("lemma4", "Lemma 4", "attention_svm", "-"), ("exact", "exact", NAME, "-"))


def exponents(result: Result) -> "Figure":
    """Left: the power of t. Right: the slope in the double logarithm, whose limit in closed form is 1/2."""
    a = result.arrays
    figure, (left, right) = axes(1, 2, height=2.8)
    for key, label, name, style in CURVES:
        line(left, a[f"{NAME}/times"], a[f"{NAME}/power_{key}"], name=name, label=label, linestyle=style)
        line(right, a[f"{NAME}/times"], a[f"{NAME}/per_loglog_{key}"], name=name, label=label, linestyle=style)
    left.axhline(2, color=COLOURS["null"], linewidth=0.9)
    right.axhline(0.5, color=COLOURS["null"], linewidth=0.9)
    left.set_title("d ln |z| / d ln t")
    right.set_title("d |z| / d ln ln(M η t / K)")
    left.set_yscale("log")
    for ax in (left, right):
        ax.set_xscale("log")
        ax.set_xlabel("t / t0'")
        ax.locator_params(axis="x", numticks=6)
    left.legend(loc="upper right")
    return figure
