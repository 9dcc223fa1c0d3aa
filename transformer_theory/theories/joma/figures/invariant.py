"""The softmax invariant over training: the paper's Figs. 2 and 3 with the relative error beside the correlation."""

from typing import TYPE_CHECKING

from ....core.plotting import axes, caption, heatmap, label_ends, line, shades, text_figure
from ....core.result import Result
from .analysis import diagonal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "joma"
WAYS = {"first": "first term", "both": "both terms", "moving": "moving mean"}


def invariant(result: Result) -> "Figure":
    """A row a kind of contexts: correlation, relative error, predicted against true, the lower layer at the end, one unit over time."""
    kinds = [kind for kind in ("Gaussian", "random") if f"{NAME}/{kind}_true" in result.arrays]
    if not kinds:
        return text_figure("joma.invariant: nothing was measured")
    figure, panels = axes(len(kinds), 5, width=12.0, height=2.6 * len(kinds))
    steps = result.arrays[f"{NAME}/steps"]
    for row, kind in enumerate(kinds):
        correlation, error, sides, lower, unit = panels[5 * row : 5 * row + 5]
        for (way, label), tint in zip(WAYS.items(), shades(len(WAYS))):
            for ax, measure in ((correlation, "correlation"), (error, "error")):
                values = result.arrays[f"{NAME}/{kind}_{way}_{measure}"][:, 1:]
                ax.fill_between(steps[1:], values.min(0), values.max(0), color=tint, alpha=0.18, linewidth=0)
                line(ax, steps[1:], values.mean(0), color=tint, label=label)
            if way != "first":
                sides.plot(result.arrays[f"{NAME}/{kind}_{way}"], result.arrays[f"{NAME}/{kind}_true"], ".", color=tint, label=label)
        correlation.set(title=f"{kind.capitalize()}: correlation", ylabel="over 20 tokens", xlabel="step", ylim=(None, 1.02))
        error.set(title="Relative error", xlabel="step", yscale="log")
        label_ends(error)
        diagonal(sides, result.arrays[f"{NAME}/{kind}_true"])
        sides.set(title="Change of z", xlabel="predicted", ylabel="measured")
        sides.legend(loc="best")
        image = heatmap(lower, result.arrays[f"{NAME}/{kind}_lower"][1], "v at the end")
        image.axes.set_aspect("auto")
        lower.set_xticks(range(0, 20, 5))
        lower.set_yticks(range(0, 20, 5))
        lower.set(title="Lower layer", xlabel="token", ylabel="unit")
        tokens = result.arrays[f"{NAME}/{kind}_unit"].T
        for token, (values, tint) in enumerate(zip(tokens, shades(len(tokens)))):
            line(unit, steps, values, color=tint, label=f"token {token}")
        unit.set(title="Unit 0", xlabel="step", ylabel="v")
        unit.autoscale_view()  # the labels stand where the limits say
        label_ends(unit)
    caption(
        figure,
        "Bands: all draws; lines: their mean. First draw in the three columns on the right; dashed: equality. 'Both terms' takes the mean "
        "attention of the start, 'moving mean' that of each moment.",
    )
    return figure
