"""Sparsity of attention against the learning rate (Figure 10), in a one-layer language model that is trained
on a text.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.figure import Panel, draw_curves
from ....core.measurement import Measurement, Null
from ....core.plotting import axes, caption, colour, style
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

    def measure(self) -> Iterator[Measurement]:
        """Yields entropy and held-out loss of each rate, means over the seeds and single ones; the paper
        plots the entropies without numbers.
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
            where: dict[str, Any] = {
                "model": "1 layer",
                "at": {"rate": rate},
                "step": self.steps,
                "unit": "nats",
            }
            values = entropy[i, :, 1]
            note = f"{values.min():.3f} to {values.max():.3f} over seeds"
            yield self.row(ENTROPY, float(values.mean()), nulls=(start,), note=note, n=self.seeds, **where)
            note = f"per word; {loss[i].min():.3f} to {loss[i].max():.3f} over seeds"
            yield self.row(
                HELD_OUT_LOSS, float(loss[i].mean()), note=note, n=self.seeds, split="validation", **where
            )
            for k in range(self.seeds):
                yield self.row(ENTROPY, float(values[k]), seed=SEED_STRIDE * self.seed + k, **where)
                yield self.row(
                    HELD_OUT_LOSS,
                    float(loss[i, k]),
                    seed=SEED_STRIDE * self.seed + k,
                    split="validation",
                    **where,
                )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots entropy of attention and held-out loss against the learning rate, one mark per seed."""
        figure, (left, right) = axes(1, 2, width=7.0, height=2.6)
        line = {"color": colour(NAME), "label": "_", "marker": ""}
        marks = {"linestyle": "", "marker": "o", "alpha": 0.5, "markeredgewidth": 0}
        for ax, quantity, title in (
            (left, ENTROPY, "Attention entropy, nats"),
            (right, HELD_OUT_LOSS, "Held-out loss, nats per word"),
        ):
            of_seeds = result.table.select(quantity=quantity).where(lambda row: row.seed is not None)
            ax.plot(
                [row.at["rate"] for row in of_seeds], of_seeds.column("value"), color=colour(NAME), **marks
            )
            mean = Panel(
                title,
                quantity,
                {"seed": None},
                ("quantity", {quantity: line}),
                axes={"xlabel": "learning rate"},
            )
            draw_curves(ax, result, mean, x="rate")
        left.set_ylim(0, 1.12 * max(result.select(quantity=ENTROPY).column("value")))
        caption(
            figure,
            f"After {result.settings['steps']} steps; marks are seeds, the line is their mean. Dashed: "
            "before training.",
        )
        return figure
