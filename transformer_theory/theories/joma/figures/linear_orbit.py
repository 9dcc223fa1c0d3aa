"""The linear MLP's orbit over two clocks, and attention."""

from typing import TYPE_CHECKING

from ....core.plotting import axes, caption, label_ends, line, shades, text_figure
from ....core.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "joma"


def linear_orbit(result: Result) -> "Figure":
    """v over the time of exponential attention, over that with a common normaliser, and softmax(v²/2)."""
    if f"{NAME}/lower" not in result.arrays:
        return text_figure("joma.linear_orbit: nothing was measured")
    figure, (left, middle, right) = axes(1, 3, height=2.8, width=8.0)
    v, attention = result.arrays[f"{NAME}/lower"], result.arrays[f"{NAME}/attention"]
    time, clock, remaining = (result.arrays[f"{NAME}/{name}"] for name in ("time", "clock", "remaining"))
    deltas = result.arrays[f"{NAME}/discriminancy"]
    for token, (delta, tint) in enumerate(zip(deltas, shades(len(deltas)))):
        line(left, time, v[:, token], color=tint)
        line(middle, clock, v[:, token], color=tint)
        line(right, remaining, attention[:, token], color=tint, label=f"$\\Delta$ = {delta:g}")
    left.set(title="Exponential attention", xlabel="time t", ylabel="v")
    middle.set(title="Common normaliser", xlabel="time t", ylabel="v")
    right.set(title="Attention", xlabel="$1 - t/t^*$ (exponential clock)", ylabel="softmax($v^2/2$)", xscale="log")
    right.invert_xaxis()
    label_ends(right)
    caption(
        figure,
        "The same orbit in all panels: $\\mathrm{erf}(v/\\sqrt{2})/\\Delta$ is equal for all tokens, so the leading one blows up at "
        "$t^*$ and the others stop. Softmax attention is not in the picture: trained with the MLP it leaves this orbit.",
    )
    return figure
