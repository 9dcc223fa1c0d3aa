"""Accuracy over training with the chain, without it and with filler symbols, beside the most frequent answer.

Source: :cite:t:`feng2023towards`; filler symbols as in :cite:t:`pfau2024dot`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....core.experiment import RandomExperiment, setting
from ....core.figure import Panel, curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, TINTS, null_band, style
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import share_interval
from ..arithmetic import Arithmetic
from ..learning import MODES, equal_compute_steps, symbols_per_step, train
from ..tasks import split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OWN = Source("feng2023towards", status="own")
ACCURACY, MAJORITY = "accuracy of the answer", "share of the most frequent answer"
LABELS = {"chain": "with chain", "direct": "without", "filler": "filler"}
LOOKS = {
    LABELS[mode]: {"color": tint}
    for mode, tint in zip(MODES, ("chain_of_thought", COLOURS["network"], TINTS[3]))
}
SHARE = {"ylabel": "accuracy", "ylim": (0, 1.05)}


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

    name = "chain_of_thought.training"
    sources = (
        Source("feng2023towards", status="second-hand"),
        Source("pfau2024dot", status="second-hand"),
    )

    view = curves(
        "step",
        panels=(
            Panel(
                "Equal steps", ACCURACY, lines=("mode", LOOKS), axes={**SHARE, "xlabel": "optimiser steps"}
            ),
            Panel("Equal compute", ACCURACY, lines=("mode", LOOKS), legend="ends", axes=SHARE, x="symbols"),
        ),
        xlabel="symbols read",
        caption="{operations} operations modulo {modulus}, {test} questions outside the training set, "
        "free-running. One seed. Bands: 95 % interval over questions. Dashed: share of the most frequent "
        "answer.",
        size=(7.0, 2.9),
    )

    @classmethod
    def quick(cls) -> "Training":
        """One operation modulo 3, a few steps."""
        return cls(operations=1, modulus=3, steps=20, train=17, test=10, points=2)

    def measure(self) -> Iterator[Measurement]:
        """Yields the share of the most frequent answer, and the accuracy of each network at each measured
        step.
        """
        generator = self.generator()
        task = Arithmetic(self.operations, self.modulus)
        parts = split(task, train=self.train, test=self.test, generator=generator)
        share = float(parts.guessed.double().mean())
        columns = {"unit": "share", "n": self.test, "source": OWN}
        yield self.row(MAJORITY, share, interval=share_interval(share, self.test), **columns)
        for mode in MODES:
            steps = equal_compute_steps(parts, mode, self.steps) if mode == "direct" else self.steps
            measured = sorted({round(steps * i / self.points) for i in range(self.points + 1)} | {self.steps})
            network = train(
                parts, mode, steps=steps, generator=generator, measured=measured, questions=self.test
            )
            for step in measured:
                value = network.accuracies[step]
                at = {"mode": LABELS[mode], "symbols": step * symbols_per_step(parts, mode)}
                columns |= {"interval": share_interval(value, self.test), "interval_kind": "over samples"}
                yield self.row(ACCURACY, value, at=at, step=step, **columns)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Adds the share of the most frequent answer, and ends the left panel at the steps of
        all networks.
        """
        figure = super().plot(result)
        (share,) = result.select(quantity=MAJORITY).column("value")
        for ax in figure.axes:
            null_band(ax, share, label="")
        figure.axes[0].set_xlim(0, 1.02 * self.steps)
        return figure
