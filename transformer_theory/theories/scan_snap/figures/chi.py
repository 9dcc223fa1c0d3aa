"""The growth factor of relative gains and its bounds."""

from typing import TYPE_CHECKING

from ....core.plotting import axes, caption, label_ends, shades
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "scan_snap"
PANELS = (("chi", "$\\chi$, Lemma 4"), ("printed", "$\\exp(2B)$, as printed"), ("Gamma", "$\\Gamma$"))


def chi(result: Result) -> "Figure":
    """chi with the bound that it keeps, the printed bound, and Gamma; short marks at the top: t0 of each rate."""
    a, t = result.arrays, result.arrays[f"{NAME}/times"]
    figure, panels = axes(1, 3, width=7.4, height=2.9)
    for ax, (key, title) in zip(panels, PANELS):
        for k, (eta_y, tint) in enumerate(zip(result.params["eta_y"], shades(len(result.params["eta_y"])))):
            ax.plot(t, a[f"{NAME}/{key}"][k], color=tint, label=f"{eta_y:g}")
            if key == "chi":
                ax.plot(t, a[f"{NAME}/bound"][k], color=tint, linewidth=0.9, linestyle=(0, (4, 3)))
            if a[f"{NAME}/t0"][k] <= t[-1]:
                ax.plot(2 * [a[f"{NAME}/t0"][k]], [0.94, 1.0], color=tint, transform=ax.get_xaxis_transform())
        ax.set_title(title)
        ax.set_xlabel("step")
        label_ends(ax)
    caption(
        figure,
        "At the right of each panel: $\\eta_Y$. Dashed: $\\exp(2B/K)$, a bound. Marks at the top: $t_0$. The published figure shows "
        "$\\chi$ on an axis up to 600 and does not say for which $C_0$ and $P(l|n)$: neither $\\chi$ nor its bounds get there, "
        "$\\Gamma$ does.",
    )
    return figure
