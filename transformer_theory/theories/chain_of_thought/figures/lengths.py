"""The gap against the length of the task, and the published numbers of the official runs beside ours.

Source: :cite:t:`feng2023towards`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Measurement
from ....core.plotting import COLOURS, axes, caption, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import share_interval
from ..arithmetic import Arithmetic
from ..learning import MODES, train
from ..tasks import split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, OWN = "chain_of_thought", Source("feng2023towards", status="own")
RELEASED = Source(
    "feng2023towards", "released logs of CoT_benchmark, last epoch, mean of 4 seeds", "second-hand"
)
ACCURACY, MAJORITY = "accuracy of the answer", "share of the most frequent answer"
OFFICIAL = {  # by operations: without chain at 3, 4 and 5 layers; with chain at 3 layers
    4: (0.729, 0.914, 0.968, 1.000),
    5: (0.374, 0.322, 0.699, 0.9999),
    6: (0.254, 0.252, 0.491, 0.9998),
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

    name: ClassVar[str] = "chain_of_thought.lengths"
    sources: ClassVar[tuple[Source, ...]] = (OWN, RELEASED)

    @classmethod
    def quick(cls) -> "Lengths":
        """One and two operations modulo 3, a few steps."""
        return cls(operations=(1, 2), modulus=3, steps_per_operation=10, train=200, test=40)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields three accuracies per length."""
        fixed = {"modulus": self.modulus, "train_size": self.train, "test_size": self.test}
        runs = [
            {"operations": k, "steps": k * self.steps_per_operation, "seed": self.seed, **fixed}
            for k in dict.fromkeys(self.operations)
        ]
        found = sweep(accuracies, runs)
        for run, (chain, direct, share, n) in zip(runs, found):
            k = run["operations"]
            for label, value in (("with chain", chain), ("without", direct)):
                interval: dict[str, Any] = {
                    "interval": share_interval(value, n),
                    "interval_kind": "over samples",
                }
                columns: dict[str, Any] = {
                    "at": {"operations": k, "mode": label},
                    "step": run["steps"],
                    "source": OWN,
                    **interval,
                }
                yield Measurement(NAME, "figure", ACCURACY, value, unit="share", n=n, **columns)
            yield Measurement(
                NAME,
                "figure",
                MAJORITY,
                share,
                unit="share",
                n=n,
                at={"operations": k},
                source=OWN,
            )
        yield Arrays(
            {f"{NAME}/lengths": np.array([[run["operations"], *row] for run, row in zip(runs, found)])}
        )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots our accuracies on the left, the released ones on the right."""
        if f"{NAME}/lengths" not in result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        figure, (left, right) = axes(1, 2, height=3.0)
        k, chain, direct, share, n = result.arrays[f"{NAME}/lengths"].T
        for values, name, label in ((chain, NAME, "with chain"), (direct, "network", "without")):
            ends = np.array(
                [share_interval(value, int(size)) or (value, value) for value, size in zip(values, n)]
            ).T
            bars = np.clip(np.stack([values - ends[0], ends[1] - values]), 0, None)
            left.errorbar(
                k,
                values,
                yerr=bars,
                color=COLOURS[name],
                marker="o",
                markersize=4,
                linewidth=1.5,
                capsize=2,
                label=label,
            )
        left.plot(
            k, share, color=COLOURS["null"], linestyle=(0, (4, 3)), linewidth=1, label="most frequent answer"
        )
        left.set(
            title=f"Ours: 2 layers, modulo {self.modulus}",
            xlabel="operations",
            ylabel="accuracy",
            ylim=(0, 1.05),
            xticks=k,
        )
        left.legend(loc=(0.03, 0.45))
        official = np.array([[k, *values] for k, values in OFFICIAL.items()]).T
        for row, (label, alpha) in enumerate(
            zip(("3 layers, without", "4 layers, without", "5 layers, without"), (0.4, 0.65, 1.0)), start=1
        ):
            right.plot(
                official[0],
                official[row],
                color=COLOURS["network"],
                alpha=alpha,
                marker="s",
                markersize=4,
                label=label,
            )
        right.plot(
            official[0],
            official[4],
            color=COLOURS[NAME],
            marker="s",
            markersize=4,
            label="3 layers, with chain",
        )
        right.set(
            title="Official runs: width 256, modulo 11",
            xlabel="operations",
            ylim=(0, 1.05),
            xticks=official[0],
        )
        right.legend(loc="lower left")
        caption(
            figure,
            f"Left: one seed, equal steps ({self.steps_per_operation} per operation), free-running; bars: "
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
