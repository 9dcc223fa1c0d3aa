"""Accuracy, over training, of the softmax logits that the MLP's weights predict (Figs. 2 and 3).

Source: :cite:t:`tian2024joma`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import Tensor

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Measurement, judge
from ....core.plotting import axes, caption, heatmap, label_ends, line, shades, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ..block import Softmax, gaussian_block, gaussian_contexts, random_contexts
from ..dynamics import Model, gradient_descent
from ..invariants import (
    factorisation_error,
    first_term,
    fixed_mean,
    goodness_of_fit,
    mean_attention,
    moving_mean,
)
from ..on_data import MAX_ASSUMPTION, MAX_ERROR, diagonal
from .common import draw_range, with_range

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME, FIGURE = "joma", Source("tian2024joma", "Theorem 1, Fig. 2", "second-hand")
CORRELATION = "correlation of the predicted change of the logits"
ERROR = "relative error of the predicted change of the logits"
MEASURES = {"correlation": (CORRELATION, 1.0), "error": (ERROR, 0.0)}  # array name -> quantity, perfect value
KINDS = {"Gaussian": gaussian_contexts, "random": random_contexts}
WAYS = {"first": "first term", "both": "both terms", "moving": "moving mean"}  # array name -> label
MARKS = (100, 1000, 2000)
DRAWN = 20  # about the number of points of a curve


@dataclass(frozen=True)
class Invariant(RandomExperiment):
    """Softmax attention at T = 1/2 on 10 distinct and 10 common tokens of 20 classes, full-batch descent on
    the cross-entropy.

    The paper's correlation is blind to a wrong scale, so the relative error is measured too. Besides the
    paper's prediction there are two variants: the first term alone, and the prediction with the mean
    attention at each time instead of the start.
    """

    steps: int = setting(2000, ge=10, help="steps of gradient descent")
    rate: float = setting(0.1, ge=1e-6, le=10, help="learning rate")
    temperature: float = setting(0.5, ge=0.1, le=1e2, help="temperature of the softmax")
    scale: float = setting(0.01, ge=1e-6, le=1, help="standard deviation of the start")
    seeds: int = setting(5, ge=1, le=100, help="number of draws of contexts and start")

    name: ClassVar[str] = "joma.invariant"
    sources: ClassVar[tuple[Source, ...]] = (Source("tian2024joma"),)

    @classmethod
    def quick(cls) -> "Invariant":
        return cls(steps=30, seeds=2)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields correlations and relative errors of the predicted change of the logits after 100, 1000, 2000
        and all steps.
        """
        saved = np.unique(np.linspace(0, self.steps, 201).astype(int)).tolist()
        marks = sorted({mark for mark in MARKS if mark in saved} | {self.steps})
        drawn = sorted({*saved[1 :: max(1, len(saved) // DRAWN)], *marks})
        generator, arrays = self.generator(), {f"{NAME}/steps": np.array(saved)}
        for kind, draw in KINDS.items():
            curves: dict[str, list[Tensor]] = {f"{way}_{measure}": [] for way in WAYS for measure in MEASURES}
            for seed in range(self.seeds):
                contexts, model = draw(generator), Model(Softmax(self.temperature))
                start = gaussian_block(contexts, units=20, scale=self.scale, generator=generator)
                path = gradient_descent(
                    start, contexts, model, rate=self.rate, steps=self.steps, save_steps=saved
                )
                change = path.states.logits[:, 0] - path.states.logits[0, 0]
                predicted = {
                    "first": first_term(model.attention, path),
                    "both": fixed_mean(model, contexts, path),
                    "moving": moving_mean(model, contexts, path),
                }
                for way, values in predicted.items():
                    fit = goodness_of_fit(values, change)
                    curves[f"{way}_correlation"].append(fit.correlation)
                    curves[f"{way}_error"].append(fit.error)
                mean = mean_attention(model, contexts, path)
                shift, loss = (mean - mean[0]).abs().sum(-1) / 2, factorisation_error(model, contexts, path)
                for mark in marks:
                    index = saved.index(mark)
                    numbers = (float(x[index]) for x in (curves["both_error"][-1], shift, loss))
                    yield self._judged(kind, seed, mark, *numbers)
                if not seed:
                    arrays |= {
                        f"{NAME}/{kind}_true": change[-1].numpy(),
                        f"{NAME}/{kind}_both": predicted["both"][-1].numpy(),
                        f"{NAME}/{kind}_moving": predicted["moving"][-1].numpy(),
                        f"{NAME}/{kind}_lower": path.states.lower[[0, -1]].numpy(),
                        f"{NAME}/{kind}_unit": path.states.lower[:, 0, :4].numpy(),
                    }
            for step in drawn:
                index = saved.index(step)
                values = {name: [float(curve[index]) for curve in each] for name, each in curves.items()}
                yield from self._means(kind, step, values, marked=step in marks)
        yield Arrays(arrays)

    def _means(
        self, kind: str, step: int, values: dict[str, list[float]], *, marked: bool
    ) -> Iterator[Measurement]:
        """Yields means over draws with their ranges; at the marked steps, beside the perfect values."""
        for way, label in WAYS.items():
            for name, (quantity, perfect) in MEASURES.items():
                draws = values[f"{way}_{name}"]
                # the paper does not predict by the first term alone
                predicted = perfect if marked and way != "first" else None
                note = f"A mean over draws, from {min(draws):.3g} to {max(draws):.3g}."
                at = {"contexts": kind, "prediction": label}
                columns = {"predicted": predicted, "note": note, "source": FIGURE}
                mean = sum(draws) / len(draws)
                yield from with_range(self, quantity, mean, draws, at=at, step=step, **columns)

    def _judged(
        self, kind: str, seed: int, step: int, error: float, shift: float, loss: float
    ) -> Measurement:
        """Returns the row of the paper's invariant in one draw; covered if the mean attention stays and the
        second moment factorises.
        """
        covered = shift <= MAX_ASSUMPTION and loss <= MAX_ASSUMPTION
        return self.row(
            ERROR,
            error,
            predicted=0.0,
            op="<=",
            threshold=MAX_ERROR,
            verdict=judge(error, "<=", MAX_ERROR, covered=covered),
            at={"contexts": kind},
            step=step,
            seed=seed,
            source=FIGURE,
            note=f"The mean attention has moved {shift:.2g} of its mass; the factorisation loses {loss:.2g} "
            "of dz/dt at this step.",
        )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots one row per kind of contexts: correlation, relative error, predicted and measured change,
        final lower layer, one unit.
        """
        figure, panels = axes(len(KINDS), 5, width=12.0, height=2.6 * len(KINDS))
        for row, kind in enumerate(KINDS):
            _plot_kind(panels[5 * row : 5 * row + 5], kind, result)
        caption(
            figure,
            "Bands: all draws; lines: their mean. First draw in the three columns on the right, colours as "
            "on the left; dashed: equality. 'Both terms' takes the mean attention of the start, 'moving "
            "mean' that of each moment.",
        )
        return figure


def _plot_kind(panels: "np.ndarray | list[Axes]", kind: str, result: Result) -> None:
    correlation, error, sides, lower, unit = panels
    steps, arrays = result.arrays[f"{NAME}/steps"], result.arrays
    for (way, label), tint in zip(WAYS.items(), shades(len(WAYS))):
        rows = result.table.select(at={"contexts": kind, "prediction": label})
        for ax, quantity in ((correlation, CORRELATION), (error, ERROR)):
            draw_range(ax, rows, quantity, "step", color=tint, label=label)
        if way != "first":
            sides.plot(arrays[f"{NAME}/{kind}_{way}"], arrays[f"{NAME}/{kind}_true"], ".", color=tint)
    correlation.set(
        title=f"{kind.capitalize()}: correlation", ylabel="over 20 tokens", xlabel="step", ylim=(None, 1.02)
    )
    error.set(title="Relative error", xlabel="step", yscale="log")
    label_ends(error)
    diagonal(sides, arrays[f"{NAME}/{kind}_true"])
    sides.set(title="Change of z", xlabel="predicted", ylabel="measured")
    image = heatmap(lower, arrays[f"{NAME}/{kind}_lower"][1], "v at the end")
    image.axes.set_aspect("auto")
    lower.set_xticks(range(0, 20, 5))
    lower.set_yticks(range(0, 20, 5))
    lower.set(title="Lower layer", xlabel="token", ylabel="unit")
    tokens = arrays[f"{NAME}/{kind}_unit"].T
    for token, (values, tint) in enumerate(zip(tokens, shades(len(tokens)))):
        line(unit, steps, values, color=tint, label=f"token {token}")
    unit.set(title="Unit 0", xlabel="step", ylabel="v")
    unit.autoscale_view()  # label_ends places labels by the final limits
    label_ends(unit)
