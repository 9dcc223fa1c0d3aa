"""Accuracy, ranking and mass of the own group over the training, for four kinds of scores and optimiser.

Source: :cite:t:`jelassi2022vision`; the comparison of ranking and mass is our own.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from ....core.experiment import RandomExperiment, setting
from ....core.figure import Panel, curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, TINTS, style
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
LOOKS = {
    kind: {"color": tint, "marker": ""}
    for kind, tint in zip(KINDS, ("vision", *TINTS[:1], *TINTS[2:4], COLOURS["null"]))
}
SHARE = {"ylim": (0, 1.04)}


@dataclass(frozen=True)
class AssociationInTraining(RandomExperiment):
    """Positional attention trained on images with groups of patches, for several kinds of scores."""

    steps: int = setting(3000, ge=POINTS, le=10**6, help="batches of 256 new images")
    runs: int = setting(3, ge=1, le=100, help="trainings of each kind")
    q: float = setting(
        0.1, ge=0.0, le=1.0, help="probability that a patch outside the active group shows the feature"
    )

    name = "vision.association"
    sources = (Source("jelassi2022vision", status="own"),)

    view = curves(
        "step",
        panels=[
            Panel(part, part, lines=("scores", LOOKS), legend=legend, axes=look)
            for part, legend, look in zip(PARTS, ("", "", "center right"), ({}, SHARE, SHARE))
        ],
        caption="24 patches in groups of 3, q = {q:g}; means of {runs} trainings. Dotted: accuracy of the "
        "sum of "
        "patches, chance of ranking and mass. Several kinds generalise; only P P^T with the diagonal puts "
        "weight "
        "on the own group.",
        size=(8.4, 3.1),
    )

    @classmethod
    def quick(cls) -> "AssociationInTraining":
        """One training of 24 steps."""
        return cls(steps=24, runs=1)

    def stops(self) -> list[int]:
        """Returns the steps at which the model is measured; the last is the end."""
        return [point * self.steps // POINTS for point in range(1, POINTS + 1)]

    def measure(self) -> Iterator[Measurement]:
        """Yields the three numbers of each kind at the end, and at each stop."""
        data, generator = SpatialPatchData(q=self.q), self.generator()
        for kind, options in KINDS.items():
            curves = np.zeros((self.runs, 3, POINTS))
            for run in range(self.runs):
                points: list[PositionalAttentionModel] = []

                def keep(_: int, model: nn.Module, points: list = points) -> None:
                    points.append(copy.deepcopy(model))

                stops = at_steps(self.stops(), keep, limit=self.steps)
                found = train_patches(
                    data, generator=generator, steps=self.steps, callbacks=[stops], **options
                )
                test = data.sample(2000, found.w, generator)
                for place, model in enumerate(points):
                    each = patch_association(model.scores().detach(), data.groups)
                    curves[run, :, place] = accuracy(model, test), each.ranking, each.mass
            means, columns = curves.mean(0), {"unit": "share", "n": self.runs, "at": {"scores": kind}}
            for part, values in zip(PARTS, means):
                yield self.row(part, float(values[-1]), **columns)
                for step, value in zip(self.stops(), values):
                    yield self.row(part, float(value), step=step, **columns)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Adds the accuracy of the sum of the patches, and chance."""
        figure, data = super().plot(result), SpatialPatchData(q=self.q)
        by_chance = chance(data.patches, data.group)
        for ax, level in zip(figure.axes, (sum_accuracy(data), by_chance, by_chance)):
            ax.axhline(level, color=COLOURS["raw"], linestyle=":")
        figure.axes[0].set_ylim(None, 1.003)
        return figure
