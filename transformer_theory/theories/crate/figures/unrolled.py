"""Pictures of the room, pure functions of stored arrays: coding rates and non-zeros through unrolled layers, tokens before and after."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ....core.plotting import COLOURS, axes, heatmap, label_ends, line, null_band, text_figure
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHED = (0, (4, 3))
FLOOR = 1e-3  # shares of the start below this are drawn here
ROUNDING = 1e-12  # gaps below this are drawn here


def draw(result: Result) -> "Figure":
    """Four panels of ``predict_and_measure``: R^c and non-zeros through the layers, cosines of tokens before and after compression.

    A figure of words if the result holds no arrays of this room.
    """
    if "crate/rate/exact" not in result.arrays:
        return text_figure("CRATE: there was nothing to compress in these data.")
    figure, (rates, sparse, before, after) = axes(1, 4, height=2.3)
    rate_panel(rates, result.arrays)
    _nonzero_panel(sparse, result.arrays)
    for ax, when in ((before, "before"), (after, "after")):
        heatmap(ax, result.arrays[f"crate/cosine/{when}"], f"tokens {when}", vmin=0, vmax=1, bar=False)
        ax.set_xlabel("|cosine|")
        ax.set_xticks([])
        ax.set_yticks([])
    return figure


def rate_panel(ax: "Axes", arrays: Mapping[str, np.ndarray]) -> None:
    """R^c(Z; U) through unrolled steps, as a share of its start: exact, paper's and tied residual form, guarantee and null."""
    for name, colour, dashes in (
        ("exact", COLOURS["crate"], "-"),
        ("guaranteed", COLOURS["crate"], DASHED),
        ("paper", COLOURS["rate_reduction"], "-"),
        ("tied residual", COLOURS["scan_snap"], "-"),
        ("random", COLOURS["null"], DASHED),
    ):
        if (curve := arrays.get(f"crate/rate/{name}")) is not None:
            label = {"guaranteed": "exact, bound", "random": "random U"}.get(name, name)
            line(ax, range(len(curve)), np.maximum(curve / curve[0], FLOOR), label=label, color=colour, linestyle=dashes)
    ax.set_yscale("log")
    ax.set_title("$R^c(Z; U)$, start = 1")
    _layers(ax)
    _say(ax, FLOOR, "less is drawn here")
    label_ends(ax)


def gap_panel(ax: "Axes", arrays: Mapping[str, np.ndarray]) -> None:
    """The objective of the sparse code above its optimum, per token, by step of ISTA and FISTA; what is below ROUNDING is just that."""
    for name, colour in (("ISTA", COLOURS["rate_reduction"]), ("FISTA", COLOURS["crate"])):
        gaps = arrays[f"crate/gap/{name}"]
        line(ax, range(len(gaps)), np.maximum(gaps, ROUNDING), label=name, color=colour)
    ax.set_yscale("log")
    ax.set_title("LASSO above its optimum")
    ax.set_xlabel("step")
    ax.set_ylabel("a token")
    ax.locator_params(axis="x", integer=True)
    _say(ax, ROUNDING, "rounding: less is drawn here")
    label_ends(ax)


def _say(ax: "Axes", floor: float, words: str) -> None:
    """Names the level at which curves were cut off, if any was."""
    if any(np.min(np.asarray(curve.get_ydata(), dtype=float)) <= floor for curve in ax.get_lines()):
        null_band(ax, floor, label=words)


def _layers(ax: "Axes") -> None:
    ax.set_xlabel("layer")
    ax.locator_params(axis="x", integer=True)


def _nonzero_panel(ax: "Axes", arrays: Mapping[str, np.ndarray]) -> None:
    shares = arrays["crate/nonzeros"]
    line(ax, range(len(shares)), shares, name="crate", label="measured")
    line(ax, (0, len(shares) - 1), arrays["crate/nonzeros/random"], name="null", label="random U", linestyle=DASHED)
    line(ax, (0, len(shares) - 1), [float(arrays["crate/nonzeros/predicted"])] * 2, name="raw", label="predicted", linestyle=(0, (1, 2)))
    ax.set_ylim(bottom=0)
    ax.set_title("Share of non-zeros")
    _layers(ax)
    label_ends(ax)
