"""The figure of two losses."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption, label_ends
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOSSES = {"linear": COLOURS["rate_reduction"], "logistic": COLOURS["attention_svm"]}
SHOWN = (1.0, 2.0, 5.0, 10.0)  # scores C whose paths are drawn


def loss_comparison(result: Result) -> "Figure":
    """Paths of p for some scores C, one panel a loss, and the second coordinate of p against C: at the end, with the published eps, and in
    closed form."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    figure, panels = axes(1, 3, width=7.0, height=3.1)
    for ax, (name, tint), words in zip(panels, LOSSES.items(), ("Loss $-x$", r"Loss $\log(1 + e^{-x})$")):
        for shade, C in zip(np.linspace(0.35, 1, len(SHOWN)), SHOWN):
            at = int(np.flatnonzero(a["scores"] == C)[0])
            path, end = a[f"path_{name}"][:, at], a[f"limit_{name}"][at]
            ax.plot(*path.T, color=tint, alpha=shade, label=f"C = {C:g}\n{signed(path[-1, 1], 3)}")
            ax.axhline(end, color=tint, alpha=shade, linewidth=0.9, linestyle=(0, (4, 3)))
        ax.set(title=words, xlabel="$p_1$", xlim=(0, 12))
        label_ends(ax)
    panels[0].set(ylabel="$p_2$")
    _ends(panels[2], a)
    caption(
        figure,
        f"Left and middle: paths of p for four scores C, with $p_2$ after {result.params['steps']} steps; dashed: the limit in "
        "closed form. Right: all scores; squares: the same descent with 1e-9 added to the norm of the gradient, as in the released "
        "code.",
    )
    return figure


def _ends(ax, a: dict[str, np.ndarray]) -> None:
    for (name, tint), words in zip(LOSSES.items(), ("$-x$", "logistic")):
        ax.plot(a["scores"], a[f"limit_{name}"], color=tint, linewidth=1.1, label=f"{words}, limit")
        ax.plot(a["scores"], a[f"path_{name}"][-1, :, 1], color=tint, linestyle="", marker="o", markersize=3)
        ax.plot(a["scores"], a[f"released_{name}"], color=tint, linestyle="", marker="s", markersize=6, fillstyle="none")
    ax.plot([], [], linestyle="", marker="o", markersize=3, color="black", label="exact gradient")
    ax.plot([], [], linestyle="", marker="s", markersize=6, fillstyle="none", color="black", label="published eps")
    look = {"textcoords": "offset points", "ha": "right", "fontsize": 7.5, "color": LOSSES["logistic"]}
    for name, offset in (("released_logistic", (-6, 5)), ("limit_logistic", (-9, -6))):
        end = float(a[name][-1])
        ax.annotate(signed(end, 2), (a["scores"][-1], end), xytext=offset, **look)
    ax.set(title="$p_2$ at the end", xlabel="score C", xscale="log", yscale="symlog", ylim=(-3000, 8), xlim=(0.8, 160))
    ax.legend(loc="lower left", borderaxespad=0.1, handlelength=1.2, ncols=1)


def signed(number: float, digits: int) -> str:
    """With a minus as long as those of the axes."""
    return f"{number:.{digits}f}".replace("-", "−")
