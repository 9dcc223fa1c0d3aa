"""The small synthetic trainings: the loss, and attention over the steps."""

from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, caption, heatmap, shades
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "scan_snap"


def syn_small(result: Result) -> "Figure":
    """The loss beside the released log, and attention of the first class in one run, a panel a learning rate of the decoder."""
    rates, c = result.arrays[f"{NAME}/eta_y"], result.arrays[f"{NAME}/attended"]
    figure, (left, *others) = axes(1, 1 + len(rates), width=2.6 * (1 + len(rates)), height=3.0)
    losses = np.moveaxis(result.arrays[f"{NAME}/loss"], 1, 0)
    for rate, loss, tint in zip(rates, losses, shades(len(rates))):
        left.plot(loss.mean(1), color=tint, label=f"$\\eta_Y$ = {rate:g}")
        left.fill_between(range(len(loss)), loss.min(1), loss.max(1), color=tint, alpha=0.2, linewidth=0)
    steps = result.arrays[f"{NAME}/published_steps"]
    if len(steps):
        left.plot(
            steps,
            result.arrays[f"{NAME}/published_loss"],
            "o",
            color=COLOURS["raw"],
            markerfacecolor="white",
            label="released log, $\\eta_Y$ = 1",
        )
    left.set_yscale("log")
    left.set(title="Loss, nats", xlabel="step")
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=1 + len(rates))
    for i, (ax, rate) in enumerate(zip(others, rates)):
        _attention(ax, result.arrays[f"{NAME}/steps"], c[:, i], f"Attention, $\\eta_Y$ = {rate:g}", float(c.max()), bar=i == len(rates) - 1)
    caption(figure, "Bands: range over the runs. Attention: the first class, one run; tokens below the white line are common to both.")
    return figure


def adam(result: Result) -> "Figure":
    """Attention of the first class in one run, a panel a learning rate."""
    rates, c = result.arrays[f"{NAME}/rates"], result.arrays[f"{NAME}/attended"]
    figure, panels = axes(1, len(rates), width=max(4.0, 2.5 * len(rates)), height=3.0)
    for i, (ax, rate) in enumerate(zip(panels, rates)):
        _attention(ax, result.arrays[f"{NAME}/steps"], c[:, i], f"Adam, $\\eta$ = {rate:g}", float(c.max()), bar=i == len(rates) - 1)
    caption(figure, "Attention of the first class in one run; tokens below the white line are common to both classes.")
    return figure


def _attention(ax: "Axes", steps: np.ndarray, c: np.ndarray, title: str, most: float, *, bar: bool) -> None:
    """Tokens up, steps to the right; common tokens lowest, then the distinct ones from rare to likely."""
    image = heatmap(ax, c.T, "attention" if bar else "", vmin=0, vmax=most, bar=bar)
    image.axes.set_aspect("auto")
    ax.invert_yaxis()
    ax.axhline(9.5, color="white", linewidth=1.0)
    ax.set_xticks(range(len(steps)), [str(step) for step in steps])
    ax.set_yticks([0, 5, 10, 15])
    ax.set(title=title, xlabel="step", ylabel="token")
