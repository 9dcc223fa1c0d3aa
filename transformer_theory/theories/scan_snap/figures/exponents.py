"""Local exponents over many decades of time."""

from typing import TYPE_CHECKING

from ....core.plotting import COLOURS, axes, caption, line
from ....core.result import Result
from ..flow import CLOSED, EXACT, LEMMA4
from .tints import DYNAMICS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "scan_snap"
CURVES = (("closed", CLOSED, "--"), ("lemma4", LEMMA4, "-"), ("exact", EXACT, "-"))


def exponents(result: Result) -> "Figure":
    """Left: the power of t. Right: the slope in the double logarithm, whose limit in closed form is 1/2."""
    a = result.arrays
    figure, (left, right) = axes(1, 2, height=3.0)
    for ax, key, limit in ((left, "power", 2), (right, "per_loglog", 0.5)):
        for dynamics, label, dash in CURVES:
            values = a[f"{NAME}/{key}_{dynamics}"]
            line(ax, a[f"{NAME}/times"], values, color=DYNAMICS[label], label=label, linestyle=dash, zorder=3 if dash == "--" else 2)
        ax.axhline(limit, color=COLOURS["null"], linewidth=0.9)
        ax.set(xscale="log", xlabel="$t / t_0'$")
        ax.locator_params(axis="x", numticks=6)
    left.set(title="Power: $\\mathrm{d}\\,\\ln |z| / \\mathrm{d}\\,\\ln t$", yscale="log")
    right.set_title("Slope: $\\mathrm{d} |z| / \\mathrm{d}\\,\\ln \\ln (M \\eta_Y t / K)$")
    left.legend(loc="upper right")
    caption(
        figure,
        "z: the common token's logit. Grey lines: what the closed form starts from on the left, $t^2$, and tends to on the right, 1/2.",
    )
    return figure
