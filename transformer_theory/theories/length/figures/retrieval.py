"""Retrieval heads that were trained on 16 keys, at up to 4,096: predicted and measured weights, and scores
multiplied by log n.

Source: :cite:t:`velickovic2025softmax`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ....core.experiment import RandomExperiment, setting
from ....core.measurement import Arrays, Measurement
from ....core.plotting import COLOURS, axes, caption, style, text_figure
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import student_interval
from ..dispersion import score_gap, winner_weight
from ..retrieval import KEYS, LENGTHS, AtLength, at_length, short_scores, train_head

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, SOURCE, CHIANG = (
    "length",
    Source("velickovic2025softmax", status="own"),
    Source("chiang2022overcoming", status="own"),
)
TOP, RIGHT = "largest weight", "weight on the right key"
SCORES = {False: "as trained", True: "times log n"}
RANKED, ACCURACY, BOUND = "right key ranked first", "accuracy", "delta - log n"


def over_heads(quantity: str, values: Sequence[float], **columns: Any) -> Measurement:
    """Returns the mean over heads with its interval."""
    ends = student_interval(values)
    interval = {} if ends is None else {"interval": ends, "interval_kind": "over heads"}
    return Measurement(NAME, "figure", quantity, sum(values) / len(values), **interval, **columns)


@dataclass(frozen=True)
class Retrieval(RandomExperiment):
    """Heads that retrieve the largest of n keys, or a marked one, at lengths beyond that of the training."""

    heads: int = setting(5, ge=1, le=100, help="trainings of each task")
    steps: int = setting(
        1500, ge=1, le=10**6, help="steps of Adam for the largest key; a fifth for the marked one"
    )
    longest: int = setting(4096, ge=16, le=10**6, help="largest number of keys")
    sequences: int = setting(400, ge=2, le=10**6, help="measured sequences at each length")

    name: ClassVar[str] = "length.retrieval"
    sources: ClassVar[tuple[Source, ...]] = (SOURCE, CHIANG)

    @classmethod
    def quick(cls) -> "Retrieval":
        """One head of each task, two steps, up to 64 keys."""
        return cls(heads=1, steps=10, longest=64, sequences=20)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the quantities of each task, length and factor; means over heads with their interval.

        The largest weight is predicted by resampling for the largest of n keys, and by the gap of a lone
        winner for the marked key.
        """
        generator, lengths = self.generator(), [n for n in LENGTHS if n <= self.longest]
        for kind in ("maximum", "needle"):
            found: dict[tuple[int, bool], list[tuple[AtLength, float]]] = {}
            for _ in range(self.heads):
                model = train_head(
                    kind,
                    generator=generator,
                    steps=self.steps if kind == "maximum" else max(1, self.steps // 5),
                )
                short = short_scores(model, kind, generator=generator, sequences=4000)
                for n in lengths:
                    for scaled in (False, True):
                        row = at_length(
                            model,
                            kind,
                            n,
                            short,
                            generator=generator,
                            scaled=scaled,
                            sequences=self.sequences,
                        )
                        gaps = score_gap(short * (math.log(n) / math.log(KEYS) if scaled else 1.0))
                        found.setdefault((n, scaled), []).append((row, float(winner_weight(gaps, n).mean())))
            for (n, scaled), rows in found.items():
                place = {
                    "at": {"task": kind, "scores": SCORES[scaled], "keys": n},
                    "n": self.heads,
                    "source": SOURCE,
                }
                predicted = (
                    [row.predicted for row, _ in rows] if kind == "maximum" else [alone for _, alone in rows]
                )
                shares = {
                    TOP: [row.top for row, _ in rows],
                    RIGHT: [row.right for row, _ in rows],
                    RANKED: [row.ranked for row, _ in rows],
                    ACCURACY: [row.accuracy for row, _ in rows],
                }
                for quantity, values in shares.items():
                    expected = sum(predicted) / len(predicted) if quantity == TOP else None
                    yield over_heads(quantity, values, unit="share", predicted=expected, **place)
                yield over_heads(BOUND, [row.bound for row, _ in rows], unit="nats", **place)
        yield Arrays({"lengths": torch.tensor(lengths).numpy()})

    @style()
    def plot(self, result: Result) -> "Figure":
        """Draws the weights of both tasks, and the accuracy."""
        if "lengths" not in result.arrays:
            return text_figure(f"{self.name}: nothing was measured")
        figure, (left, middle, right) = axes(1, 3, width=8.4, height=3.0)
        lengths = result.arrays["lengths"]

        def values(kind: str, quantity: str, scaled: bool, column: str = "value") -> list[float]:
            """Returns a column of one quantity over the lengths; NaN where it is missing."""
            place = {"task": kind, "scores": SCORES[scaled]}
            rows = [result.select(quantity=quantity, at=place | {"keys": n}) for n in lengths]
            return [
                math.nan if not each or each[0].value is None else getattr(each[0], column) for each in rows
            ]

        for ax, kind, title in ((left, "maximum", "largest of n keys"), (middle, "needle", "one marked key")):
            for scaled, colour, label in (
                (False, COLOURS[NAME], "scores as trained"),
                (True, COLOURS["CRATE"], "times log n"),
            ):
                ax.plot(lengths, values(kind, TOP, scaled), "o-", color=colour, markersize=3, label=label)
                expected = values(kind, TOP, scaled, "predicted")
                ax.plot(lengths, expected, "x", color=COLOURS["raw"], label=None if scaled else "predicted")
                if kind == "maximum":
                    ax.plot(
                        lengths,
                        values(kind, RIGHT, scaled),
                        ":",
                        color=colour,
                        label=None if scaled else "on the right key",
                    )
            ax.set(xscale="log", xlabel="keys", ylabel="largest weight", title=title, ylim=(-0.03, 1.05))
            ax.legend(loc="upper right" if kind == "maximum" else "lower left")
        for kind, colour in (("maximum", COLOURS[NAME]), ("needle", COLOURS["ViT"])):
            for scaled, line in ((False, "o-"), (True, "o:")):
                label = f"{kind}{', times log n' if scaled else ''}"
                right.plot(
                    lengths, values(kind, ACCURACY, scaled), line, color=colour, markersize=3, label=label
                )
        right.axhline(0.1, color=COLOURS["null"], linestyle=":")
        right.set(xscale="log", xlabel="keys", ylabel="accuracy", title="accuracy", ylim=(-0.03, 1.05))
        right.legend()
        caption(
            figure,
            f"Means of {self.heads} heads trained on 16 keys. Left: resampled scores of 16 keys predict the "
            "largest weight; the weight on the right key is smaller. Middle: a lone winner is predicted by "
            "its gap. Right: chance is .1.",
        )
        return figure
