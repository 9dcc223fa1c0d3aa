"""ReduNet on the Gaussian toy of its paper, in the plane and in space.

Source: :cite:t:`chan2022redunet`.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from ....core.experiment import setting
from ....core.figure import Panel, Reading, draw_curves, figure, reading
from ....core.plotting import axes, colour, style
from ....core.result import Result
from ....core.table import Arrays
from ..on_data import LAYERS_RAISE
from ..optimum import optimum
from ..problem import MCR2, NAME, REDUNET, gaussian_toy
from ..redunet import construct

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPTIMUM = "optimum of the rate reduction"
REDUCTION = "rate reduction"
DRAWN = 60  # points of a curve
REFERENCE_LAYERS, REFERENCE_SETTINGS = 300, ("per_class", "step", "noise", "eps")
REFERENCE = {2: 0.875, 3: 1.879}  # d -> ΔR after 300 layers, computed independently with other noise


@style()
def draw(result: Result) -> "Figure":
    """Plots ΔR by layer for each dimension with its optimum, and the plane before and after."""
    drawn, (left, right) = axes(1, 2, height=2.8)
    labels = {"xlabel": "layer of ReduNet", "ylabel": "nats"}
    panel = Panel(
        "Rate reduction (dashed: optimum)", REDUCTION, lines="d", levels={"_": OPTIMUM}, axes=labels
    )
    draw_curves(left, result, panel, x="layer")
    for stage, name in (("before", "null"), ("after", NAME)):
        points = result.arrays[f"{NAME}/plane_{stage}"]
        right.plot(*points.T, ".", color=colour(name), label=stage, alpha=0.6)
    right.set(title="Two classes in the plane", aspect="equal")
    right.legend(loc="lower left")
    return drawn


@figure("rate_reduction.redunet_gaussians", source=REDUNET, view=draw, quick={"layers": 300})
def redunet_gaussians(
    *,
    per_class: int = setting(500, ge=1, help="samples of each class"),
    layers: int = setting(2000, ge=1, help="gradient steps"),
    step: float = setting(0.5, gt=0, help="step size η"),
    noise: float = setting(
        0.1, ge=0, help="standard deviation of the classes before they are projected to the sphere"
    ),
    eps: float = setting(0.1**0.5, ge=1e-3, le=1e3, help="distortion ε; squared inside"),
    seed: int = 0,
) -> Iterator[Reading | Arrays]:
    """ReduNet on Gaussian classes around the axes of the plane and of space: ΔR rises at every layer and
    approaches its optimum.
    """
    generator = torch.Generator().manual_seed(seed)
    for dim in (2, 3):
        train, labels = gaussian_toy(dim, per_class, noise=noise, generator=generator)
        unseen, truth = gaussian_toy(dim, per_class, noise=noise, generator=generator)
        net = construct(train, labels, layers=layers, eps=eps, step=step)
        transformed = net.transform(unseen)
        rising = float((net.reductions.diff() > 0).double().mean())
        best = optimum([per_class] * dim, dim, eps=eps).value
        cosine = (transformed @ transformed.mT).abs()[truth[:, None] != truth].mean()
        accuracy = float((net.predict(transformed) == truth).double().mean())
        row, reductions = partial(reading, at={"d": dim}), net.reductions.tolist()
        yield reading(LAYERS_RAISE, rising, at_least=1.0, predicted=1.0, unit="share", at={"d": dim})
        yield row("rate reduction before", reductions[0], unit="nats")
        yield row("rate reduction after", reductions[-1], unit="nats")
        if layers >= REFERENCE_LAYERS:
            quantity = f"rate reduction after {REFERENCE_LAYERS} layers"
            columns = {"reference": (REFERENCE[dim], "recomputed"), "needs": REFERENCE_SETTINGS}
            yield row(quantity, reductions[REFERENCE_LAYERS], unit="nats", **columns)
        yield row(OPTIMUM, best, unit="nats", source=MCR2)
        yield row("mean |cosine| across classes", float(cosine), split="test")
        yield row("accuracy", accuracy, unit="share", split="test")
        for layer in np.linspace(0, layers, min(DRAWN, layers + 1)).round().astype(int).tolist():
            yield row(REDUCTION, reductions[layer], unit="nats", layer=layer)
        if dim == 2:
            yield Arrays({f"{NAME}/plane_before": unseen.numpy(), f"{NAME}/plane_after": transformed.numpy()})
