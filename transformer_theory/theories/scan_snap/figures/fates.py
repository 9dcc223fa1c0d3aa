"""The dynamics of one instance."""

from typing import TYPE_CHECKING

from ....experiment import Result
from ....plotting import COLOURS, axes, line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "scan_snap"
FLOWS = (("exact", NAME, "exact"), ("modified", "rate_reduction", "Lemma 3"), ("lemma4", "attention_svm", "Lemma 4"))


def fates(result: Result) -> "Figure":
    """The four dynamics of one instance: the common token, all tokens in Lemma 4's flow, and the relative gain."""
    t = result.arrays[f"{NAME}/times"]
    figure, (left, middle, right) = axes(1, 3, height=2.6)
    for key, name, label in (*FLOWS, ("closed", "raw", "closed form")):
        values = result.arrays[f"{NAME}/common_{key}"]
        line(left, t, values, name=name, label=label, linestyle="--" if key == "closed" else "-")
    left.set_title("Logit of the common token")
    left.legend(loc="lower left", fontsize=7, frameon=False)
    for token, values in enumerate(result.arrays[f"{NAME}/logits_lemma4"].T):
        line(middle, t, values, name="crate" if token == 0 else NAME, linewidth=0.9)
    middle.set_title("All tokens, Lemma 4")
    for key, name, label in FLOWS:
        line(right, t, result.arrays[f"{NAME}/gain_error_{key}"], name=name, label=label)
    right.set_title("Relative error of r(0) χ(t)")
    right.set_yscale("log")
    right.legend(loc="center right", fontsize=7, frameon=False)
    for ax in (left, middle, right):
        ax.set_xscale("log")
        ax.set_xlabel("step")
        ax.axvline(float(result.arrays[f"{NAME}/scanning_time"]), color=COLOURS["null"], linewidth=0.9, linestyle=(0, (4, 3)))
    return figure
