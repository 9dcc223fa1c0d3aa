"""Attention of language models with one and three layers during training on a text (Figure 7): maps and
attended words.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ....core.experiment import setting, sweep
from ....core.figure import DASHED, Panel, Reading, draw_curves, figure, reading
from ....core.measurement import Measurement, Null
from ....core.plotting import caption, heatmap, stacked, style
from ....core.result import Result
from ....core.sources import Source
from ....core.table import Arrays
from ....metrics.networks import ENTROPY
from ..in_networks import OVERLAP
from ..text_runs import ORDERS, RunResult, measured_steps, phases, train_and_measure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCE = Source("tian2023scan")
FINAL_ENTROPY = "attention entropy at the end"
FASTEST, SNAPPED = "step around which attention moves fastest", "step from which attention has snapped"
SPEED = "speed: the chord between successive mean maps, per step"
SLOW = "from this step on the speed is below a tenth of the largest"
SHUFFLED = "shuffled words"
MAPS = 3  # number of stored maps, evenly spaced over training, in addition to the map before training
PICTURED, MAPS_OF = "scan_snap/text/pictured", "scan_snap/text/{}/maps".format  # arrays


@style()
def draw(result: Result) -> "Figure":
    """Draws a row of maps of the lowest layer for each decoder, and below them the entropy of all layers over
    the steps.
    """
    depths, steps = result.settings["layers"], result.arrays[PICTURED]
    drawn, (above, below) = stacked((1.9 * len(depths), 2.2), width=7.4, height=1.9 * len(depths) + 2.4)
    grid = above.subplots(len(depths), len(steps), squeeze=False)
    panels = below.subplots(1, len(depths), squeeze=False).ravel()
    for row, ax, depth in zip(grid, panels, depths):
        model, maps = layers_text(depth), result.arrays[MAPS_OF(depth)][:, 0]
        for cell, weights, step in zip(row, maps, steps):
            causal = np.where(np.tri(len(weights), dtype=bool), weights, np.nan)
            heatmap(cell, causal, "weight", vmin=0, vmax=1, bar=cell is row[-1])
            cell.set_title(f"{model}, step {step}", fontsize=7.5)
            cell.set(xlabel="key", ylabel="query" if cell is row[0] else "")
        dashed = {layer: {"color": "null", "linestyle": DASHED, "label": "_"} for layer in range(depth)}
        ordered, shuffled = ({"model": model, "text": text} for text in ("", SHUFFLED))
        look = {"xlabel": "step", "ylim": (0, None)}
        entropy = Panel(f"Entropy, nats: {model}", ENTROPY, ordered, "layer", legend="ends", axes=look)
        draw_curves(ax, result, entropy, Panel("", ENTROPY, shuffled, ("layer", dashed)), x="step")
    caption(
        drawn,
        "Maps: attention of the lowest layer to one held-out window; keys after the query are white. Curves: "
        "means over all windows; grey: the same words shuffled; thin: before training.",
    )
    return drawn


@figure(
    "scan_snap.text_attention",
    source=(Source("tian2023scan", "Fig. 7"), Source("merity2017pointer")),
    view=draw,
    quick={"layers": (1, 2), "steps": 60, "dim": 16, "words": 50, "measurements": 3, "windows": 3},
)
def text_attention(
    *,
    text: str = setting("", help="plain-text file to learn (empty: the shipped text)"),
    held_out: str = setting(
        "", help="file on which attention is measured (empty: the last fifth of the text)"
    ),
    layers: tuple[int, ...] = setting((1, 3), ge=1, le=10, help="numbers of layers, one per decoder"),
    steps: int = setting(1500, ge=1, help="steps of training"),
    rate: float = setting(5.0, gt=0, help="learning rate; the first layer's MLP has twice the rate"),
    words: int = setting(3000, ge=10, help="largest number of words in the vocabulary"),
    dim: int = setting(200, ge=2, help="width of the residual stream and the MLP, an even number"),
    measurements: int = setting(
        30, ge=MAPS, help="measurements of attention, evenly spaced over the training, besides the start"
    ),
    windows: int = setting(100, ge=1, help="number of held-out windows on which attention is measured"),
    seed: int = 0,
) -> Iterator[Reading | Measurement | Arrays]:
    """Attention maps, entropy and attended words of causal decoders that learn a text by gradient descent:
    all quantities at four steps, the phases of every layer, and the change of its entropy.

    The null is the same training run on the text with its words shuffled.
    """
    measured = measured_steps(steps, measurements)
    reported = sorted({measured[round(k * (len(measured) - 1) / MAPS)] for k in range(MAPS + 1)})
    shared = {"text": text, "held_out": held_out, "words": words, "rate": rate, "steps": steps, "dim": dim}
    shared |= {"measured": measured, "seed": seed, "windows": windows}
    settings = [{"depth": depth, "order": order, **shared} for depth in layers for order in ORDERS]
    results = sweep(train_and_measure, settings)
    for depth, run, shuffled in zip(layers, results[::2], results[1::2]):
        model, known = layers_text(depth), [row for row in run.table if row.value is not None]
        for row in known:
            if row.step in reported or row.quantity == ENTROPY:
                yield replace(row, model=model)
        for row in shuffled.table.select(quantity=ENTROPY):
            if row.value is not None:
                yield replace(row, model=model, at={"text": SHUFFLED})
        yield from phases_of(run, model, measured)
        entropy, (*_, unordered) = run.series(ENTROPY), shuffled.series(ENTROPY)
        for layer, (start, end) in enumerate(zip(entropy[0].tolist(), entropy[-1].tolist())):
            columns = {"unit": "nats", "source": SOURCE, "model": model, "layer": layer}
            columns |= {"nulls": (Null(SHUFFLED, (float(unordered[layer]),)),)}
            note = f"{run.vocabulary} words, {steps} steps, many queries"
            note = f"the threshold is the entropy at the start; {note}"
            yield reading(FINAL_ENTROPY, end, at_most=start, covered=False, note=note, **columns)
        yield Arrays({MAPS_OF(depth): run.maps[[measured.index(step) for step in reported]]})
    yield Arrays({PICTURED: np.array(reported)})


def phases_of(run: RunResult, model: str, measured: tuple[int, ...]) -> Iterator[Reading]:
    """Yields the steps of fastest movement and of snapping, for layers whose maps overlap at all steps."""
    for layer, overlaps in enumerate(run.series(OVERLAP)[1:].T.tolist()):
        if not np.isfinite(overlaps).all():
            continue
        times = phases(measured, overlaps)
        where = {"unit": "steps", "model": model, "layer": layer, "source": SOURCE}
        for quantity, step, note, reason in (
            (FASTEST, times.scanning, SPEED, "attention does not move"),
            (SNAPPED, times.snapped, SLOW, "attention does not snap within the run"),
        ):
            yield reading(quantity, step, note=note, reason=reason if step is None else "", **where)


def layers_text(depth: int) -> str:
    """Returns "1 layer", "2 layers", ..."""
    return "1 layer" if depth == 1 else f"{depth} layers"
