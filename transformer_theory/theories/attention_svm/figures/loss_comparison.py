r"""Two inputs for which the direction of the prompt is the same for every loss, while its finite part depends
on the loss.

The example is from :cite:t:`tarzanagh2023maxmargin`; :func:`~..published.prompt_limit` derives the limit.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from ....core.experiment import setting
from ....core.figure import DASHED, Panel, Reading, draw_curves, figure, reading
from ....core.plotting import axes, caption, label_ends, shades, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ..dynamics import LINEAR, LOGISTIC, normalised_descent, start, trajectory
from ..published import PAIR_SCORES, prompt_limit, published_pair
from .common import RATE, arrays, arrays_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COORDINATE = "second coordinate of p"
EPS = 1e-9  # added to the norm of the gradient in the released run
EXACT, RELEASED = "exact gradient", f"eps = {EPS:.0e} as released"
LOSSES = (LINEAR, LOGISTIC)
PLOTTED_SCORES = (1.0, 2.0, 5.0, 10.0)  # scores C whose paths are plotted
SQUARES = {"linestyle": "", "marker": "s", "markersize": 6, "fillstyle": "none"}
LOOKS = {LINEAR.name: {"label": "eps as released", **SQUARES}, LOGISTIC.name: {"label": "_", **SQUARES}}


@style()
def draw(result: Result) -> "Figure":
    """Draws the paths of p for some scores C, one panel per loss, and the final second coordinate of p
    against C with its limit.
    """
    a, ends = arrays_of(result), result.table.select(at={"gradient": EXACT})
    drawn, panels = axes(1, 3, width=7.0, height=3.1)
    for ax, loss in zip(panels, LOSSES):
        for C, tint in zip(PLOTTED_SCORES, shades(len(PLOTTED_SCORES))):
            limit = ends.select(at={"loss": loss.name, "C": C}).one().predicted
            ax.plot(*a[f"path_{loss.name}"][:, PAIR_SCORES.index(C)].T, color=tint, label=f"C = {C:g}")
            ax.axhline(limit, color=tint, linewidth=0.9, linestyle=DASHED)
        ax.set(title=f"Paths of p, {loss.name} loss", xlabel="$p_1$", ylabel="$p_2$", xlim=(0, 12))
        label_ends(ax)
    look = {"xlabel": "score C", "xscale": "log", "yscale": "symlog", "ylim": (-3000, 8)}
    exact = Panel(
        "$p_2$ at the end", COORDINATE, {"gradient": EXACT}, "loss", "limit", legend="lower left", axes=look
    )
    released = Panel("", COORDINATE, {"gradient": RELEASED}, ("loss", LOOKS))
    draw_curves(panels[2], result, exact, released, x="C")
    caption(
        drawn,
        "Left and middle: paths of p for four scores C; dashed: the limit in closed form. Right: all scores; "
        "squares: the same descent with 1e-9 added to the norm of the gradient, as in the released code.",
    )
    return drawn


@figure(
    "attention_svm.loss_comparison",
    source=Source("tarzanagh2023maxmargin"),
    view=draw,
    quick={"steps": 200},
)
def loss_comparison(
    *, steps: int = setting(1000, ge=1, help="steps of descent"), rate: float = RATE
) -> Iterator[Reading | Arrays]:
    """Normalised descent on a prompt with the losses -x and log(1 + e^-x), for scores C of the first input
    from 1 to 100.

    With both losses p diverges in the direction (1, 0). Its second coordinate has a limit that depends on the
    loss and is known in closed form. The released run adds 1e-9 to the norm of the gradient and therefore
    does not reach the limit -47.04 of the logistic loss at C = 100. Nothing is random.
    """
    instance, scores = published_pair(), torch.tensor(PAIR_SCORES, dtype=torch.float64)
    measured = sorted({*range(0, min(161, steps), 2), *range(0, steps, 20), steps})
    paths = {}
    for loss in LOSSES:
        states = trajectory(instance, start(instance), steps=measured, rate=rate, loss=loss)
        paths[f"path_{loss.name}"] = path = torch.stack([state.W.squeeze(-1) for state in states])
        released = normalised_descent(instance, start(instance), steps=steps, rate=rate, loss=loss, eps=EPS)
        stops = "the released settings stop where the gradient falls below eps"
        for gradient, ends, note in ((EXACT, path[-1], ""), (RELEASED, released.W.squeeze(-1), stops)):
            for C, value, limit in zip(
                PAIR_SCORES, ends[:, 1].tolist(), prompt_limit(scores, loss=loss).tolist()
            ):
                at = {"loss": loss.name, "C": C, "gradient": gradient}
                yield reading(COORDINATE, value, reference=(limit, "limit"), at=at, step=steps, note=note)
    yield arrays(paths)
