"""The local-convergence figure."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ....experiment import Result
from ....plotting import COLOURS, axes, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, RED = COLOURS["attention_svm"], COLOURS["scan_snap"]
NORMS = (("frobenius", BLUE), ("nuclear", RED))
DASHED = (0, (4, 2))
CROSS = {"marker": "x", "linestyle": "", "color": "black", "markersize": 5, "markeredgewidth": 1.3, "zorder": 5}


def local_convergence(result: Result, published: Mapping[tuple[str, str, int], float]) -> "Figure":
    """Largest attention weight, and cosines to both max-margin solutions, against the step; mean and standard deviation over trials.

    Args:
        published: the known number for (run, quantity, step), drawn as crosses.
    """
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    steps = a["steps"]
    with style():
        figure, (attention, whole, factors) = axes(1, 3, width=7.6, height=2.9)
        for run, colour, label in (("W", BLUE, "$W$"), ("KQ", RED, "$(K, Q)$")):
            _curve(attention, steps, a[f"{run}_attention"], colour, label)
        for ax, run in ((whole, "W"), (factors, "KQ")):
            for norm, colour in NORMS:
                _curve(ax, steps, a[f"{run}_{norm}"], colour, f"{norm.replace('f', 'F')} solution")
            ax.set(xlabel="step", ylim=(0, 1.03))
        for norm, colour in NORMS:
            factors.plot(steps, _mean(a[f"KQ_free_{norm}"]), color=colour, linestyle=DASHED, linewidth=1.0)
        factors.plot([], [], color=COLOURS["network"], linestyle=DASHED, linewidth=1.0, label="without penalty")
        panels = {"attention": attention, "W": whole, "KQ": factors}
        for (run, kind, step), value in published.items():
            if step <= steps[-1]:
                panels.get(kind, panels[run]).plot(step, value, **CROSS)
        for ax, words in ((attention, "paper"), (whole, "paper"), (factors, "released code")):
            ax.plot([], [], label=words, **CROSS)
        attention.set(title="Largest attention weight", xlabel="step", ylim=(0, 1.03), xlim=(0, min(400, steps[-1])))
        whole.set_title("Cosine under descent on $W$")
        factors.set_title("Cosine under descent on $(K, Q)$")
        for ax in panels.values():
            ax.legend(loc="lower right")
    return figure


def _curve(ax, steps: np.ndarray, values: np.ndarray, colour: str, label: str) -> None:
    mean, spread = _mean(values), np.nanstd(values, axis=0)
    ax.plot(steps, mean, color=colour, label=label)
    ax.fill_between(steps, mean - spread, np.minimum(mean + spread, 1), color=colour, alpha=0.15, linewidth=0)


def _mean(values: np.ndarray) -> np.ndarray:
    return np.nanmean(values, axis=0)
