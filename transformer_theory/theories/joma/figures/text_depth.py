"""Language models on text: entropy of attention and stable rank of the lower layer by layer, for several
depths and rates of Adam.

The entropies repeat Figures 6 and 8 of :cite:t:`tian2024joma`, for any text file. Figure 7 shows the stable
rank in checkpoints of large pre-trained networks; here it is that of the networks of this experiment.

``RELEASED`` is from the results released with the paper for WikiText-2. It contains the minimum and the final
value (after 20 epochs of Adam) of each layer's attention entropy: nats, means over all queries of 35-word
sequences and over three seeds. Uniform causal attention has log(35!)/35 = 2.634.
"""

from collections.abc import Iterator
from dataclasses import field
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ....core.experiment import setting, sweep
from ....core.figure import RANGE, Panel, Reading, draw_curves, figure, mean, reading, with_range
from ....core.measurement import Null
from ....core.plotting import axes, caption, style
from ....core.result import Result
from ....core.sources import Source
from ....data.text import SHIPPED, Text
from ....metrics import AttentionStatistics
from ....metrics.networks import ENTROPY
from ....models.decoder import Decoder
from ....models.embedding import build
from ....probes import probe
from ....training.fitting import at_steps, fit
from ....training.tasks import NextWord, next_word_loss
from ..in_networks import LOWER_RANK, JointDynamics

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
# (learning rate of Adam, layers) -> smallest and final entropy of each layer, in nats
RELEASED = {
    (1e-4, 1): ((1.55,), (2.21,)),
    (1e-4, 2): ((1.34, 1.53), (1.83, 2.17)),
    (1e-4, 3): ((1.27, 1.25, 1.92), (1.56, 1.89, 2.32)),
    (1e-4, 5): ((1.29, 1.16, 1.25, 1.81, 2.16), (1.43, 1.50, 1.96, 2.07, 2.43)),
    (1e-3, 1): ((1.65,), (2.27,)),
    (5e-5, 1): ((1.58,), (2.13,)),
    (1e-5, 1): ((1.62,), (1.74,)),
    (5e-6, 1): ((1.59,), (1.60,)),
    (1e-6, 1): ((1.88,), (2.21,)),
}


@style()
def draw(result: Result) -> "Figure":
    """Plots entropy above and stable rank below, one panel per depth (across) and rate (down), one curve per
    layer.
    """
    layers, rates = (result.settings[name] for name in ("layers", "rates"))
    size = {"width": 2.6 * len(layers) + 0.5, "height": 3.2 * len(rates) + 0.9}
    drawn, grid = axes(2 * len(rates), len(layers), **size)
    cells: Iterator[Any] = product(((ENTROPY, "entropy, nats"), (LOWER_RANK, "stable rank")), rates, layers)
    for ax, ((quantity, label), rate, depth) in zip(grid, cells):
        at = {"rate": rate, "model": _depth_text(depth)}
        look = {"ylabel": label, "xlabel": "step"}
        panel = Panel(f"{at['model']}, Adam {rate:g}", quantity, at, "layer", legend="ends", axes=look)
        draw_curves(ax, result, panel, x="step", spread=RANGE)
    caption(
        drawn,
        "Above: entropy of attention, mean over held-out windows. Below: stable rank of the MLP's lower "
        "layer. Bands: all seeds.",
    )
    return drawn


@figure(
    "joma.text_depth",
    source=(FIGURES, Source("merity2017pointer"), Source("kingma2015adam")),
    view=draw,
    quick={
        "layers": (1, 2),
        "rates": (1e-2,),
        "steps": 40,
        "dim": 16,
        "words": 50,
        "measurements": 8,
        "windows": 3,
        "seeds": 1,
    },
)
def text_depth(
    *,
    text: str = field(default="", metadata={"help": "plain-text file to learn (empty: the shipped text)"}),
    held_out: str = field(
        default="",
        metadata={"help": "file on which attention is measured (empty: the last fifth of the text)"},
    ),
    layers: tuple[int, ...] = setting((1, 3, 5), ge=1, le=10, help="numbers of layers, one per decoder"),
    rates: tuple[float, ...] = setting((1e-2, 1e-3, 1e-4), ge=1e-8, le=1, help="learning rates of Adam"),
    steps: int = setting(1000, ge=1, le=10**6, help="steps of training"),
    words: int = setting(3000, ge=10, le=10**6, help="largest number of words in the vocabulary"),
    dim: int = setting(200, ge=2, le=4096, multiple_of=2, help="width of the residual stream and the MLP"),
    measurements: int = setting(
        30, ge=1, le=10**4, help="measurements, evenly spaced over the training, besides the start"
    ),
    windows: int = setting(
        100, ge=1, le=10**5, help="number of held-out windows on which attention is measured"
    ),
    seeds: int = setting(2, ge=1, le=100, help="runs per depth and rate (the paper: 3)"),
    seed: int = 0,
) -> Iterator[Reading | list[Reading]]:
    """Entropy of attention and stable rank of the lower layer over training by Adam on a text, for several
    depths and rates.

    The released entropies of WikiText-2 are shown for comparison. They are predictions only for its
    vocabulary.
    """
    measured = np.unique(np.linspace(0, steps, measurements + 1).round().astype(int)).tolist()
    shared = {"text": text, "held_out": held_out, "words": words, "steps": steps, "dim": dim}
    shared |= {"measured": tuple(measured), "windows": windows}
    cells = [
        {"rate": rate, "depth": depth, "seed": seed + number}
        for rate, depth, number in product(rates, layers, range(seeds))
    ]
    runs = iter(sweep(one_run, [cell | shared for cell in cells]))
    for rate, depth in product(rates, layers):
        cell = [next(runs) for _ in range(seeds)]
        curves = {name: np.stack([run[name] for run in cell]) for name in cell[0]}  # [seeds, measured, ...]
        place = {"at": {"rate": rate}, "model": _depth_text(depth), "n": seeds}
        yield from _ends(curves, RELEASED.get((rate, depth), ((), ())), place | {"step": steps})
        for key, (quantity, unit, source) in QUANTITIES.items():
            for index, step in list(enumerate(measured))[:: max(1, len(measured) // DRAWN)]:
                for layer, values in enumerate(curves[key][:, index].T.tolist()):
                    columns = {"layer": layer, "step": step, "unit": unit, "source": source} | place
                    yield with_range(reading(quantity, float(np.mean(values)), **columns), values)


def _ends(
    curves: dict[str, np.ndarray],
    released: tuple[tuple[float, ...], tuple[float, ...]],
    place: dict[str, Any],
) -> Iterator[Reading]:
    """Yields the lowest and the last entropy and stable rank of each layer, and the last held-out loss, means
    over the seeds.
    """

    def end(quantity: str, values: np.ndarray, start: np.ndarray, **columns: Any) -> Reading:
        null = Null("before training", tuple(start.tolist()))
        return mean(quantity, values, "seeds", nulls=(null,), **columns, **place)

    words = int(curves["words"][0])
    for layer in range(curves["entropy"].shape[-1]):
        entropy, rank = curves["entropy"][..., layer], curves["rank"][..., layer]
        for quantity, values, numbers in (
            (LOWEST, entropy.min(1), released[0]),
            (FINAL, entropy[:, -1], released[1]),
        ):
            columns: dict[str, Any] = {"unit": "nats", "layer": layer, "source": FIGURES}
            if numbers and words == RELEASED_WORDS:
                columns |= {"predicted": numbers[layer], "basis": "printed"}
            elif numbers:
                released_with = f"Released: {numbers[layer]:g} with WikiText-2's {RELEASED_WORDS:,} words"
                columns["note"] = f"{released_with}; here {words:,}."
            yield end(quantity, values, entropy[:, 0], **columns)
        for quantity, values in ((RANK_LOWEST, rank.min(1)), (RANK_FINAL, rank[:, -1])):
            yield end(quantity, values, rank[:, 0], layer=layer, source=REMARK)
    losses = curves["loss"]
    yield end(LOSS, losses[:, -1], losses[:, 0], unit="nats", split="validation", source=None)


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
