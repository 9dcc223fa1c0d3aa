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
from ....core.measurement import Arrays, Measurement
from ....core.plotting import COLOURS, axes, caption, label_ends, style
from ....core.result import Result
from ....core.sources import Source
from ..dynamics import LINEAR, LOGISTIC, normalised_descent, start
from ..published import PAIR_SCORES, prompt_limit, published_pair
from .common import NAME, arrays_of, figure_row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOURCE = Source("tarzanagh2023maxmargin")
COORDINATE = "second coordinate of p"
EPS = 1e-9  # added to the norm of the gradient in the released run
TINTS = {"linear": COLOURS["rate_reduction"], "logistic": COLOURS["attention_svm"]}
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
        """Yields one row per loss and score with the second coordinate of p and its limit, and arrays with
        the paths.
        """
        instance, scores = published_pair(), torch.tensor(PAIR_SCORES, dtype=torch.float64)
        steps = sorted({*range(0, min(161, self.steps), 2), *range(0, self.steps, 20), self.steps})
        arrays = {"steps": torch.tensor(steps), "scores": scores}
        for loss in (LINEAR, LOGISTIC):
            state, path = start(instance), []
            for step in steps:
                state = normalised_descent(
                    instance, state, steps=step - state.step, rate=self.rate, loss=loss
                )
                path.append(state.W.squeeze(-1))
            ends, limits = path[-1][:, 1], prompt_limit(scores, loss=loss)
            for C, value, limit in zip(PAIR_SCORES, ends.tolist(), limits.tolist()):
                variant = f"loss {loss.name}, C = {C:g}, exact gradient"
                yield figure_row(
                    COORDINATE,
                    value,
                    SOURCE,
                    reference=(limit, "limit"),
                    at={"setting": variant},
                    step=self.steps,
                )
            released = normalised_descent(
                instance, start(instance), steps=self.steps, rate=self.rate, loss=loss, eps=EPS
            )
            yield figure_row(
                COORDINATE,
                float(released.W[-1, 1, 0]),
                SOURCE,
                reference=(float(limits[-1]), "limit"),
                at={"setting": f"loss {loss.name}, C = 100, eps = {EPS:.0e} as released"},
                step=self.steps,
                note="the released settings stop where the gradient falls below eps",
            )
            arrays |= {
                f"path_{loss.name}": torch.stack(path),
                f"limit_{loss.name}": limits,
                f"released_{loss.name}": released.W[:, 1, 0],
            }
        yield Arrays({f"{NAME}/{name}": value.numpy() for name, value in arrays.items()})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots the paths of p for some scores C, one panel per loss, and the final second coordinate of p
        against C with its limit.
        """
        a = arrays_of(result)
        figure, panels = axes(1, 3, width=7.0, height=3.1)
        for ax, (name, tint), title in zip(panels, TINTS.items(), ("Loss $-x$", r"Loss $\log(1 + e^{-x})$")):
            for shade, C in zip(np.linspace(0.35, 1, len(PLOTTED_SCORES)), PLOTTED_SCORES):
                trial = int(np.flatnonzero(a["scores"] == C)[0])
                path, end = a[f"path_{name}"][:, trial], a[f"limit_{name}"][trial]
                ax.plot(*path.T, color=tint, alpha=shade, label=f"C = {C:g}\n{signed(path[-1, 1], 3)}")
                ax.axhline(end, color=tint, alpha=shade, linewidth=0.9, linestyle=(0, (4, 3)))
            ax.set(title=title, xlabel="$p_1$", xlim=(0, 12))
            label_ends(ax)
        panels[0].set(ylabel="$p_2$")
        _ends(panels[2], a)
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


def _ends(ax: "Axes", a: dict[str, np.ndarray]) -> None:
    """Plots the second coordinate of p at the end, against the score C."""
    for (name, tint), label in zip(TINTS.items(), ("$-x$", "logistic")):
        ax.plot(a["scores"], a[f"limit_{name}"], color=tint, linewidth=1.1, label=f"{label}, limit")
        ax.plot(a["scores"], a[f"path_{name}"][-1, :, 1], color=tint, linestyle="", marker="o", markersize=3)
        ax.plot(
            a["scores"],
            a[f"released_{name}"],
            color=tint,
            linestyle="",
            marker="s",
            markersize=6,
            fillstyle="none",
        )
    ax.plot([], [], linestyle="", marker="o", markersize=3, color="black", label="exact gradient")
    ax.plot(
        [], [], linestyle="", marker="s", markersize=6, fillstyle="none", color="black", label="published eps"
    )
    text_style = {"textcoords": "offset points", "ha": "right", "fontsize": 7.5, "color": TINTS["logistic"]}
    for name, offset in (("released_logistic", (-6, 5)), ("limit_logistic", (-9, -6))):
        end = float(a[name][-1])
        ax.annotate(signed(end, 2), (a["scores"][-1], end), xytext=offset, **text_style)
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
