"""Language models on text: entropy of attention and stable rank of the lower layer by layer, for several
depths and rates of Adam.

The entropies repeat Figures 6 and 8 of :cite:t:`tian2024joma`, for any text file. Figure 7 shows the stable
rank in checkpoints of large pre-trained networks; here it is that of the networks of this experiment.

``RELEASED`` is from the results released with the paper for WikiText-2. It contains the minimum and the final
value (after 20 epochs of Adam) of each layer's attention entropy: nats, means over all queries of 35-word
sequences and over three seeds. Uniform causal attention has log(35!)/35 = 2.634.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import nn

from ....core.experiment import RANGE, RandomExperiment, setting, sweep
from ....core.measurement import Measurement, Null
from ....core.plotting import axes, caption, label_ends, shades, style
from ....core.result import Result
from ....core.sources import Source
from ....core.statistics import student_interval
from ....data.text import SHIPPED, Text
from ....metrics import AttentionStatistics
from ....metrics.networks import ENTROPY
from ....models.decoder import Decoder
from ....models.embedding import build
from ....probes import probe
from ....training.fitting import at_steps, fit
from ....training.tasks import NextWord, next_word_loss
from ..in_networks import LOWER_RANK, JointDynamics
from .common import draw_range, with_range

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = Source("tian2024joma", "Figs. 6, 8", "second-hand")
REMARK = Source("tian2024joma", "Fig. 7", "second-hand")
LOWEST, FINAL = "attention entropy at its lowest", "attention entropy at the end"
RANK_LOWEST, RANK_FINAL = (
    "stable rank of the lower layer at its lowest",
    "stable rank of the lower layer at the end",
)
LOSS = "held-out loss"
# curve of a run -> quantity, unit and source
QUANTITIES = {"entropy": (ENTROPY, "nats", FIGURES), "rank": (LOWER_RANK, "", REMARK)}
DRAWN = 10  # about the number of points of a curve
# share of a text used for training if there is no second text; largest norm of the gradient
TRAIN_SHARE, CLIP = 0.8, 0.5
RELEASED_WORDS = 28_782  # vocabulary of WikiText-2's training split


@dataclass(frozen=True)
class Released:
    """Smallest and final entropy of each layer, in nats."""

    lowest: tuple[float, ...]
    final: tuple[float, ...]


# (learning rate of Adam, layers)
RELEASED = {
    (1e-4, 1): Released((1.55,), (2.21,)),
    (1e-4, 2): Released((1.34, 1.53), (1.83, 2.17)),
    (1e-4, 3): Released((1.27, 1.25, 1.92), (1.56, 1.89, 2.32)),
    (1e-4, 5): Released((1.29, 1.16, 1.25, 1.81, 2.16), (1.43, 1.50, 1.96, 2.07, 2.43)),
    (1e-3, 1): Released((1.65,), (2.27,)),
    (5e-5, 1): Released((1.58,), (2.13,)),
    (1e-5, 1): Released((1.62,), (1.74,)),
    (5e-6, 1): Released((1.59,), (1.60,)),
    (1e-6, 1): Released((1.88,), (2.21,)),
}


@dataclass(frozen=True)
class TextDepth(RandomExperiment):
    """Entropy of attention and stable rank of the lower layer over training by Adam on a text, for several
    depths and rates.

    The released entropies of WikiText-2 are shown for comparison. They are predictions only for its
    vocabulary.
    """

    text: str = field(default="", metadata={"help": "plain-text file to learn (empty: the shipped text)"})
    held_out: str = field(
        default="",
        metadata={"help": "file on which attention is measured (empty: the last fifth of the text)"},
    )
    layers: tuple[int, ...] = setting((1, 3, 5), ge=1, le=10, help="numbers of layers, one per decoder")
    rates: tuple[float, ...] = setting((1e-2, 1e-3, 1e-4), ge=1e-8, le=1, help="learning rates of Adam")
    steps: int = setting(1000, ge=1, le=10**6, help="steps of training")
    words: int = setting(3000, ge=10, le=10**6, help="largest number of words in the vocabulary")
    dim: int = setting(200, ge=2, le=4096, multiple_of=2, help="width of the residual stream and the MLP")
    measurements: int = setting(
        30, ge=1, le=10**4, help="measurements, evenly spaced over the training, besides the start"
    )
    windows: int = setting(
        100, ge=1, le=10**5, help="number of held-out windows on which attention is measured"
    )
    seeds: int = setting(2, ge=1, le=100, help="runs per depth and rate (the paper: 3)")

    name: ClassVar[str] = "joma.text_depth"
    sources: ClassVar[tuple[Source, ...]] = (FIGURES, Source("merity2017pointer"), Source("kingma2015adam"))

    @classmethod
    def quick(cls) -> "TextDepth":
        return cls(
            layers=(1, 2), rates=(1e-2,), steps=40, dim=16, words=50, measurements=8, windows=3, seeds=1
        )

    def measure(self) -> Iterator[Measurement]:
        """Yields the lowest and the last entropy and stable rank of each layer, means over the seeds, and the
        held-out loss.
        """
        measured = tuple(
            np.unique(np.linspace(0, self.steps, self.measurements + 1).round().astype(int)).tolist()
        )
        shared = {
            "text": self.text,
            "held_out": self.held_out,
            "words": self.words,
            "steps": self.steps,
            "dim": self.dim,
        }
        shared |= {"measured": measured, "windows": self.windows}
        cells, seeds = [*product(self.rates, self.layers)], range(self.seed, self.seed + self.seeds)
        runs = iter(
            sweep(
                one_run,
                [
                    {"rate": rate, "depth": depth, "seed": seed, **shared}
                    for rate, depth in cells
                    for seed in seeds
                ],
            )
        )
        for rate, depth in cells:
            cell = [next(runs) for _ in seeds]
            yield from self._rows(cell, rate, depth)
            yield from self._curves(cell, rate, depth, measured)

    def _curves(
        self, runs: list[dict[str, np.ndarray]], rate: float, depth: int, measured: tuple[int, ...]
    ) -> Iterator[Measurement]:
        """Yields the curves of each layer, means over the seeds with their ranges."""
        for key, (quantity, unit, source) in QUANTITIES.items():
            for index, step in list(enumerate(measured))[:: max(1, len(measured) // DRAWN)]:
                for layer, values in enumerate(np.transpose([run[key][index] for run in runs]).tolist()):
                    place = {"at": {"rate": rate}, "model": _depth_text(depth), "layer": layer, "step": step}
                    mean = float(np.mean(values))
                    yield from with_range(self, quantity, mean, values, unit=unit, source=source, **place)

    def _rows(self, runs: list[dict[str, np.ndarray]], rate: float, depth: int) -> Iterator[Measurement]:
        released, words = RELEASED.get((rate, depth)), int(runs[0]["words"])
        for layer in range(depth):
            for key, low, last in (("entropy", LOWEST, FINAL), ("rank", RANK_LOWEST, RANK_FINAL)):
                _, unit, source = QUANTITIES[key]
                curves = np.stack([run[key][:, layer] for run in runs])  # [seeds, measured]
                for quantity, values in ((low, curves.min(1)), (last, curves[:, -1])):
                    columns = {
                        "unit": unit,
                        "layer": layer,
                        "source": source,
                        "nulls": (_before(curves[:, 0]),),
                    }
                    if key == "entropy" and released is not None:
                        printed = (released.lowest if quantity == LOWEST else released.final)[layer]
                        if words == RELEASED_WORDS:
                            columns |= {"predicted": printed, "basis": "printed"}
                        else:
                            columns["note"] = (
                                f"Released: {printed:g} with WikiText-2's {RELEASED_WORDS:,} words; here "
                                f"{words:,}."
                            )
                    yield self._row(quantity, values, rate, depth, **columns)
        losses = np.stack([run["loss"] for run in runs])
        yield self._row(
            LOSS,
            losses[:, -1],
            rate,
            depth,
            unit="nats",
            split="validation",
            source=None,
            nulls=(_before(losses[:, 0]),),
        )

    def _row(self, quantity: str, values: np.ndarray, rate: float, depth: int, **columns) -> Measurement:
        """Returns the mean over seeds with its interval."""
        if (interval := student_interval(values.tolist())) is not None:
            columns |= {"interval": interval, "interval_kind": "over seeds"}
        columns |= {
            "model": _depth_text(depth),
            "at": {"rate": rate},
            "n": len(values),
            "step": self.steps,
        }
        return self.row(quantity, float(values.mean()), **columns)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots entropy above and stable rank below, one panel per depth (across) and rate (down), one curve
        per layer.
        """
        layers, rates = (result.settings[name] for name in ("layers", "rates"))
        figure, flat = axes(
            2 * len(rates), len(layers), width=2.6 * len(layers) + 0.5, height=3.2 * len(rates) + 0.9
        )
        grid = flat.reshape(2, len(rates), len(layers))
        for panels, (quantity, _, _), label in zip(
            grid, QUANTITIES.values(), ("entropy, nats", "stable rank")
        ):
            top = 1.08 * max(result.table.select(quantity=f"{RANGE[1]} of {quantity}").column("value"))
            for ax, (rate, depth) in zip(panels.ravel(), product(rates, layers)):
                rows = result.table.select(at={"rate": rate}, model=_depth_text(depth))
                for layer, tint in enumerate(shades(depth)):
                    name = f"layer {layer}" if depth > 1 else ""
                    draw_range(ax, rows.select(layer=layer), quantity, "step", color=tint, label=name)
                ax.set(title=f"{_depth_text(depth)}, Adam {rate:g}", ylim=(0, top))
                ax.set_ylabel(label if depth == layers[0] else "")
                ax.locator_params(axis="x", integer=True)
                label_ends(ax, fontsize=6.5)
        for ax in grid[1, -1]:
            ax.set_xlabel("step")
        caption(
            figure,
            "Above: entropy of attention, mean over held-out windows. Below: stable rank of the MLP's lower "
            "layer. Bands: all seeds.",
        )
        return figure


def _before(values: np.ndarray) -> Null:
    return Null("before training", tuple(values.tolist()))


def _depth_text(depth: int) -> str:
    return "1 layer" if depth == 1 else f"{depth} layers"


def one_run(
    *,
    text: str,
    held_out: str,
    words: int,
    depth: int,
    dim: int,
    rate: float,
    steps: int,
    measured: tuple[int, ...],
    windows: int,
    seed: int,
) -> dict[str, np.ndarray]:
    """Trains one decoder on a text and measures it on fixed windows of another.

    Returns:
        ``"entropy"`` and ``"rank"``, ``[measured, layers]``, ``"loss"`` on the windows, ``[measured]``, and
        the number of ``"words"``.
    Raises:
        ValueError: a text cannot be read or is too short.
        NotConverged: the loss is not finite.
    """
    generator = torch.Generator().manual_seed(seed)
    source = Text.read(text or SHIPPED, size=words)
    training, other = (source, source.like(held_out)) if held_out else source.split(TRAIN_SHARE)
    task, vocabulary = NextWord(training), len(training.vocabulary)
    seen, entropies, ranks, losses = other.windows(windows, length=task.length), [], [], []
    model = build(lambda: Decoder(vocabulary=vocabulary, dim=dim, hidden=dim, depth=depth), generator)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)

    def measure(step: int, network: nn.Module) -> None:
        with probe(network, [AttentionStatistics(), JointDynamics()]) as p:
            losses.append(float(next_word_loss(network, seen)))
        table = p.result().table
        for quantity, curve in ((ENTROPY, entropies), (LOWER_RANK, ranks)):
            curve.append(
                [row.value for row in sorted(table.select(quantity=quantity), key=lambda row: row.layer or 0)]
            )

    fit(
        model,
        task,
        optimiser=optimiser,
        steps=steps,
        callbacks=[at_steps(measured, measure, limit=steps)],
        clip=CLIP,
        generator=generator,
    )
    curves = {"entropy": entropies, "rank": ranks, "loss": losses, "words": vocabulary}
    return {name: np.array(values, dtype=float) for name, values in curves.items()}
