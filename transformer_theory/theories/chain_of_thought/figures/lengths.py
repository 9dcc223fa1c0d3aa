"""The gap against the length of the task, and the published numbers of the official runs beside ours.

Source: :cite:t:`feng2023towards`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.figure import DASHED, Panel, draw_curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, axes, caption, colour, style
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import share_interval
from ..arithmetic import Arithmetic
from ..learning import MODES, train
from ..tasks import split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OWN = Source("feng2023towards", status="own")
RELEASED = Source(
    "feng2023towards", "released logs of CoT_benchmark, last epoch, mean of 4 seeds", "second-hand"
)
ACCURACY, MAJORITY = "accuracy of the answer", "share of the most frequent answer"
OFFICIAL = {  # by operations: without chain at 3, 4 and 5 layers; with chain at 3 layers
    4: (0.729, 0.914, 0.968, 1.000),
    5: (0.374, 0.322, 0.699, 0.9999),
    6: (0.254, 0.252, 0.491, 0.9998),
}
WITH, WITHOUT = "with chain", "without"
LOOKS = {WITH: {"color": "chain_of_thought"}, WITHOUT: {"color": COLOURS["network"]}}
FREQUENT = {
    MAJORITY: {"color": COLOURS["null"], "linestyle": DASHED, "marker": "", "label": "most frequent answer"}
}
TRAIN_SHARE, TEST_SHARE = 0.8, 0.1  # largest shares of the questions of a task


@dataclass(frozen=True)
class Lengths(RandomExperiment):
    """Accuracy on expressions of 2 to 4 operations with and without the chain, at equal steps, beside the
    official runs.

    The official runs are larger: width 256, 10^6 training questions, 100 epochs, modulus 11 with division.
    """

    operations: tuple[int, ...] = setting((2, 3, 4), ge=1, le=8, help="operations of an expression")
    modulus: int = setting(5, ge=2, le=97, help="modulus p")
    steps_per_operation: int = setting(300, ge=1, help="training steps, times the number of operations")
    train: int = setting(20_000, ge=1, help="training questions, or 80 % of all questions")
    test: int = setting(500, ge=1, help="test questions, or 10 % of all questions")

    name = "chain_of_thought.lengths"
    sources = (OWN, RELEASED)

    @classmethod
    def quick(cls) -> "Lengths":
        """One and two operations modulo 3, a few steps."""
        return cls(operations=(1, 2), modulus=3, steps_per_operation=10, train=200, test=40)

    def measure(self) -> Iterator[Measurement]:
        """Yields three accuracies per length."""
        fixed = {"modulus": self.modulus, "train_size": self.train, "test_size": self.test}
        runs = [
            {"operations": k, "steps": k * self.steps_per_operation, "seed": self.seed, **fixed}
            for k in dict.fromkeys(self.operations)
        ]
        found = sweep(accuracies, runs)
        for run, (chain, direct, share, n) in zip(runs, found):
            k, columns = run["operations"], {"unit": "share", "n": n, "source": OWN}
            for mode, value in ((WITH, chain), (WITHOUT, direct)):
                interval = {"interval": share_interval(value, n), "interval_kind": "over samples"}
                at = {"operations": k, "mode": mode}
                yield self.row(ACCURACY, value, at=at, step=run["steps"], **columns, **interval)
            yield self.row(MAJORITY, share, at={"operations": k}, **columns)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots our accuracies on the left, the released ones on the right."""
        figure, (left, right) = axes(1, 2, height=3.0)
        title = f"Ours: 2 layers, modulo {self.modulus}"
        look = {"xlabel": "operations", "ylabel": "accuracy", "ylim": (0, 1.05)}
        ours = Panel(title, ACCURACY, lines=("mode", LOOKS), legend="center left", axes=look)
        draw_curves(left, result, ours, Panel("", MAJORITY, lines=("quantity", FREQUENT)), x="operations")
        squares = {"marker": "s", "markersize": 4}
        *without, chain = zip(*OFFICIAL.values())
        for layers, values, alpha in zip((3, 4, 5), without, (0.4, 0.65, 1.0)):
            look = {"color": COLOURS["network"], "alpha": alpha, "label": f"{layers} layers, without"}
            right.plot(list(OFFICIAL), values, **look, **squares)
        look = {"color": colour("chain_of_thought"), "label": "3 layers, with chain"}
        right.plot(list(OFFICIAL), chain, **look, **squares)
        right.set(
            title="Official runs: width 256, modulo 11",
            xlabel="operations",
            ylim=(0, 1.05),
            xticks=list(OFFICIAL),
        )
        right.legend(loc="lower left")
        caption(
            figure,
            f"Left: one seed, equal steps ({self.steps_per_operation} per operation), free-running; bands: "
            "95 % interval over questions. Right: numbers of the released logs, not measured by us.",
        )
        return figure


def accuracies(
    *, operations: int, steps: int, seed: int, modulus: int, train_size: int, test_size: int
) -> tuple[float, float, float, int]:
    """Trains two decoders; returns accuracies with and without chain, the share of the most frequent answer,
    and the test questions.
    """
    task, generator = Arithmetic(operations, modulus), torch.Generator().manual_seed(seed + operations)
    n = min(test_size, int(TEST_SHARE * task.questions))
    parts = split(task, train=min(train_size, int(TRAIN_SHARE * task.questions)), test=n, generator=generator)
    chain, direct = (
        train(parts, mode, steps=steps, generator=generator, measured=(steps,), questions=n).accuracies[steps]
        for mode in MODES[:2]
    )
    return chain, direct, float(parts.guessed.double().mean()), n
