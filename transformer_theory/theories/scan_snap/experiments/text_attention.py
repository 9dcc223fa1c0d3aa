"""Attention of language models of one and three layers while they learn a text: its maps over training, and what it attends to.

Source: :cite:t:`tian2023scan`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ....core.claims import Evidence
from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Arrays, Row, finding, select
from ....core.result import Result
from ....core.sources import Source
from ....probes.reducers import ENTROPY
from ..figures.text import attention
from ..phases import phases
from ..reducers import OVERLAP
from ..text_runs import HELD_OUT, ORDERS, Followed, Run, follow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, PAPER = "scan_snap", Source("tian2023scan")
PICTURES = 3  # of the readings, evenly over the training, the start aside


@dataclass(frozen=True)
class TextAttention(RandomExperiment):
    """Attention maps, entropy and words attended to of causal decoders that learn a text by gradient descent; null: its words shuffled."""

    text: str = field(default="", metadata={"says": "plain-text file to learn; the text that comes with the library if empty"})
    held_out: str = field(default="", metadata={"says": "file on which attention is read; the last fifth of the text if empty"})
    layers: tuple[int, ...] = setting((1, 3), ge=1, le=10, help="of each decoder")
    steps: int = setting(1500, ge=1, help="of training")
    rate: float = setting(5.0, gt=0, help="learning rate; the first layer's MLP learns at twice that")
    words: int = setting(3000, ge=10, help="largest vocabulary")
    dim: int = setting(200, ge=2, help="width of stream and MLP, an even number")
    readings: int = setting(30, ge=PICTURES, help="of attention, evenly over the training, the start aside")
    windows: int = setting(100, ge=1, help="on which attention is read")

    name: ClassVar[str] = "scan_snap.text_attention"
    sources: ClassVar[tuple[Source, ...]] = (Source("tian2023scan", "Fig. 7"), Source("merity2017pointer"))

    @classmethod
    def quick(cls) -> "TextAttention":
        return cls(layers=(1, 2), steps=12, rate=1.0, dim=8, words=50, readings=3, windows=5)

    def measure(self) -> Iterator[Row | Arrays]:
        """Readings at four steps, the phases of every layer, and whether its entropy fell."""
        at = evenly(self.steps, self.readings)
        shown = {at[round(k * (len(at) - 1) / PICTURES)] for k in range(PICTURES + 1)}
        shared = {"text": self.text, "held_out": self.held_out, "words": self.words, "rate": self.rate, "steps": self.steps}
        shared |= {"dim": self.dim, "at": at, "seed": self.seed, "windows": self.windows}
        settings = [{"depth": depth, "order": order, **shared} for depth in self.layers for order in ORDERS]
        results = sweep(run, settings)
        for depth, found, other in zip(self.layers, results[::2], results[1::2]):
            model = f"{depth} layer{'s'[: depth > 1]}"
            for row in select(found.rows, step=tuple(shown)):
                if row["value"] is not None:
                    yield Row(**{**row, "model": model})
            yield from self._phases(found, model, at)
            entropy, unordered = found.series(ENTROPY), other.series(ENTROPY)
            for layer, (start, end) in enumerate(zip(entropy[0].tolist(), entropy[-1].tolist())):
                yield finding(
                    NAME,
                    "attention entropy at the end, at most that at the start",
                    Evidence(end, start, "<=", covered=False),
                    source=PAPER,
                    null=float(unordered[-1, layer]),
                    model=model,
                    layer=layer,
                    note=f"nats; {found.vocabulary} words, {self.steps} steps, many queries; null: the same words shuffled",
                )
            prefix = f"{NAME}/text/{depth}"
            pictured = [at.index(step) for step in sorted(shown)]
            yield Arrays({f"{prefix}/entropy": entropy, f"{prefix}/shuffled": unordered, f"{prefix}/maps": found.maps[pictured]})
            yield Arrays({f"{prefix}/loss": found.losses, f"{prefix}/held_out": _held_out(found)})
        yield Arrays({f"{NAME}/text/steps": np.array(at), f"{NAME}/text/pictured": np.array(sorted(shown))})

    def _phases(self, found: Followed, model: str, at: tuple[int, ...]) -> Iterator[Row]:
        for layer, overlaps in enumerate(found.series(OVERLAP)[1:].T.tolist()):
            if not np.isfinite(overlaps).all():
                continue
            seen = phases(at, overlaps)
            note = "between two readings; the chord between the mean maps, by step"
            fastest = "step around which attention moves fastest"
            yield Row(theory=NAME, quantity=fastest, value=seen.scanning, model=model, layer=layer, note=note)
            note = "speed below a tenth of the fastest from there on" if seen.snapped is not None else "it does not within the run"
            snapped = None if seen.snapped is None else float(seen.snapped)
            yield Row(theory=NAME, quantity="step from which attention has snapped", value=snapped, model=model, layer=layer, note=note)

    def draw(self, result: Result) -> "Figure":
        """A row of maps a decoder, and the entropies over the steps."""
        return attention(result)


def evenly(steps: int, readings: int) -> tuple[int, ...]:
    """Steps at which attention is read: the start, and ``readings`` more at even distances, the last at the end."""
    return tuple(sorted({round(k * steps / readings) for k in range(readings + 1)}))


def run(**setting) -> Followed:
    """:func:`follow` of the run with these settings."""
    return follow(Run(**setting))


def _held_out(found: Followed) -> np.ndarray:
    return np.array([row["value"] for row in select(found.rows, quantity=HELD_OUT)], dtype=float)
