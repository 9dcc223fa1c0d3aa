r"""Two inputs for which the direction of the prompt is the same for every loss, while its finite part depends
on the loss.

The example is from :cite:t:`tarzanagh2023maxmargin`; :func:`~..published.prompt_limit` derives the limit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import Experiment, setting
from ....core.measurement import Measurement
from ....core.plotting import TINTS, axes, caption, label_ends, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ..dynamics import LINEAR, LOGISTIC, normalised_descent, start
from ..published import PAIR_SCORES, prompt_limit, published_pair
from .common import NAME, arrays_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCE = Source("tarzanagh2023maxmargin")
COORDINATE = "second coordinate of p"
EPS = 1e-9  # added to the norm of the gradient in the released run
EXACT, RELEASED = "exact gradient", f"eps = {EPS:.0e} as released"
LOSSES = {"linear": TINTS[3], "logistic": TINTS[0]}
PLOTTED_SCORES = (1.0, 2.0, 5.0, 10.0)  # scores C whose paths are plotted


@dataclass(frozen=True)
class LossComparison(Experiment):
    """Normalised descent on a prompt with the losses -x and log(1 + e^-x), for scores C of the first input
    from 1 to 100.

    With both losses p diverges in the direction (1, 0). Its second coordinate has a limit that depends on the
    loss and is known in closed form. The released run adds 1e-9 to the norm of the gradient and therefore
    does not reach the limit -47.04 of the logistic loss at C = 100. Nothing is random.
    """

    steps: int = setting(1000, ge=1, help="steps of descent")
    rate: float = setting(0.1, gt=0, le=1e6, help="length of a step")

    name = "attention_svm.loss_comparison"
    sources = (SOURCE,)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the second coordinate of p and its limit per loss and score, and arrays with the paths."""
        instance, scores = published_pair(), torch.tensor(PAIR_SCORES, dtype=torch.float64)
        steps = sorted({*range(0, min(161, self.steps), 2), *range(0, self.steps, 20), self.steps})
        arrays = {}
        for loss in (LINEAR, LOGISTIC):
            state, path = start(instance), []
            for step in steps:
                state = normalised_descent(
                    instance, state, steps=step - state.step, rate=self.rate, loss=loss
                )
                path.append(state.W.squeeze(-1))
            ends, limits = path[-1][:, 1], prompt_limit(scores, loss=loss)
            for C, value, limit in zip(PAIR_SCORES, ends.tolist(), limits.tolist()):
                at = {"loss": loss.name, "C": C, "gradient": EXACT}
                yield self.row(
                    COORDINATE,
                    value,
                    reference=(limit, "limit"),
                    at=at,
                    step=self.steps,
                )
            released = normalised_descent(
                instance, start(instance), steps=self.steps, rate=self.rate, loss=loss, eps=EPS
            )
            note = "the released settings stop where the gradient falls below eps"
            for C, value, limit in zip(PAIR_SCORES, released.W[:, 1, 0].tolist(), limits.tolist()):
                at = {"loss": loss.name, "C": C, "gradient": RELEASED}
                yield self.row(
                    COORDINATE, value, reference=(limit, "limit"), at=at, step=self.steps, note=note
                )
            arrays[f"path_{loss.name}"] = torch.stack(path)
        yield Arrays({f"{NAME}/{name}": value.numpy() for name, value in arrays.items()})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the paths of p for some scores C, one panel per loss, and the final second coordinate of p
        against C with its limit.
        """
        a, ends = arrays_of(result), result.table.select(quantity=COORDINATE)
        figure, panels = axes(1, 3, width=7.0, height=3.1)
        for ax, (name, tint), title in zip(panels, LOSSES.items(), ("Loss $-x$", r"Loss $\log(1 + e^{-x})$")):
            for shade, C in zip(np.linspace(0.35, 1, len(PLOTTED_SCORES)), PLOTTED_SCORES):
                path = a[f"path_{name}"][:, PAIR_SCORES.index(C)]
                end = ends.select(at={"loss": name, "C": C, "gradient": EXACT}).one().predicted
                ax.plot(*path.T, color=tint, alpha=shade, label=f"C = {C:g}\n{signed(path[-1, 1], 3)}")
                ax.axhline(end, color=tint, alpha=shade, linewidth=0.9, linestyle=(0, (4, 3)))
            ax.set(title=title, xlabel="$p_1$", xlim=(0, 12))
            label_ends(ax)
        panels[0].set(ylabel="$p_2$")
        _ends(panels[2], result)
        caption(
            figure,
            f"Left and middle: paths of p for four scores C, with $p_2$ after {self.steps} steps; dashed: "
            "the limit in closed form. Right: all scores; squares: the same descent with 1e-9 added to the "
            "norm of the gradient, as in the released code.",
        )
        return figure

    @classmethod
    def quick(cls) -> "LossComparison":
        """Returns a small version: 200 steps, a third of a second."""
        return cls(steps=200)


def _ends(ax: "Axes", result: Result) -> None:
    """Plots the second coordinate of p at the end, against the score C."""
    dots, squares = {"marker": "o", "markersize": 3}, {"marker": "s", "markersize": 6, "fillstyle": "none"}
    rows = result.table.select(quantity=COORDINATE)
    for (name, tint), label in zip(LOSSES.items(), ("$-x$", "logistic")):
        exact, released = (
            rows.select(at={"loss": name, "gradient": gradient}) for gradient in (EXACT, RELEASED)
        )
        limits = exact.column("predicted")
        ax.plot(PAIR_SCORES, limits, color=tint, linewidth=1.1, label=f"{label}, limit")
        ax.plot(PAIR_SCORES, exact.column("value"), color=tint, linestyle="", **dots)
        ax.plot(PAIR_SCORES, released.column("value"), color=tint, linestyle="", **squares)
    ax.plot([], [], linestyle="", color="black", label="exact gradient", **dots)
    ax.plot([], [], linestyle="", color="black", label="published eps", **squares)
    text_style = {"textcoords": "offset points", "ha": "right", "fontsize": 7.5, "color": LOSSES["logistic"]}
    for end, offset in ((released.column("value")[-1], (-6, 5)), (limits[-1], (-9, -6))):
        ax.annotate(signed(end, 2), (PAIR_SCORES[-1], end), xytext=offset, **text_style)
    ax.set(
        title="$p_2$ at the end",
        xlabel="score C",
        xscale="log",
        yscale="symlog",
        ylim=(-3000, 8),
        xlim=(0.8, 160),
    )
    ax.legend(loc="lower left", borderaxespad=0.1, handlelength=1.2, ncols=1)


def signed(number: float, digits: int) -> str:
    """Formats a number with the minus sign (U+2212) that matplotlib uses on the axes."""
    return f"{number:.{digits}f}".replace("-", "−")
