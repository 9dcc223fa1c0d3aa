"""Accuracy, ranking and mass of the own group over the training, for four kinds of scores and optimiser.

Source: :cite:t:`jelassi2022vision`; the comparison of ranking and mass is our own.
"""

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from ....core.experiment import setting
from ....core.figure import Panel, Reading, curves, figure, reading
from ....core.plotting import style
from ....core.result import Result
from ....core.sources import Source
from ....training.fitting import at_steps
from ..association import chance, patch_association
from ..learning import KINDS, PositionalAttentionModel, accuracy, train_patches
from ..patches import SpatialPatchData, sum_accuracy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = ("accuracy", "ranking", "mass")
POINTS = 12
SHARE = {"ylim": (0, 1.04)}


@style()
def draw(result: Result) -> "Figure":
    """Draws the three parts with the accuracy of the sum of the patches, and chance."""
    data = SpatialPatchData(q=result.settings["q"])
    best, by_chance = {"sum of patches": sum_accuracy(data)}, {"chance": chance(data.patches, data.group)}
    return curves(
        "step",
        panels=(
            Panel("accuracy", "accuracy", lines="scores", levels=best, legend=""),
            Panel("ranking", "ranking", lines="scores", levels=by_chance, legend="", axes=SHARE),
            Panel("mass", "mass", lines="scores", levels=by_chance, axes=SHARE),
        ),
        caption="24 patches in groups of 3, q = {q:g}; means of {runs} trainings. Dashed: accuracy of the "
        "sum of patches, chance of ranking and mass. Several kinds generalise; only P P^T with the diagonal "
        "puts weight on the own group.",
        size=(8.4, 3.1),
    )(result)


@figure(
    "vision.association",
    source=Source("jelassi2022vision", status="own"),
    view=draw,
    quick={"steps": 24, "runs": 1},
)
def association_in_training(
    *,
    steps: int = setting(3000, ge=POINTS, le=10**6, help="batches of 256 new images"),
    runs: int = setting(3, ge=1, le=100, help="trainings of each kind"),
    q: float = setting(
        0.1, ge=0.0, le=1.0, help="probability that a patch outside the active group shows the feature"
    ),
    seed: int = 0,
) -> Iterator[Reading]:
    """Positional attention trained on images with groups of patches, for several kinds of scores: three
    numbers at the end, and at twelve steps.
    """
    data, generator = SpatialPatchData(q=q), torch.Generator().manual_seed(seed)
    measured = [point * steps // POINTS for point in range(1, POINTS + 1)]
    for kind, options in KINDS.items():
        found = np.zeros((runs, 3, POINTS))
        for run in range(runs):
            points: list[PositionalAttentionModel] = []

            def keep(_: int, model: nn.Module, points: list = points) -> None:
                points.append(copy.deepcopy(model))

            stops = at_steps(measured, keep, limit=steps)
            end = train_patches(data, generator=generator, steps=steps, callbacks=[stops], **options)
            test = data.sample(2000, end.w, generator)
            for place, model in enumerate(points):
                each = patch_association(model.scores().detach(), data.groups)
                found[run, :, place] = accuracy(model, test), each.ranking, each.mass
        columns = {"unit": "share", "n": runs, "at": {"scores": kind}}
        for part, values in zip(PARTS, found.mean(0).tolist()):
            yield reading(part, values[-1], **columns)
            for step, value in zip(measured, values):
                yield reading(part, value, step=step, **columns)
