"""Accuracy, over training, of the softmax logits that the MLP's weights predict (Figs. 2 and 3).

Source: :cite:t:`tian2024joma`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import RANGE, Panel, Reading, draw_curves, figure, reading, with_range
from ....core.plotting import TINTS, axes, caption, heatmap, label_ends, style
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

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, FIGURE = "joma", Source("tian2024joma", "Theorem 1, Fig. 2", "second-hand")
CORRELATION = "correlation of the predicted change of the logits"
ERROR = "relative error of the predicted change of the logits"
MEASURES = {"correlation": (CORRELATION, 1.0), "error": (ERROR, 0.0)}  # attribute -> quantity, perfect value
KINDS = {"Gaussian": gaussian_contexts, "random": random_contexts}
WAYS = {"first": "first term", "both": "both terms", "moving": "moving mean"}  # name -> label
CURVES = ("prediction", dict(zip(WAYS.values(), ({"color": tint} for tint in TINTS))))
MARKS = (100, 1000, 2000)
DRAWN = 20  # about the number of points of a curve


@style()
def draw(result: Result) -> "Figure":
    """Plots one row per kind of contexts: correlation, relative error, predicted and measured change, final
    lower layer, one unit.
    """
    drawn, grid = axes(len(KINDS), 5, width=12.0, height=2.6 * len(KINDS))
    for kind, (correlation, error, sides, lower, unit) in zip(KINDS, grid.reshape(-1, 5)):
        look = {"lines": CURVES, "axes": {"xlabel": "step"}, "at": {"contexts": kind}}
        panel = Panel(f"{kind.capitalize()}: correlation", CORRELATION, legend="", **look)
        draw_curves(correlation, result, panel, x="step", spread=RANGE)
        error.set_yscale("log")
        panel = Panel("Relative error", ERROR, legend="ends", **look)
        draw_curves(error, result, panel, x="step", spread=RANGE)
        change = result.arrays[f"{NAME}/{kind}_true"]
        for way, tint in (("both", TINTS[1]), ("moving", TINTS[2])):
            sides.plot(result.arrays[f"{NAME}/{kind}_{way}"], change, ".", color=tint)
        diagonal(sides, change)
        sides.set(title="Change of z", xlabel="predicted", ylabel="measured")
        heatmap(lower, result.arrays[f"{NAME}/{kind}_lower"][1], "v at the end")
        lower.set(title="Lower layer", xlabel="token", ylabel="unit", aspect="auto")
        tokens = result.arrays[f"{NAME}/{kind}_unit"]
        labels = [f"token {token}" for token in range(tokens.shape[1])]
        unit.plot(result.arrays[f"{NAME}/steps"], tokens, label=labels)
        unit.set(title="Unit 0", xlabel="step", ylabel="v")
        label_ends(unit)
    caption(
        drawn,
        "Bands: all draws; lines: their mean. First draw in the three columns on the right; dashed: equality."
        " 'Both terms' takes the mean attention of the start, 'moving mean' that of each moment.",
    )
    return drawn


@figure("joma.invariant", source=Source("tian2024joma"), view=draw, quick={"steps": 30, "seeds": 2})
def invariant(
    *,
    steps: int = setting(2000, ge=10, help="steps of gradient descent"),
    rate: float = setting(0.1, ge=1e-6, le=10, help="learning rate"),
    temperature: float = setting(0.5, ge=0.1, le=1e2, help="temperature of the softmax"),
    scale: float = setting(0.01, ge=1e-6, le=1, help="standard deviation of the start"),
    seeds: int = setting(5, ge=1, le=100, help="number of draws of contexts and start"),
    seed: int = 0,
) -> Iterator[Reading | list[Reading] | Arrays]:
    """Softmax attention at T = 1/2 on 10 distinct and 10 common tokens of 20 classes, full-batch descent on
    the cross-entropy.

    The paper's correlation is blind to a wrong scale, so the relative error is measured too. Besides the
    paper's prediction there are two variants: the first term alone, and the prediction with the mean
    attention at each time instead of the start.
    """
    saved = np.unique(np.linspace(0, steps, 201).astype(int)).tolist()
    marks = sorted({mark for mark in MARKS if mark in saved} | {steps})
    generator, model = torch.Generator().manual_seed(seed), Model(Softmax(temperature))
    arrays = {"steps": np.array(saved)}
    for kind, draw_contexts in KINDS.items():
        fits = {way: [] for way in WAYS}
        for number in range(seeds):
            contexts = draw_contexts(generator)
            start = gaussian_block(contexts, units=20, scale=scale, generator=generator)
            path = gradient_descent(start, contexts, model, rate=rate, steps=steps, save_steps=saved)
            change = path.states.logits[:, 0] - path.states.logits[0, 0]
            predicted = {
                "first": first_term(model.attention, path),
                "both": fixed_mean(model, contexts, path),
                "moving": moving_mean(model, contexts, path),
            }
            for way, values in predicted.items():
                fits[way].append(goodness_of_fit(values, change))
            mean = mean_attention(model, contexts, path)
            moved, loss = (mean - mean[0]).abs().sum(-1) / 2, factorisation_error(model, contexts, path)
            for step in marks:
                index = saved.index(step)
                error, shift, lost = (float(curve[index]) for curve in (fits["both"][-1].error, moved, loss))
                place = {"at": {"contexts": kind}, "step": step, "seed": number, "source": FIGURE}
                yield _invariant(error, shift, lost, **place)
            if number == 0:
                arrays |= {
                    f"{kind}_true": change[-1].numpy(),
                    f"{kind}_both": predicted["both"][-1].numpy(),
                    f"{kind}_moving": predicted["moving"][-1].numpy(),
                    f"{kind}_lower": path.states.lower[[0, -1]].numpy(),
                    f"{kind}_unit": path.states.lower[:, 0, :4].numpy(),
                }
        for step in sorted({*saved[1 :: max(1, len(saved) // DRAWN)], *marks}):
            for way, label in WAYS.items():
                place = {"at": {"contexts": kind, "prediction": label}, "step": step, "source": FIGURE}
                for name, (quantity, perfect) in MEASURES.items():
                    values = [float(getattr(fit, name)[saved.index(step)]) for fit in fits[way]]
                    # the paper does not predict by the first term alone
                    goal = perfect if step in marks and way != "first" else None
                    note = f"A mean over draws, from {min(values):.3g} to {max(values):.3g}."
                    average = sum(values) / seeds
                    row = reading(quantity, average, predicted=goal, n=seeds, note=note, **place)
                    yield with_range(row, values)
    yield Arrays({f"{NAME}/{name}": values for name, values in arrays.items()})


def _invariant(error: float, shift: float, loss: float, **place: Any) -> Reading:
    """Returns the paper's invariant in one draw; covered if the mean attention stays and the second moment
    factorises.
    """
    covered = shift <= MAX_ASSUMPTION and loss <= MAX_ASSUMPTION
    moved = f"The mean attention has moved {shift:.2g} of its mass"
    note = f"{moved}; the factorisation loses {loss:.2g} of dz/dt at this step."
    return reading(ERROR, error, at_most=MAX_ERROR, covered=covered, predicted=0.0, note=note, **place)
