"""The local-convergence figure."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption
from ....core.result import Result
from .marks import known, mark

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, RED = COLOURS["attention_svm"], COLOURS["scan_snap"]
NORMS = (("frobenius", BLUE), ("nuclear", RED))
DASHED = (0, (4, 2))
WORDS = {"W": "descent on W", "KQ": "descent on K and Q"}


def local_convergence(result: Result) -> "Figure":
    """Largest attention weight, and cosines to both max-margin solutions, against the step; mean and standard deviation over trials,
    numbers known before as crosses."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    steps, beside = a["steps"], known(result)
    figure, (attention, whole, factors) = axes(1, 3, width=7.0, height=3.1)
    for run, colour, label in (("W", BLUE, "descent on $W$"), ("KQ", RED, "descent on $(K, Q)$")):
        _curve(attention, steps, a[f"{run}_attention"], colour, label)
    for ax, run in ((whole, "W"), (factors, "KQ")):
        for norm, colour in NORMS:
            _curve(ax, steps, a[f"{run}_{norm}"], colour, f"{norm.replace('f', 'F')} solution")
        ax.set(xlabel="step", ylim=(0, 1.03))
    for norm, colour in NORMS:
        factors.plot(steps, _mean(a[f"KQ_free_{norm}"]), color=colour, linestyle=DASHED, linewidth=1.0)
    factors.plot([], [], color=COLOURS["network"], linestyle=DASHED, linewidth=1.0, label="without penalty")
    mark(attention, [(step or 0, y, basis) for (what, step), (y, basis) in beside.items() if what.startswith("largest attention")])
    for ax, run in ((whole, "W"), (factors, "KQ")):
        cosines = tuple(f"cosine to the {norm} solution, {WORDS[run]}" for norm, _ in NORMS)
        mark(ax, [(step or 0, y, basis) for (what, step), (y, basis) in beside.items() if what in cosines])
    attention.set(title="Largest attention weight", xlabel="step", ylim=(0, 1.03), xlim=(0, min(400, steps[-1])))
    whole.set_title("Descent on $W$: cosine")
    factors.set_title("Descent on $(K, Q)$: cosine")
    for ax in (attention, whole, factors):
        ax.legend(loc="lower right", handlelength=1.6, borderaxespad=0.2)
    late = any(basis == "recomputed" for _, basis in beside.values())
    said = "The paper has no panel for (K, Q): the cross is from the released code on six seeds." if late else ""
    caption(
        figure,
        f"Lines: mean over {a['W_attention'].shape[0]} random problems; bands: one standard deviation to either side. Left: mean "
        "over the inputs of the largest attention weight. Solutions are those of the tokens selected at the last step. " + said,
    )
    return figure


def _curve(ax, steps: np.ndarray, values: np.ndarray, colour: str, label: str) -> None:
    mean, spread = _mean(values), np.nanstd(values, axis=0)
    ax.plot(steps, mean, color=colour, label=label)
    ax.fill_between(steps, mean - spread, np.minimum(mean + spread, 1), color=colour, alpha=0.15, linewidth=0)


def _mean(values: np.ndarray) -> np.ndarray:
    return np.nanmean(values, axis=0)
