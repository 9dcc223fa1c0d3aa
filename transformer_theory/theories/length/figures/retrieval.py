"""Retrieval heads that were trained on 16 keys, at up to 4,096: predicted and measured weights, and scores
multiplied by log n.

Source: :cite:t:`velickovic2025softmax`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....core.experiment import RandomExperiment, setting
from ....core.figure import Panel, curves
from ....core.measurement import Measurement
from ....core.plotting import COLOURS, TINTS, style
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import student_interval
from ..dispersion import score_gap, winner_weight
from ..retrieval import KEYS, LENGTHS, AtLength, at_length, short_scores, train_head

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOP, RIGHT = "largest weight", "weight on the right key"
RANKED, ACCURACY, BOUND = "right key ranked first", "accuracy", "delta - log n"
MAXIMUM, NEEDLE = "maximum", "needle"  # tasks
TRAINED, SCALED = "scores as trained", "times log n"
LOOKS = {TRAINED: {"color": "length"}, SCALED: {"color": TINTS[1]}}
DOTTED = {
    scores: {**look, "linestyle": ":", "marker": "", "band": False, "label": label}
    for (scores, look), label in zip(LOOKS.items(), ("on the right key", "_"))
}
WEIGHT = {"ylabel": "largest weight", "ylim": (-0.03, 1.05)}


def weights(title: str, task: str, legend: str) -> tuple[Panel, Panel]:
    """Returns the panel of the largest weights of a task, as measured and predicted."""
    trained, scaled = (
        Panel(
            title,
            TOP,
            {"task": task, "scores": scores},
            ("scores", {scores: look}),
            predicted=label,
            legend=legend,
            axes=WEIGHT,
        )
        for (scores, look), label in zip(LOOKS.items(), ("predicted", "_"))
    )
    return trained, scaled


def accuracies(task: str, color: str) -> Panel:
    """Returns the panel of the accuracies of a task, dotted for scores times log n."""
    looks = {
        TRAINED: {"color": color, "label": task},
        SCALED: {"color": color, "label": f"{task}, {SCALED}", "linestyle": ":"},
    }
    axes = {"ylabel": "accuracy", "ylim": (-0.03, 1.05)}
    return Panel("accuracy", ACCURACY, {"task": task}, ("scores", looks), axes=axes)


@dataclass(frozen=True)
class Retrieval(RandomExperiment):
    """Heads that retrieve the largest of n keys, or a marked one, at lengths beyond that of the training."""

    heads: int = setting(5, ge=1, le=100, help="trainings of each task")
    steps: int = setting(
        1500, ge=1, le=10**6, help="steps of Adam for the largest key; a fifth for the marked one"
    )
    longest: int = setting(4096, ge=16, le=10**6, help="largest number of keys")
    sequences: int = setting(400, ge=2, le=10**6, help="measured sequences at each length")

    name = "length.retrieval"
    sources = (
        Source("velickovic2025softmax", status="own"),
        Source("chiang2022overcoming", status="own"),
    )

    view = curves(
        "keys",
        panels=(
            (
                *weights("largest of n keys", MAXIMUM, "upper right"),
                Panel("", RIGHT, {"task": MAXIMUM}, ("scores", DOTTED)),
            ),
            weights("one marked key", NEEDLE, "lower left"),
            (accuracies(MAXIMUM, "length"), accuracies(NEEDLE, TINTS[0])),
        ),
        log="x",
        caption="Means of {heads} heads trained on 16 keys. Left: resampled scores of 16 keys predict the "
        "largest weight; the weight on the right key is smaller. Middle: a lone winner is predicted by "
        "its gap. Right: chance is .1.",
        size=(8.4, 3.0),
    )

    @classmethod
    def quick(cls) -> "Retrieval":
        """One head of each task, two steps, up to 64 keys."""
        return cls(heads=1, steps=10, longest=64, sequences=20)

    def measure(self) -> Iterator[Measurement]:
        """Yields the quantities of each task, length and factor; means over heads with their interval.

        The largest weight is predicted by resampling for the largest of n keys, and by the gap of a lone
        winner for the marked key.
        """
        generator, lengths = self.generator(), [n for n in LENGTHS if n <= self.longest]
        for task in (MAXIMUM, NEEDLE):
            steps = self.steps if task == MAXIMUM else max(1, self.steps // 5)
            found: dict[tuple[int, bool], list[tuple[AtLength, float]]] = {}
            for _ in range(self.heads):
                model = train_head(task, generator=generator, steps=steps)
                short = short_scores(model, task, generator=generator, sequences=4000)
                shared = {"generator": generator, "sequences": self.sequences}
                for n in lengths:
                    for scaled in (False, True):
                        row = at_length(model, task, n, short, scaled=scaled, **shared)
                        gaps = score_gap(short * (math.log(n) / math.log(KEYS) if scaled else 1.0))
                        found.setdefault((n, scaled), []).append((row, float(winner_weight(gaps, n).mean())))
            for (n, scaled), rows in found.items():
                at = {"task": task, "scores": SCALED if scaled else TRAINED, "keys": n}
                predicted = [row.predicted if task == MAXIMUM else alone for row, alone in rows]
                expected = sum(predicted) / len(predicted)
                yield self._mean(TOP, [row.top for row, _ in rows], predicted=expected, unit="share", at=at)
                yield self._mean(RIGHT, [row.right for row, _ in rows], unit="share", at=at)
                yield self._mean(RANKED, [row.ranked for row, _ in rows], unit="share", at=at)
                yield self._mean(ACCURACY, [row.accuracy for row, _ in rows], unit="share", at=at)
                yield self._mean(BOUND, [row.bound for row, _ in rows], unit="nats", at=at)

    def _mean(self, quantity: str, values: Sequence[float], **columns: Any) -> Measurement:
        """Returns the mean over heads with its interval."""
        ends = student_interval(values)
        columns |= {} if ends is None else {"interval": ends, "interval_kind": "over heads"}
        return self.row(quantity, sum(values) / len(values), n=self.heads, **columns)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Adds the chance of the accuracy."""
        figure = super().plot(result)
        figure.axes[2].axhline(0.1, color=COLOURS["null"], linestyle=":")
        return figure
