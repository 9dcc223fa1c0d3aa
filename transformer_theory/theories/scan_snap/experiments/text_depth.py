"""Entropy of attention layer by layer, against depth and the rate of Adam: it falls, and at moderate rates it rises again.

Source: :cite:t:`tian2024joma`.
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
from ..figures.text import depths
from ..published_text import ENTROPY as RELEASED
from ..published_text import WORDS
from ..text_runs import Followed
from .text_attention import evenly, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, JOMA = "scan_snap", Source("tian2024joma")
LOWEST, FINAL = "attention entropy at its lowest", "attention entropy at the end"


@dataclass(frozen=True)
class TextDepth(RandomExperiment):
    """Entropy of every layer's attention over training by Adam, for several depths and rates, beside what was released for WikiText-2."""

    text: str = field(default="", metadata={"says": "plain-text file to learn; the text that comes with the library if empty"})
    held_out: str = field(default="", metadata={"says": "file on which attention is read; the last fifth of the text if empty"})
    layers: tuple[int, ...] = setting((1, 3, 5), ge=1, le=10, help="of each decoder")
    rates: tuple[float, ...] = setting((1e-2, 1e-3, 1e-4), gt=0, help="learning rates of Adam")
    steps: int = setting(1000, ge=1, help="of training")
    words: int = setting(3000, ge=10, help="largest vocabulary")
    dim: int = setting(200, ge=2, help="width of stream and MLP, an even number")
    readings: int = setting(30, ge=1, help="of attention, evenly over the training, the start aside")
    windows: int = setting(100, ge=1, help="on which attention is read")

    name: ClassVar[str] = "scan_snap.text_depth"
    sources: ClassVar[tuple[Source, ...]] = (JOMA, Source("merity2017pointer"), Source("kingma2015adam"))

    @classmethod
    def quick(cls) -> "TextDepth":
        return cls(layers=(1, 2), rates=(1e-2, 1e-3), steps=12, dim=8, words=50, readings=3, windows=5)

    def measure(self) -> Iterator[Row | Arrays]:
        """The lowest and the last entropy of each layer."""
        at = evenly(self.steps, self.readings)
        shared = {"text": self.text, "held_out": self.held_out, "words": self.words, "steps": self.steps, "dim": self.dim}
        shared |= {"at": at, "seed": self.seed, "optimiser": "adam", "windows": self.windows}
        settings = [{"rate": rate, "depth": depth, **shared} for rate in self.rates for depth in self.layers]
        for setting, found in zip(settings, sweep(run, settings)):
            yield from self._rows(found, setting["rate"], setting["depth"], at)
            yield Arrays({f"{NAME}/text/{setting['rate']:g}/{setting['depth']}": found.series(ENTROPY)})
        yield Arrays({f"{NAME}/text/steps": np.array(at), f"{NAME}/text/layers": np.array(self.layers)})
        yield Arrays({f"{NAME}/text/rates": np.array(self.rates)})

    def _rows(self, found: Followed, rate: float, depth: int, at: tuple[int, ...]) -> Iterator[Row]:
        entropy, released = found.series(ENTROPY), RELEASED.get((rate, depth))
        comparable = found.vocabulary == WORDS
        for layer in range(depth):
            lowest = int(entropy[:, layer].argmin())
            for quantity, index, theirs in (
                (LOWEST, lowest, released and released.lowest[layer]),
                (FINAL, len(at) - 1, released and released.final[layer]),
            ):
                note = f"nats, at step {at[index]} of {self.steps}; null: before training"
                row = Row(
                    theory=NAME,
                    quantity=quantity,
                    value=float(entropy[index, layer]),
                    null=float(entropy[0, layer]),
                    model=f"{depth} layer{'s'[: depth > 1]}, Adam {rate:g}",
                    layer=layer,
                    source=str(JOMA),
                )
                if theirs is not None and comparable:
                    row |= {"predicted": theirs, "basis": "printed"}
                elif theirs is not None:
                    note += f"; released: {theirs:g}, of WikiText-2's training split with {WORDS:,} words, here {found.vocabulary:,}"
                yield Row(**{**row, "note": note})

    def draw(self, result: Result) -> "Figure":
        """A panel a depth and rate, a curve a layer."""
        return depths(result)
