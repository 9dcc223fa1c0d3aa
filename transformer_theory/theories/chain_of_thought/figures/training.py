"""Accuracy over training with the chain, without it and with filler symbols, beside the most frequent answer.

Source: :cite:t:`feng2023towards`; filler symbols as in :cite:t:`pfau2024dot`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Measurement
from ....core.plotting import COLOURS, axes, caption, label_ends, line, null_band, shades, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import share_interval
from ..arithmetic import Arithmetic
from ..learning import MODES, equal_compute_steps, symbols_per_step, train
from ..tasks import split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, SOURCE = "chain_of_thought", Source("feng2023towards", status="second-hand")
OWN = Source("feng2023towards", status="own")
ACCURACY, MAJORITY = "accuracy of the answer", "share of the most frequent answer"
LABELS = {"chain": "with chain", "direct": "without", "filler": "filler"}


@dataclass(frozen=True)
class Training(RandomExperiment):
    """Free-running accuracy on unseen expressions over training, against steps and against symbols read.

    Without the chain, training goes on until the network has read as many symbols as with it.
    """

    operations: int = setting(3, ge=1, le=8, help="operations of an expression")
    modulus: int = setting(5, ge=2, le=97, help="modulus p")
    steps: int = setting(1000, ge=1, help="steps with the chain")
    train: int = setting(20_000, ge=1, help="training questions")
    test: int = setting(500, ge=1, help="test questions")
    points: int = setting(10, ge=1, le=100, help="measurements on the way")

    name: ClassVar[str] = "chain_of_thought.training"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE, Source("pfau2024dot", status="second-hand"))

    @classmethod
    def quick(cls) -> "Training":
        """One operation modulo 3, a few steps."""
        return cls(operations=1, modulus=3, steps=20, train=17, test=10, points=2)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the accuracy of each network at each measured step, the last with its interval, and that of
        the most frequent answer.
        """
        generator = self.generator()
        task = Arithmetic(self.operations, self.modulus)
        parts = split(task, train=self.train, test=self.test, generator=generator)
        arrays, share = {}, float(parts.guessed.double().mean())
        yield Measurement(
            NAME,
            "figure",
            MAJORITY,
            share,
            unit="share",
            n=self.test,
            interval=share_interval(share, self.test),
            source=OWN,
        )
        for mode in MODES:
            steps = equal_compute_steps(parts, mode, self.steps) if mode == "direct" else self.steps
            measured = sorted({round(steps * i / self.points) for i in range(self.points + 1)} | {self.steps})
            network = train(
                parts, mode, steps=steps, generator=generator, measured=measured, questions=self.test
            )
            x = np.array(measured)
            arrays[f"{NAME}/{mode}"] = np.stack(
                [x, x * symbols_per_step(parts, mode), [network.accuracies[step] for step in measured]]
            )
            for step in dict.fromkeys((self.steps, steps)):
                value = network.accuracies[step]
                interval = share_interval(value, self.test)
                columns = {
                    "unit": "share",
                    "n": self.test,
                    "step": step,
                    "interval": interval,
                    "interval_kind": "over samples",
                }
                yield Measurement(
                    NAME, "figure", ACCURACY, value, at={"mode": LABELS[mode]}, source=OWN, **columns
                )
        yield Arrays(arrays)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots accuracy against steps and against symbols read."""
        if f"{NAME}/chain" not in result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        figure, (left, right) = axes(1, 2, height=2.9)
        share = result.select(quantity=MAJORITY).one().value or 0.0
        for ax, row, scale, label in (
            (left, 0, 1, "optimiser steps"),
            (right, 1, 1e6, "symbols read, millions"),
        ):
            for mode, tint in zip(MODES, (COLOURS[NAME], COLOURS["network"], shades(3)[2])):
                values = result.arrays[f"{NAME}/{mode}"]
                values = values[:, values[0] <= self.steps] if ax is left else values
                line(
                    ax,
                    values[row] / scale,
                    values[2],
                    color=tint,
                    marker="o",
                    markersize=2.5,
                    label=LABELS[mode],
                )
            null_band(ax, share, label="")
            ax.set(xlabel=label, ylabel="accuracy", ylim=(0, 1.05))
            label_ends(ax)
        left.set(title="Equal steps")
        right.set(title="Equal compute")
        caption(
            figure,
            f"{self.operations} operations modulo {self.modulus}, {self.test} questions outside the "
            "training set, free-running. One seed. Dashed: share of the most frequent answer.",
        )
        return figure
