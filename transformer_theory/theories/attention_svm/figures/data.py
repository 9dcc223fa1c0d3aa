"""The figure of the room on data: what descent did, a pure function of a stored result."""

from typing import TYPE_CHECKING

import numpy as np

from ....experiment import Result
from ....plotting import COLOURS, axes, heatmap, line, null_band, style, text_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE = COLOURS["attention_svm"]
GREY = COLOURS["null"]


def draw(result: Result) -> "Figure":
    """Where descent went on the data: cosine to the max-margin direction, margins, attention, and which selections are feasible."""
    arrays = {name.split("/", 1)[1]: value for name, value in result.arrays.items() if name.startswith("attention_svm/")}
    if "cosine_selected" not in arrays:
        verdicts = [str(row.get("verdict", "")) for row in result.select(theory="attention_svm")]
        reasons = [verdict for verdict in verdicts if verdict.startswith("not applicable")]
        return text_figure(reasons[0] if reasons else "attention_svm: nothing was measured on these data")
    with style():
        figure, (left, middle, right, last) = axes(1, 4, width=7.6, height=2.3)
        _trajectory(left, arrays)
        _margins(middle, arrays)
        _attention(right, arrays)
        _feasible(last, arrays)
    return figure


def _trajectory(ax, arrays: dict[str, np.ndarray]) -> None:
    line(ax, arrays["steps"], arrays["cosine_selected"], name="attention_svm", label="selected tokens")
    ax.plot(arrays["steps"], arrays["cosine_optimal"], color=BLUE, linewidth=1.1, linestyle=(0, (1, 1.2)), label="best tokens")
    if np.isfinite(arrays["null"]):
        null_band(ax, float(arrays["null"]))
    ax.set_xscale("log")
    ax.set_ylim(min(0.0, float(np.nanmin(arrays["cosine_optimal"]))) - 0.02, 1.03)
    ax.set(title="Cosine to max-margin W", xlabel="step of descent")
    ax.legend(loc="lower right", handlelength=1.4, borderaxespad=0.1)


def _margins(ax, arrays: dict[str, np.ndarray]) -> None:
    shown = np.concatenate([arrays["margins"], arrays["margins_max_margin"]])
    bins = np.geomspace(max(0.1, float(shown.min())), max(float(shown.max()), 2.0) * 1.01, 24)
    ax.hist(arrays["margins_max_margin"], bins=bins.tolist(), histtype="step", color="black", linewidth=0.9, label="max-margin")
    ax.hist(arrays["margins"], bins=bins.tolist(), color=BLUE, alpha=0.55, label="descent")
    ax.axvline(1, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    ax.set_xscale("log")
    ax.set_ylim(top=1.45 * ax.get_ylim()[1])
    ax.set(title="Margins", xlabel="margin (best possible: all ≥ 1)", ylabel="tokens")
    ax.legend(loc="upper left", handlelength=1.2, borderaxespad=0.1)


def _attention(ax, arrays: dict[str, np.ndarray]) -> None:
    heatmap(ax, arrays["attention"], bar=False, vmin=0, vmax=1, cmap="Blues")
    ax.set_aspect("auto")
    rows = np.arange(len(arrays["best_token"]))
    ax.scatter(arrays["best_token"], rows, s=16, facecolors="none", edgecolors=COLOURS["scan_snap"], linewidths=1.1)
    ax.set_yticks(rows)
    ax.set(title="Attention", xlabel="token (best one ringed)", ylabel="input")


def _feasible(ax, arrays: dict[str, np.ndarray]) -> None:
    n, share = arrays["feasible_n"], arrays["feasible_share"]
    ax.plot(n, share, color=BLUE, marker="o")
    ax.set(title="Feasible random sets", xlabel="inputs", ylim=(-0.04, 1.06), xlim=(0, max(n.max(), 4) + 1))
