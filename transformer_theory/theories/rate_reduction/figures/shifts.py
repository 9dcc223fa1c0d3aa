"""Shift-invariant ReduNet on digits at any position on a torus, compared with ReduNet on their pixels.

Source: :cite:t:`chan2022redunet`.
"""

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

import torch

from ....core.experiment import setting
from ....core.figure import Panel, Reading, draw_curves, figure, reading
from ....core.plotting import axes, heatmap, style
from ....core.result import Result
from ....core.table import Arrays
from ..digit_training import digit_images
from ..on_data import LAYERS_RAISE
from ..problem import NAME, REDUNET
from ..redunet import construct, construct_shift_invariant, lift, random_filters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRID = 8
INVARIANT, BALANCED, PIXELS = "shift-invariant", "shift-invariant, balanced", "pixels"
NETWORKS = (INVARIANT, BALANCED, PIXELS)
AT_ORIGIN, SHIFTED = "accuracy at the training position", "accuracy at shifted positions"
REDUCTION = "rate reduction of all shifts"
EQUIVARIANCE = "largest difference between features of shifted images and shifted features"


@style()
def draw(result: Result) -> "Figure":
    """Plots a digit, the accuracy of two networks at each position, and the rate reduction by layer."""
    drawn, (digit, *maps, curve) = axes(1, 4, width=8.4, height=2.3)
    heatmap(digit, result.arrays[f"{NAME}/example"], cmap="gray_r", bar=False)
    digit.set(title="A digit, as learnt", xticks=[], yticks=[])
    for ax, name in zip(maps, (PIXELS, INVARIANT)):
        values = result.arrays[f"{NAME}/accuracy/{name}"]
        heatmap(ax, values, "accuracy", vmin=0, vmax=1, bar=name == INVARIANT)
        ax.set(title=f"Accuracy, {name}", xlabel="shift to the right", ylabel="shift down")
    labels = {"xlabel": "layer", "ylabel": "ΔR of all shifts, nats"}
    draw_curves(curve, result, Panel("Rate reduction", REDUCTION, axes=labels), x="layer")
    return drawn


@figure(
    "rate_reduction.shifts",
    source=REDUNET,
    view=draw,
    quick={"training": 100, "channels": 4, "size": 3, "layers": 2, "unseen": 20},
)
def shifts(
    *,
    training: int = setting(1300, ge=20, le=1700, help="training samples of 1797; the rest are unseen"),
    channels: int = setting(32, ge=1, le=256, help="random filters, rectified"),
    size: int = setting(5, ge=1, le=GRID, help="pixels along the side of a filter"),
    layers: int = setting(20, ge=1, help="gradient steps"),
    step: float = setting(0.5, gt=0, le=1e3, help="step size η"),
    eps: float = setting(0.1**0.5, ge=1e-3, le=1e3, help="distortion ε; squared inside"),
    unseen: int = setting(
        97, ge=1, le=97, help="unseen samples that are classified at each of the 64 positions"
    ),
    seed: int = 0,
) -> Iterator[Reading | Arrays]:
    """Two networks for digits on a torus, built at one position and tested after every cyclic shift.

    The shift-invariant network predicts the same class at each of the 64 positions, because its features move
    with the image. The network on pixels is built for one position. Both use the same digits without shifted
    copies. "Balanced" means that the shift-invariant network predicts by the smallest ``γ_j ||x C_j||``
    instead of the published ``||x C_j||``.
    """
    generator, (images, labels) = torch.Generator().manual_seed(seed), digit_images()
    order = torch.randperm(len(images), generator=generator)
    train, test = order[:training], order[training:][:unseen]
    filters = random_filters(channels, 1, (size, size), generator=generator)
    settings = {"layers": layers, "eps": eps, "step": step}
    invariant = construct_shift_invariant(lift(images[train], filters), labels[train], **settings)
    vector = construct(images[train].flatten(1), labels[train], **settings)
    accuracy = {name: torch.zeros(GRID, GRID, dtype=torch.float64) for name in NETWORKS}
    gap, unshifted = 0.0, invariant.transform(lift(images[test], filters))
    for shift in product(range(GRID), repeat=2):
        shifted = images[test].roll(shift, (2, 3))
        features = invariant.transform(lift(shifted, filters))
        gap = max(gap, float((features - unshifted.roll(shift, (2, 3))).abs().max()))
        predictions = {
            INVARIANT: invariant.predict(features),
            BALANCED: invariant.predict_balanced(features),
            PIXELS: vector.predict(vector.transform(shifted.flatten(1))),
        }
        for name, classes in predictions.items():
            accuracy[name][shift] = (classes == labels[test]).double().mean()
    yield reading(EQUIVARIANCE, gap, at_most=1e-9, predicted=0.0, note="entries of features of norm 1")
    for name, values in accuracy.items():
        columns = {"unit": "share", "at": {"network": name}, "split": "test", "n": len(test)}
        others = values.flatten()[1:]
        note = f"mean over 63 shifts, {float(others.min()):.3f} to {float(others.max()):.3f}"
        yield reading(AT_ORIGIN, float(values[0, 0]), note=f"{training} training digits", **columns)
        yield reading(SHIFTED, float(others.mean()), note=note, **columns)
    rising, at = float((invariant.reductions.diff() > 0).double().mean()), {"network": INVARIANT}
    columns = {"predicted": 1.0, "unit": "share", "at": at, "note": "rate reduction of all shifts"}
    yield reading(LAYERS_RAISE, rising, at_least=1.0, **columns)
    for layer, value in enumerate(invariant.reductions.tolist()):
        yield reading(REDUCTION, value, unit="nats", at=at, layer=layer)
    yield Arrays({f"{NAME}/example": images[test[0], 0].numpy()})
    yield Arrays({f"{NAME}/accuracy/{name}": accuracy[name].numpy() for name in (PIXELS, INVARIANT)})
