"""Sparsity of attention against the learning rate, in a language model of one layer that learns a text.

Source: :cite:t:`tian2023scan`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Row
from ....core.result import Result
from ....core.sources import Source
from ....probes.reducers import ENTROPY
from ..figures.text import rates
from ..text_runs import HELD_OUT
from .text_attention import run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "scan_snap"


@dataclass(frozen=True)
class TextRates(RandomExperiment):
    """Entropy of attention after training by gradient descent at several rates, a few seeds each."""

    text: str = field(default="", metadata={"says": "plain-text file to learn; the text that comes with the library if empty"})
    held_out: str = field(default="", metadata={"says": "file on which attention is read; the last fifth of the text if empty"})
    rates: tuple[float, ...] = setting((1.0, 2.0, 3.0, 4.0, 5.0), gt=0, help="learning rates; the first layer's MLP learns at twice that")
    seeds: int = setting(3, ge=1, help="runs of each rate; the paper has five")
    steps: int = setting(600, ge=1, help="of training")
    words: int = setting(3000, ge=10, help="largest vocabulary")
    dim: int = setting(200, ge=2, help="width of stream and MLP, an even number")
    windows: int = setting(100, ge=1, help="on which attention is read")

    name: ClassVar[str] = "scan_snap.text_rates"
    sources: ClassVar[tuple[Source, ...]] = (Source("tian2023scan", "Fig. 10"), Source("merity2017pointer"))

    @classmethod
    def quick(cls) -> "TextRates":
        return cls(rates=(0.5, 2.0), seeds=2, steps=10, dim=8, words=50, windows=5)

    def measure(self) -> Iterator[Row | Arrays]:
        """Entropy and held-out loss of each rate, mean of the seeds; the paper shows the entropies in a figure without numbers."""
        shared = {"text": self.text, "held_out": self.held_out, "words": self.words, "steps": self.steps, "dim": self.dim}
        shared |= {"depth": 1, "at": (0, self.steps), "windows": self.windows}
        settings = [{"rate": rate, "seed": 1000 * self.seed + k, **shared} for rate in self.rates for k in range(self.seeds)]
        found = sweep(run, settings)
        entropy = np.array([one.series(ENTROPY)[:, 0] for one in found]).reshape(len(self.rates), self.seeds, 2)
        losses = [[row["value"] for row in one.rows if row["quantity"] == HELD_OUT][-1] for one in found]
        loss = np.array(losses, dtype=float).reshape(len(self.rates), self.seeds)
        start = float(entropy[:, :, 0].mean())
        for i, rate in enumerate(self.rates):
            values, where = entropy[i, :, 1], {"model": f"1 layer, rate {rate:g}", "step": self.steps}
            note = f"nats; {self.seeds} seeds, {values.min():.3f} to {values.max():.3f}; null: before training"
            yield Row(theory=NAME, quantity=ENTROPY, value=float(values.mean()), null=start, note=note, **where)
            note = f"nats a word; {self.seeds} seeds, {loss[i].min():.3f} to {loss[i].max():.3f}"
            yield Row(theory=NAME, quantity=HELD_OUT, value=float(loss[i].mean()), note=note, **where)
        yield Arrays({f"{NAME}/text/rates": np.array(self.rates), f"{NAME}/text/entropy": entropy, f"{NAME}/text/held_out": loss})

    def draw(self, result: Result) -> "Figure":
        """Entropy and loss against the rate."""
        return rates(result)
