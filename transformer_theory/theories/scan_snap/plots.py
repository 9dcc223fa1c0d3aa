"""Colours of the dynamics and of the kinds of tokens, and the figure of a comparison on a data set."""

from typing import TYPE_CHECKING

import numpy as np

from ...core.plotting import COLOURS, axes, colour, heatmap, line, style, text_figure
from ...core.result import Result
from .flow import CLOSED, EXACT, LEMMA4, MODIFIED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "scan_snap"
# the first three: shades(3)
DYNAMICS_COLOURS = {EXACT: "#440154", MODIFIED: "#2b758e", LEMMA4: "#6ece58", CLOSED: COLOURS["raw"]}
DYNAMICS = (  # curves of a panel, one per dynamics
    "dynamics",
    {
        name: {"color": tint, "linestyle": "--" if name == CLOSED else "-"}
        for name, tint in DYNAMICS_COLOURS.items()
    },
)
TOKEN_COLOURS = {"distinct": "#D55E00", "common": "#882255", "other": COLOURS["null"]}
PLOTTED_FLOWS = (EXACT, LEMMA4)
PLOTTED_TOKENS, HEATMAP_TOKENS, HEATMAP_CLASSES = 100, 60, 20  # largest numbers, most frequent first


@style()
def plot_comparison(result: Result) -> "Figure":
    """Plots logits over training and by distinctness, the flows, times of movement, relative gains, and the
    change of attention.
    """
    if f"{NAME}/logits" not in result.arrays:
        reasons = [row.reason for row in result.select(theory=NAME) if row.value is None]
        return text_figure("Scan and snap: " + (reasons[0] if reasons else "no data were measured"))
    figure, panels = axes(3, 2, height=7.4)
    for panel, draw in zip(panels, (_logits, _changes, _flows, _movement, _gains, _attention)):
        draw(panel, result)
    return figure


def _logits(ax: "Axes", result: Result) -> None:
    """Plots the attention logit of each token over the steps, common and distinct ones in colour."""
    steps, z = result.arrays[f"{NAME}/steps"], result.arrays[f"{NAME}/logits"]
    distinct, common = result.arrays[f"{NAME}/distinct"], result.arrays[f"{NAME}/common"]
    frequent = np.argsort(-result.arrays[f"{NAME}/frequency"], kind="stable")[:PLOTTED_TOKENS]
    for kind, group in (("other", ~distinct & ~common), ("common", common), ("distinct", distinct)):
        for rank, token in enumerate(token for token in frequent if group[token]):
            line(
                ax,
                steps[1:],
                z[1:, token],
                color=TOKEN_COLOURS[kind],
                label="" if rank else kind,
                linewidth=0.9,
                alpha=0.85,
            )
    _scanning(ax, result)
    ax.set_xscale("log")
    ax.set_title("Attention logit of each token")
    ax.set_xlabel("step")
    if ax.get_legend_handles_labels()[1]:
        ax.legend(loc="best")


def _scanning(ax: "Axes", result: Result) -> None:
    """Draws a vertical line at t0', if the training run reaches it."""
    t0 = float(result.arrays[f"{NAME}/scanning_time"])
    if t0 < result.arrays[f"{NAME}/steps"][-1]:
        ax.axvline(t0, color=COLOURS["null"], linewidth=0.9, linestyle=(0, (4, 3)))
        ax.annotate("$t_0'$", (t0, 1), xycoords=("data", "axes fraction"), xytext=(2, -8), textcoords="offset points",  # noqa: E501
                    color=COLOURS["null"], fontsize=7)  # fmt: skip


def _changes(ax: "Axes", result: Result) -> None:
    """Plots the change of the logit against distinctness. Areas of points show frequencies; grey points:
    shuffled next tokens.
    """
    x, z = result.arrays[f"{NAME}/distinctness"], result.arrays[f"{NAME}/logits"][-1]
    null, frequency = result.arrays[f"{NAME}/null_change"], result.arrays[f"{NAME}/frequency"]
    for change in null:
        ax.plot(x, change, ".", color=COLOURS["null"], markersize=3, alpha=0.5, zorder=1)
    ax.scatter(x, z, s=12 + 250 * frequency, color=colour(NAME), alpha=0.8, linewidths=0, zorder=2)
    ax.axhline(0, color=COLOURS["raw"], linewidth=0.7)
    ax.locator_params(axis="x", nbins=5)
    ax.set_title("Change of the logit (grey: shuffled)")
    ax.set_xlabel("distinctness of the token: 1 = one class only")


def _flows(ax: "Axes", result: Result) -> None:
    """Plots the measured change of each token's logit against the predictions of the flows; the diagonal is
    agreement.
    """
    measured = result.arrays[f"{NAME}/logits"][-1]
    ends = [float(measured.min()), float(measured.max())]
    for dynamics in reversed(PLOTTED_FLOWS):
        if (flow := result.arrays.get(f"{NAME}/predicted/{dynamics}")) is not None:
            ax.plot(
                flow[-1],
                measured,
                ".",
                color=DYNAMICS_COLOURS[dynamics],
                markersize=5,
                alpha=0.7,
                label=dynamics,
            )
            ends = [min(ends[0], flow[-1].min()), max(ends[1], flow[-1].max())]
    ax.plot(ends, ends, color=COLOURS["null"], linewidth=0.9, linestyle=(0, (4, 3)))
    ax.set_title("Logit change in the flows")
    ax.set_xlabel("predicted from counts")
    ax.set_ylabel("measured")
    if ax.get_legend_handles_labels()[1]:
        ax.legend(loc="best")


def _movement(ax: "Axes", result: Result) -> None:
    """Plots the distance of the logits from the start, relative to the final distance; the horizontal line is
    one half.
    """
    steps, moved = result.arrays[f"{NAME}/steps"], result.arrays[f"{NAME}/movement"]
    curves = [("shuffled", COLOURS["null"], values) for values in moved[:, 1:].T] + [
        ("descent", colour(NAME), moved[:, 0])
    ]
    for dynamics in PLOTTED_FLOWS:
        if (flow := result.arrays.get(f"{NAME}/predicted/{dynamics}")) is not None:
            curves.append((dynamics, DYNAMICS_COLOURS[dynamics], np.linalg.norm(flow, axis=-1)))
    labelled = set()
    for label, tint, values in curves:
        if values[-1] > 0:
            line(
                ax,
                steps[1:],
                values[1:] / values[-1],
                color=tint,
                label="" if label in labelled else label,
                linewidth=1.2,
            )
            labelled.add(label)
    _scanning(ax, result)
    ax.axhline(0.5, color=COLOURS["null"], linewidth=0.7)
    ax.set_xscale("log")
    ax.set_ylim(bottom=0)
    ax.set_title("Movement of all logits")
    ax.set_xlabel("step")
    ax.set_ylabel("share of the end")
    if labelled:
        ax.legend(loc="best")


def _gains(ax: "Axes", result: Result) -> None:
    """Plots the measured change of the relative gains against Theorem 3; the diagonal is agreement."""
    start = result.arrays[f"{NAME}/gain_start"]
    ends = np.stack([result.arrays[f"{NAME}/gain_{name}"] for name in ("measured", "predicted")])
    measured, predicted = (ends - start)[:, np.isfinite(ends).all(0)]
    if not len(measured):
        message = (
            "relative gains overflow"
            if len(start)
            else "no class has two tokens of its own:\nno relative gain"
        )
        ax.axis("off")
        ax.text(0.5, 0.5, message, ha="center", va="center", transform=ax.transAxes)
        return
    # Gains span decades and have both signs, so use a symmetric logarithm that is linear for the smallest
    # quarter.
    linear = max(1e-3, float(np.quantile(np.abs(predicted), 0.25)))
    ax.plot(predicted, measured, ".", color=colour(NAME), alpha=0.6)
    ends = [min(predicted.min(), measured.min()), max(predicted.max(), measured.max())]
    ax.plot(ends, ends, color=COLOURS["null"], linewidth=0.9, linestyle=(0, (4, 3)))
    if max(np.abs(ends)) > 20 * linear:
        ax.set_xscale("symlog", linthresh=linear)
        ax.set_yscale("symlog", linthresh=linear)
        ax.tick_params(axis="x", labelrotation=30)
    ax.set_title("Change of the relative gain")
    ax.set_xlabel("closed form, $r(0)\\,(\\chi - 1)$")
    ax.set_ylabel("measured")


def _attention(ax: "Axes", result: Result) -> None:
    """Plots the change of each class's attention to each token, from common to distinct tokens."""
    before, after = result.arrays[f"{NAME}/conditional"], result.arrays[f"{NAME}/attended"]
    order = np.argsort(result.arrays[f"{NAME}/distinctness"], kind="stable")
    columns = np.sort(np.argsort(-result.arrays[f"{NAME}/frequency"][order], kind="stable")[:HEATMAP_TOKENS])
    change = (after - before)[:HEATMAP_CLASSES, order[columns]]
    largest = max(float(np.abs(change).max()), 1e-12)
    image = heatmap(ax, change, "attention after - before", vmin=-largest, vmax=largest, cmap="RdBu_r")
    image.axes.set_aspect("auto")
    ax.set_title("Attention gained by each token")
    ax.set_xlabel("token, from common to distinct")
    ax.set_ylabel("next token, its id")
    ax.set_xticks([])
    ids = result.arrays[f"{NAME}/next_ids"][:HEATMAP_CLASSES]
    ax.set_yticks(range(len(ids)), [str(i) for i in ids], fontsize=6)
