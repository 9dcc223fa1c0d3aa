"""Accuracy, ranking and mass of the own group over the training, for four kinds of scores and optimiser.

Source: :cite:t:`jelassi2022vision`; the comparison of ranking and mass is our own.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import nn

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Measurement
from ....core.plotting import COLOURS, axes, caption, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ....training.fitting import at_steps
from ..association import chance, patch_association
from ..learning import KINDS, PositionalAttentionModel, accuracy, train_patches
from ..patches import SpatialPatchData, sum_accuracy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, SOURCE = "vision", Source("jelassi2022vision", status="own")
PARTS = ("accuracy", "ranking", "mass")
POINTS = 12


@dataclass(frozen=True)
class AssociationInTraining(RandomExperiment):
    """Positional attention trained on images with groups of patches, for several kinds of scores."""

    steps: int = setting(3000, ge=POINTS, le=10**6, help="batches of 256 new images")
    runs: int = setting(3, ge=1, le=100, help="trainings of each kind")
    q: float = setting(
        0.1, ge=0.0, le=1.0, help="probability that a patch outside the active group shows the feature"
    )

    name: ClassVar[str] = "vision.association"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE,)

    @classmethod
    def quick(cls) -> "AssociationInTraining":
        """One training of 24 steps."""
        return cls(steps=24, runs=1)

    def stops(self) -> list[int]:
        """Returns the steps at which the model is measured; the last is the end."""
        return [point * self.steps // POINTS for point in range(1, POINTS + 1)]

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the three numbers at the end of each kind, and their curves, ``[runs, 3, points]``."""
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
            for part, values in zip(PARTS, curves[:, :, -1].T):
                columns = {"unit": "share", "n": self.runs, "source": SOURCE, "at": {"scores": kind}}
                yield Measurement(NAME, "figure", part, float(values.mean()), **columns)
            yield Arrays({kind: curves})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Draws the three numbers over the steps, with the mean over the trainings."""
        if not result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        figure, panels = axes(1, 3, width=8.4, height=3.1)
        colours = (COLOURS[NAME], "#4477AA", "#DDAA33", "#228833", COLOURS["null"])
        data = SpatialPatchData(q=self.q)
        levels = (sum_accuracy(data), chance(data.patches, data.group), chance(data.patches, data.group))
        for place, (part, ax) in enumerate(zip(PARTS, panels)):
            for kind, colour in zip(KINDS, colours):
                if kind in result.arrays:
                    ax.plot(self.stops(), result.arrays[kind][:, place].mean(0), color=colour, label=kind)
            ax.axhline(levels[place], color="#3F4751", linestyle=":")
            ax.set(
                xlabel="step", title=part, ylim=(0, 1.04) if place else (min(levels[0], 0.95) - 0.03, 1.005)
            )
        panels[0].set_ylim(None, 1.003)
        panels[2].legend(loc="center right", fontsize=6.5, bbox_to_anchor=(1.0, 0.42))
        caption(
            figure,
            f"24 patches in groups of 3, q = {self.q:g}; means of {self.runs} trainings. Dotted: accuracy "
            "of the sum of patches, chance of ranking and mass. Several kinds generalise; only P P^T with "
            "the diagonal puts weight on the own group.",
        )
        return figure
