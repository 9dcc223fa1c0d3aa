"""The local-convergence figure."""

from typing import TYPE_CHECKING

import numpy as np

from ....experiment import Result
from ....plotting import COLOURS, axes, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE = COLOURS["attention_svm"]


def local_convergence(result: Result) -> "Figure":
    """Cosine to the two max-margin solutions against the step, mean and spread over trials."""
    a = {name.split("/", 1)[1]: value for name, value in result.arrays.items()}
    with style():
        figure, (left, right) = axes(1, 2)
        for name, label, colour in (("frobenius", "Frobenius", BLUE), ("nuclear", "nuclear", COLOURS["scan_snap"])):
            values = a[f"cosine_{name}"]
            mean, spread = values.mean(0), values.std(0)
            left.plot(a["steps"], mean, color=colour, label=f"to the {label} solution")
            left.fill_between(a["steps"], mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
        left.set(title="Cosine of W to the max-margin solution", xlabel="step", ylim=(None, 1.02))
        left.legend(loc="lower right")
        right.loglog(a["steps"][1:], np.median(1 - a["cosine_frobenius"], 0)[1:], color=BLUE)
        right.set(title="1 - cosine, Frobenius (median)", xlabel="step")
    return figure
