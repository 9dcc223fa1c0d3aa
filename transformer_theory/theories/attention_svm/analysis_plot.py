"""The figure of an :class:`~.analysis.Analysis`: cosines, margins and attention, drawn from its arrays."""

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ...core.plotting import COLOURS, TINTS, axes, colour, heatmap, line, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = COLOURS["null"]


@style()
def plot_analysis(arrays: Mapping[str, np.ndarray], reason: str = "", warning: str = "") -> "Figure":
    """Plots the cosines against steps, the margins of W and of the max-margin solution, and the attention of
    the first inputs.

    Args:
        arrays: arrays from :meth:`~.analysis.Analysis.arrays`.
        reason: reason why the selected tokens have no max-margin solution; printed in the empty panels.
        warning: warning that the run has not settled; it becomes the title of the legend.
    """
    figure, (left, middle, right) = axes(1, 3, width=7.0, height=2.7)
    plot_cosines(left, arrays, reason, warning)
    plot_margins(middle, arrays, reason)
    plot_attention(right, arrays)
    return figure


def plot_cosines(ax: "Axes", arrays: Mapping[str, np.ndarray], reason: str = "", warning: str = "") -> None:
    """Plots the cosine of W to the max-margin solutions of the selected and of the best tokens, with the
    chance level.
    """
    ax.set(title="Cosine to max-margin W", xlabel="step of descent")
    if not len(arrays["steps"]):
        _message(ax, reason or "W stayed at zero")
        return
    if "cosine_selected" not in arrays and "cosine_optimal" not in arrays:
        _message(ax, "neither the best nor the selected tokens have a max-margin solution")
        return
    ax.set_xscale("log")
    _plain_ticks(ax, float(arrays["steps"][-1] / arrays["steps"][0]))
    lowest, marker = 0.0, "o" if len(arrays["steps"]) == 1 else ""
    if "cosine_selected" in arrays:
        line(
            ax,
            arrays["steps"],
            arrays["cosine_selected"],
            name="attention_svm",
            label="selected tokens",
            marker=marker,
        )
        lowest = min(lowest, float(np.min(arrays["cosine_selected"])))
    # This dotted line is plotted over the solid one, so both are visible where they coincide.
    dotted = {"color": "black", "linewidth": 1.1, "linestyle": (0, (1, 1.2))}
    if "cosine_optimal" in arrays:
        ax.plot(
            arrays["steps"],
            arrays["cosine_optimal"],
            label="best tokens",
            marker=marker,
            markersize=2,
            **dotted,
        )
        lowest = min(lowest, float(np.min(arrays["cosine_optimal"])))
    else:
        ax.plot([], [], label="best tokens: no solution", **dotted)
    if np.isfinite(arrays["null"]):
        null = {"color": GREY, "linewidth": 1.0, "linestyle": (0, (4, 3))}
        ax.axhline(float(arrays["null"]), zorder=1, label="chance level: random signs", **null)
    ax.set_ylim(lowest - 0.02, 1.03)
    legend = ax.legend(
        loc="lower right", handlelength=1.0, borderaxespad=0.0, title=warning or None, title_fontsize=7.5
    )
    legend.get_frame().set(facecolor="white", alpha=0.85, edgecolor="none")
    legend.set_frame_on(True)


def plot_margins(ax: "Axes", arrays: Mapping[str, np.ndarray], reason: str = "") -> None:
    """Plots the margins of W and of the max-margin solution, in units of the largest possible smallest
    margin.
    """
    ax.set(title="Margins", xlabel="margin (best: all ≥ 1)", ylabel="tokens")
    if "margins" not in arrays:
        _message(ax, reason or "the selected tokens have no max-margin solution")
        return
    margins = np.concatenate([arrays["margins"], arrays["margins_max_margin"]])
    bins = np.geomspace(max(0.1, float(margins.min())), max(float(margins.max()), 2.0) * 1.01, 24)
    ax.hist(
        arrays["margins_max_margin"],
        bins=bins.tolist(),
        histtype="step",
        color="black",
        linewidth=0.9,
        label="max-margin",
    )
    ax.hist(arrays["margins"], bins=bins.tolist(), color=colour("attention_svm"), alpha=0.55, label="descent")
    ax.axvline(1, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
    ax.set_xscale("log")
    _plain_ticks(ax, float(bins[-1] / bins[0]))
    ax.set_ylim(top=1.45 * ax.get_ylim()[1])
    ax.legend(loc="upper left", handlelength=1.2, borderaxespad=0.1)


def plot_attention(ax: "Axes", arrays: Mapping[str, np.ndarray]) -> None:
    """Plots the attention of the first inputs, with a ring around each best token."""
    heatmap(ax, arrays["attention"], bar=False, vmin=0, vmax=1, cmap="Blues")
    ax.set_aspect("auto")
    rows, best = np.arange(len(arrays["best_token"])), arrays["best_token"]
    ax.scatter(
        best[best >= 0],
        rows[best >= 0],
        s=16,
        facecolors="none",
        edgecolors=TINTS[1],
        linewidths=1.1,
    )
    ax.set_yticks(rows)
    ax.locator_params("x", integer=True)
    count, total = len(arrays["attention"]), int(arrays["inputs"])
    title = f"Attention: {count} of {total} inputs" if count < total else "Attention"
    ax.set(title=title, xlabel="token (best one ringed)", ylabel="input")


def _plain_ticks(ax: "Axes", span: float) -> None:
    """Labels a logarithmic x axis with a few plain numbers; ``span`` is the ratio of its ends."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if span < 30 else (1.0,)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_locator(NullLocator())


def _message(ax: "Axes", text: str) -> None:
    """Writes a message in place of an empty panel."""
    ax.set(xticks=[], yticks=[])
    ax.text(
        0.5,
        0.5,
        textwrap.fill(text, 34),
        ha="center",
        va="center",
        fontsize=7,
        color=COLOURS["raw"],
        transform=ax.transAxes,
    )
