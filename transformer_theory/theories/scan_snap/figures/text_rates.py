"""Sparsity of attention against the learning rate (Figure 10), in a one-layer language model that is trained
on a text.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Measurement, Null
from ....core.plotting import COLOURS, axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....metrics.networks import ENTROPY
from ..text_runs import HELD_OUT_LOSS, train_and_measure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, FIGURE = "scan_snap", Source("tian2023scan", "Fig. 10")
SEED_STRIDE = 1000  # distance between the seeds of two experiments, so that their runs do not share seeds


@dataclass(frozen=True)
class TextRates(RandomExperiment):
    """Entropy of attention after training by gradient descent at several rates, with a few seeds each."""

    text: str = field(default="", metadata={"help": "plain-text file to learn (empty: the shipped text)"})
    held_out: str = field(
        default="",
        metadata={"help": "file on which attention is measured (empty: the last fifth of the text)"},
    )
    rates: tuple[float, ...] = setting(
        (1.0, 2.0, 3.0, 4.0, 5.0), gt=0, help="learning rates; the first layer's MLP has twice the rate"
    )
    seeds: int = setting(3, ge=1, help="runs of each rate; the paper has five")
    steps: int = setting(600, ge=1, help="steps of training")
    words: int = setting(3000, ge=10, help="largest number of words in the vocabulary")
    dim: int = setting(200, ge=2, help="width of the residual stream and the MLP, an even number")
    windows: int = setting(100, ge=1, help="number of held-out windows on which attention is measured")

    name: ClassVar[str] = "scan_snap.text_rates"
    sources: ClassVar[tuple[Source, ...]] = (FIGURE, Source("merity2017pointer"))

    @classmethod
    def quick(cls) -> "TextRates":
        return cls(rates=(2.0, 10.0), seeds=2, steps=30, dim=16, words=50, windows=3)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields entropy and held-out loss of each rate, means over the seeds; the paper plots the entropies
        without numbers.
        """
        shared = {
            "text": self.text,
            "held_out": self.held_out,
            "words": self.words,
            "steps": self.steps,
            "dim": self.dim,
        }
        shared |= {"depth": 1, "measured": (0, self.steps), "windows": self.windows}
        settings = [
            {"rate": rate, "seed": SEED_STRIDE * self.seed + k, **shared}
            for rate in self.rates
            for k in range(self.seeds)
        ]
        runs = sweep(train_and_measure, settings)
        entropy = np.array([run.series(ENTROPY)[:, 0] for run in runs]).reshape(
            len(self.rates), self.seeds, 2
        )
        loss = np.array([run.held_out_losses[-1] for run in runs]).reshape(len(self.rates), self.seeds)
        start = Null("before training", (float(entropy[:, :, 0].mean()),))
        for i, rate in enumerate(self.rates):
            where = {
                "model": "1 layer",
                "at": {"setting": f"rate {rate:g}"},
                "step": self.steps,
                "n": self.seeds,
                "unit": "nats",
                "source": FIGURE,
            }
            values = entropy[i, :, 1]
            note = f"{values.min():.3f} to {values.max():.3f} over seeds"
            yield Measurement(
                NAME, "figure", ENTROPY, float(values.mean()), nulls=(start,), note=note, **where
            )
            note = f"per word; {loss[i].min():.3f} to {loss[i].max():.3f} over seeds"
            yield Measurement(
                NAME, "figure", HELD_OUT_LOSS, float(loss[i].mean()), split="validation", note=note, **where
            )
        yield Arrays(
            {
                f"{NAME}/text/rates": np.array(self.rates),
                f"{NAME}/text/entropy": entropy,
                f"{NAME}/text/held_out": loss,
            }
        )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots entropy of attention and held-out loss against the learning rate, one mark per seed."""
        rates, entropy, loss = (
            result.arrays[f"{NAME}/text/{name}"] for name in ("rates", "entropy", "held_out")
        )
        figure, (left, right) = axes(1, 2, width=7.0, height=2.6)
        for ax, values, title in (
            (left, entropy[:, :, 1], "Attention entropy, nats"),
            (right, loss, "Held-out loss, nats per word"),
        ):
            ax.plot(rates, values.mean(1), color=COLOURS[NAME])
            ax.plot(rates, values, "o", color=COLOURS[NAME], alpha=0.5, markeredgewidth=0)
            ax.set(title=title, xlabel="learning rate")
        start = float(entropy[:, :, 0].mean())
        left.axhline(start, color=COLOURS["null"], linewidth=1.0, linestyle=(0, (4, 3)))
        left.set_ylim(0, 1.12 * max(start, float(entropy.max())))
        caption(
            figure,
            f"After {result.settings['steps']} steps; marks are seeds, the line is their mean. Dashed: "
            "before training.",
        )
        return figure
