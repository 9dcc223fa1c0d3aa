"""Entropy of attention layer by layer, against depth and the rate of Adam: it falls, and at moderate rates it rises again.

The experiment repeats Figures 6 and 8 of :cite:t:`tian2024joma`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Measurement, Null
from ....core.plotting import axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....metrics.networks import ENTROPY
from ..published import TEXT_ENTROPY, TEXT_WORDS
from ..text_runs import RunResult, measured_steps, train_and_measure
from .text_attention import layers_text, plot_entropies

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, JOMA = "scan_snap", Source("tian2024joma")
LOWEST, FINAL = "attention entropy at its lowest", "attention entropy at the end"


@dataclass(frozen=True)
class TextDepth(RandomExperiment):
    """Entropy of every layer's attention over training by Adam, for several depths and rates, with the values released for WikiText-2."""

    text: str = field(default="", metadata={"help": "plain-text file to learn (empty: the shipped text)"})
    held_out: str = field(default="", metadata={"help": "file on which attention is measured (empty: the last fifth of the text)"})
    layers: tuple[int, ...] = setting((1, 3, 5), ge=1, le=10, help="numbers of layers, one per decoder")
    rates: tuple[float, ...] = setting((1e-2, 1e-3, 1e-4), gt=0, help="learning rates of Adam")
    steps: int = setting(1000, ge=1, help="steps of training")
    words: int = setting(3000, ge=10, help="largest number of words in the vocabulary")
    dim: int = setting(200, ge=2, help="width of the residual stream and the MLP, an even number")
    measurements: int = setting(30, ge=1, help="measurements of attention, evenly spaced over the training, besides the start")
    windows: int = setting(100, ge=1, help="number of held-out windows on which attention is measured")

    name: ClassVar[str] = "scan_snap.text_depth"
    sources: ClassVar[tuple[Source, ...]] = (JOMA, Source("merity2017pointer"), Source("kingma2015adam"))

    @classmethod
    def quick(cls) -> "TextDepth":
        return cls(layers=(1, 2), rates=(1e-3,), steps=6, dim=8, words=50, measurements=3, windows=3)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields the lowest and the last entropy of each layer."""
        measured = measured_steps(self.steps, self.measurements)
        shared = {"text": self.text, "held_out": self.held_out, "words": self.words, "steps": self.steps, "dim": self.dim}
        shared |= {"measured": measured, "seed": self.seed, "optimiser": "adam", "windows": self.windows}
        settings = [{"rate": rate, "depth": depth, **shared} for rate, depth in product(self.rates, self.layers)]
        runs = sweep(train_and_measure, settings)
        for (rate, depth), run in zip(product(self.rates, self.layers), runs):
            yield from self._rows(run, rate, depth, measured)
            yield Arrays({f"{NAME}/text/{rate:g}/{depth}": run.series(ENTROPY)})
        yield Arrays({f"{NAME}/text/steps": np.array(measured), f"{NAME}/text/layers": np.array(self.layers)})
        yield Arrays({f"{NAME}/text/rates": np.array(self.rates)})

    def _rows(self, run: RunResult, rate: float, depth: int, measured: tuple[int, ...]) -> Iterator[Measurement]:
        entropy, released = run.series(ENTROPY), TEXT_ENTROPY.get((rate, depth))
        comparable = run.vocabulary == TEXT_WORDS  # the released numbers hold for their own vocabulary only
        for layer in range(depth):
            lowest = int(entropy[:, layer].argmin())
            for quantity, index, released_value in (
                (LOWEST, lowest, released and released.lowest[layer]),
                (FINAL, len(measured) - 1, released and released.final[layer]),
            ):
                printed, note = {}, f"at step {measured[index]} of {self.steps}"
                if released_value is not None and comparable:
                    printed = {"predicted": released_value, "basis": "printed"}
                elif released_value is not None:
                    note += f"; released: {released_value:g} with WikiText-2's {TEXT_WORDS:,} words, here {run.vocabulary:,}"
                yield Measurement(
                    NAME,
                    "figure",
                    quantity,
                    float(entropy[index, layer]),
                    unit="nats",
                    null=Null("before training", (float(entropy[0, layer]),)),
                    model=layers_text(depth),
                    setting=f"Adam {rate:g}",
                    layer=layer,
                    source=JOMA,
                    note=note,
                    **printed,
                )

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots one panel per depth (across) and rate (down), one curve per layer."""
        steps, layers, rates = (result.arrays[f"{NAME}/text/{name}"] for name in ("steps", "layers", "rates"))
        figure, flat = axes(len(rates), len(layers), width=2.5 * len(layers) + 0.3, height=1.8 * len(rates) + 0.7)
        grid = flat.reshape(len(rates), len(layers))
        top = max(float(np.nanmax(result.arrays[f"{NAME}/text/{rate:g}/{depth}"])) for rate in rates for depth in layers)
        for row, rate in zip(grid, rates.tolist()):
            for ax, depth in zip(row, layers.tolist()):
                ax.set_ylim(0, 1.08 * top)
                plot_entropies(ax, steps, result.arrays[f"{NAME}/text/{rate:g}/{depth}"], f"{layers_text(depth)}, Adam {rate:g}")
        caption(figure, "Entropy of attention in nats, mean over held-out windows; one curve per layer, 0 the lowest.")
        return figure
