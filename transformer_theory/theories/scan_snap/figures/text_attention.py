"""Attention of language models with one and three layers during training on a text (Figure 7): maps and
attended words.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ....core.experiment import RandomExperiment, setting, sweep
from ....core.measurement import Measurement, Null, judge
from ....core.plotting import COLOURS, axes, caption, heatmap, label_ends, shades, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays, Table
from ....metrics.networks import ENTROPY
from ..in_networks import OVERLAP
from ..text_runs import ORDERS, RunResult, measured_steps, phases, train_and_measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME, SOURCE = "scan_snap", Source("tian2023scan")
FINAL_ENTROPY = "attention entropy at the end"
FASTEST, SNAPPED = "step around which attention moves fastest", "step from which attention has snapped"
SHUFFLED = "shuffled words"
MAPS = 3  # number of stored maps, evenly spaced over training, in addition to the map before training


@dataclass(frozen=True)
class TextAttention(RandomExperiment):
    """Attention maps, entropy and attended words of causal decoders that learn a text by gradient descent.

    The null is the same training run on the text with its words shuffled.
    """

    text: str = field(default="", metadata={"help": "plain-text file to learn (empty: the shipped text)"})
    held_out: str = field(
        default="",
        metadata={"help": "file on which attention is measured (empty: the last fifth of the text)"},
    )
    layers: tuple[int, ...] = setting((1, 3), ge=1, le=10, help="numbers of layers, one per decoder")
    steps: int = setting(1500, ge=1, help="steps of training")
    rate: float = setting(5.0, gt=0, help="learning rate; the first layer's MLP has twice the rate")
    words: int = setting(3000, ge=10, help="largest number of words in the vocabulary")
    dim: int = setting(200, ge=2, help="width of the residual stream and the MLP, an even number")
    measurements: int = setting(
        30, ge=MAPS, help="measurements of attention, evenly spaced over the training, besides the start"
    )
    windows: int = setting(100, ge=1, help="number of held-out windows on which attention is measured")

    name: ClassVar[str] = "scan_snap.text_attention"
    sources: ClassVar[tuple[Source, ...]] = (Source("tian2023scan", "Fig. 7"), Source("merity2017pointer"))

    @classmethod
    def quick(cls) -> "TextAttention":
        return cls(layers=(1, 2), steps=60, rate=5.0, dim=16, words=50, measurements=3, windows=3)

    def measure(self) -> Iterator[Measurement | Arrays]:
        """Yields all quantities at four steps, the phases of every layer, and the change of its entropy."""
        measured = measured_steps(self.steps, self.measurements)
        reported = {measured[round(k * (len(measured) - 1) / MAPS)] for k in range(MAPS + 1)}
        shared = {
            "text": self.text,
            "held_out": self.held_out,
            "words": self.words,
            "rate": self.rate,
            "steps": self.steps,
        }
        shared |= {"dim": self.dim, "measured": measured, "seed": self.seed, "windows": self.windows}
        settings = [{"depth": depth, "order": order, **shared} for depth in self.layers for order in ORDERS]
        results = sweep(train_and_measure, settings)
        for depth, run, shuffled in zip(self.layers, results[::2], results[1::2]):
            model = layers_text(depth)
            for row in run.table:
                if row.value is not None and (row.step in reported or row.quantity == ENTROPY):
                    yield replace(row, model=model)
            for row in shuffled.table.select(quantity=ENTROPY):
                if row.value is not None:
                    yield replace(row, model=model, at={"text": SHUFFLED})
            yield from self._phases(run, model, measured)
            entropy, unordered = run.series(ENTROPY), shuffled.series(ENTROPY)
            for layer, (start, end) in enumerate(zip(entropy[0].tolist(), entropy[-1].tolist())):
                yield self.row(
                    FINAL_ENTROPY,
                    end,
                    unit="nats",
                    op="<=",
                    threshold=start,
                    verdict=judge(end, "<=", start, covered=False),
                    source=SOURCE,
                    nulls=(Null(SHUFFLED, (float(unordered[-1, layer]),)),),
                    model=model,
                    layer=layer,
                    note=f"the threshold is the entropy at the start; {run.vocabulary} words, {self.steps} "
                    "steps, many queries",
                )
            prefix = f"{NAME}/text/{depth}"
            stored = [measured.index(step) for step in sorted(reported)]
            yield Arrays({f"{prefix}/maps": run.maps[stored]})
        yield Arrays({f"{NAME}/text/pictured": np.array(sorted(reported))})

    def _phases(self, run: RunResult, model: str, measured: tuple[int, ...]) -> Iterator[Measurement]:
        for layer, overlaps in enumerate(run.series(OVERLAP)[1:].T.tolist()):
            if not np.isfinite(overlaps).all():
                continue
            times = phases(measured, overlaps)
            where = {"unit": "steps", "model": model, "layer": layer, "source": SOURCE}
            note = "speed: the chord between successive mean maps, per step"
            yield _step(FASTEST, times.scanning, "attention does not move", note=note, **where)
            note = "from this step on the speed is below a tenth of the largest"
            yield _step(SNAPPED, times.snapped, "attention does not snap within the run", note=note, **where)

    @style()
    def plot(self, result: Result) -> "Figure":
        """Plots a row of maps of the lowest layer for each decoder, and below it the entropy of its layers
        over the steps.
        """
        prefix = f"{NAME}/text"
        pictured = result.arrays[f"{prefix}/pictured"]
        depths = [int(depth) for depth in result.settings["layers"]]
        columns = len(pictured)
        figure, flat = axes(len(depths) + 1, columns, width=7.4, height=1.9 * len(depths) + 2.6)
        grid = flat.reshape(len(depths) + 1, columns)
        for row, depth in zip(grid, depths):
            maps = result.arrays[f"{prefix}/{depth}/maps"][:, 0]
            for column, (ax, weights, step) in enumerate(zip(row, maps, pictured.tolist())):
                causal = np.where(np.tri(len(weights), dtype=bool), weights, np.nan)
                heatmap(
                    ax,
                    causal,
                    "weight" if column == columns - 1 else "",
                    vmin=0,
                    vmax=1,
                    bar=column == columns - 1,
                )
                ax.set_title(f"{layers_text(depth)}, step {step}", fontsize=7.5)
                ax.set_xlabel("key")
                if column == 0:
                    ax.set_ylabel("query")
        # Replace the last row of panels by one panel per decoder, over the same columns.
        spec = grid[-1, 0].get_gridspec()
        for ax in grid[-1]:
            ax.remove()
        edges = (
            np.linspace(0, columns, len(depths) + 1).round().astype(int) if len(depths) <= columns else None
        )
        for number, depth in enumerate(depths):
            cell = (
                spec[-1, edges[number] : edges[number + 1]]
                if edges is not None
                else spec[-1, min(number, columns - 1)]
            )
            ax = figure.add_subplot(cell)
            plot_entropies(ax, result.select(quantity=ENTROPY, model=layers_text(depth)))
            ax.set(title=f"Entropy, nats: {layers_text(depth)}", xlabel="step")
        text = (
            "Maps: attention of the lowest layer to one held-out window; keys after the query are white. "
            "Curves: means over all windows"
        )
        caption(figure, f"{text}; dashed: the same words shuffled.")
        return figure


def _step(quantity: str, value: float | None, reason: str, **columns) -> Measurement:
    return Measurement(NAME, "figure", quantity, value, reason="" if value is not None else reason, **columns)


def layers_text(depth: int) -> str:
    """Returns "1 layer", "2 layers", ..."""
    return "1 layer" if depth == 1 else f"{depth} layers"


def plot_entropies(ax: "Axes", table: Table) -> None:
    """Plots the entropy of each layer over the steps, dashed for the shuffled text."""
    layers = sorted(set(table.column("layer")))
    for layer, tint in zip(layers, shades(len(layers))):
        label = f"layer {layer}" if len(layers) > 1 else "_"
        rows = table.select(layer=layer, at={"text": ""})
        ax.plot(rows.column("step"), rows.column("value"), color=tint, label=label, linewidth=1.4)
        rows = table.select(layer=layer, at={"text": SHUFFLED})
        look = {"color": COLOURS["null"], "linewidth": 0.9, "linestyle": (0, (4, 3)), "label": "_"}
        ax.plot(rows.column("step"), rows.column("value"), **look)
    ax.locator_params(axis="x", integer=True)
    largest = max(table.select(at={"text": ""}).column("value"))
    ax.set_ylim(0, max(largest * 1.08, ax.get_ylim()[1]))
    label_ends(ax, fontsize=6.5)
