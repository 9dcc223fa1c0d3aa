r"""Language models that are trained on a text: their attention during training, and the phases of attention.

A run trains a small causal decoder on one text and measures it in evaluation mode on fixed windows of
another. It measures entropy, sharpness, top-1 mass, effective support, sink and diagonal mass, the overlap of
successive maps, the attended words (:mod:`.attended_words`), and the loss. Quantities whose metric states no
null get the value of an untrained decoder on the same windows as their null. A run on the same words in
random order is a second null: in such a text the word frequencies are the only structure. Source:
:cite:t:`tian2023scan`, :cite:t:`tian2024joma` (the experiments on WikiText-2).

*Phases*. Between measurements at steps :math:`s_{k-1} < s_k` with overlap :math:`\rho_k` (the cosine of two
centred maps) attention moves a distance, the chord :math:`\sqrt{2 (1 - \rho_k)}`, with the speed :math:`v_k =
\sqrt{2 (1 - \rho_k)} / (s_k - s_{k-1})`. Attention scans where v is largest. It has snapped at the first step
after which v stays below a tenth of the largest v. The theory predicts :math:`t_0' = K \ln M / \eta_Y` for
the transition.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...core.measurement import Measurement, Null
from ...core.metric import Metric
from ...core.table import Table
from ...data.text import SHIPPED, Text
from ...metrics import AttentionMaps, AttentionStatistics
from ...models.decoder import Decoder
from ...models.embedding import build
from ...probes import probe
from ...training.tasks import next_word_loss
from .attended_words import MIN_OCCURRENCES, AttendedWords, count_continuations
from .in_networks import ScanAndSnap
from .language_training import OptimiserOf, adam, sgd, train_decoder

NAME = "scan_snap"
OPTIMISERS: dict[str, Callable[[float], OptimiserOf]] = {"sgd": sgd, "adam": adam}
TRAIN_SHARE = 0.8  # share of a text used for training if there is no second text
HELD_OUT_LOSS = "held-out loss"
SLOW = 0.1  # share of the largest speed below which attention counts as frozen


def as_written(text: Text, generator: torch.Generator) -> Text:
    """Returns the text unchanged."""
    return text


def shuffled(text: Text, generator: torch.Generator) -> Text:
    """Returns the same words in random order."""
    return Text(
        text.ids[torch.randperm(len(text), generator=generator)], text.vocabulary, f"{text.name}, shuffled"
    )


ORDERS: dict[str, Callable[[Text, torch.Generator], Text]] = {"as written": as_written, "shuffled": shuffled}


@dataclass(frozen=True)
class Run:
    """Settings of a run; all are plain values, so that a run can be sent to another process.

    Attributes:
        text: file of the training text. Empty: the shipped text.
        held_out: file of the text on which attention is measured. Empty: the last fifth of the training text.
        words: largest number of words in the vocabulary.
        depth, dim, dropout: settings of the decoder, which has one head and an MLP as wide as the residual
            stream.
        rate: learning rate.
        optimiser: "sgd" or "adam".
        steps, batch, length: number of training steps, streams per batch, and words of each stream per batch.
        measured: steps at which attention is measured.
        windows: number of windows on which attention is measured.
        seed: seed of all random numbers, such as initial weights and dropout.
        order: order of the words of both texts, "as written" or "shuffled".
    """

    text: str
    held_out: str
    words: int
    depth: int
    rate: float
    steps: int
    measured: tuple[int, ...]
    seed: int
    optimiser: str = "sgd"
    dim: int = 200
    dropout: float = 0.2
    batch: int = 20
    length: int = 35
    windows: int = 100
    order: str = "as written"


@dataclass(frozen=True, eq=False)
class RunResult:
    """The measurements of a run.

    Attributes:
        table: rows of kind "figure" at each measured step.
        maps: attention of each layer to the first window, ``[measured, layers, queries, keys]``.
        losses: losses of the training batches, nats, ``[steps]``.
        vocabulary: number of words in the vocabulary.
    """

    table: Table
    maps: Float[np.ndarray, "measured layers q k"]
    losses: Float[np.ndarray, " steps"]
    vocabulary: int

    def series(self, quantity: str, *, head: int = 0) -> Float[np.ndarray, "measured layers"]:
        """Returns one quantity of each layer at each measured step; NaN where it is missing."""
        steps = sorted(set(self.table.column("step")))
        values = np.full((len(steps), self.maps.shape[1]), np.nan)
        for row in self.table.select(quantity=quantity, head=(head, None)):
            if row.value is not None:
                values[steps.index(row.step), row.layer or 0] = row.value
        return values

    @property
    def held_out_losses(self) -> Float[np.ndarray, " measured"]:
        """Loss on the windows at each measured step, nats per word."""
        return np.array(self.table.select(quantity=HELD_OUT_LOSS).column("value"), dtype=float)


def measured_steps(steps: int, measurements: int) -> tuple[int, ...]:
    """Returns step 0 and ``measurements`` further steps, evenly spaced up to the last step."""
    return tuple(sorted({round(k * steps / measurements) for k in range(measurements + 1)}))


def texts(text: str, held_out: str, *, words: int) -> tuple[Text, Text]:
    """Returns the training text and the held-out text, both in the vocabulary of the training text.

    Raises:
        ValueError: a file cannot be read as text.
    """
    training_text = Text.read(text or SHIPPED, size=words)
    return (training_text, training_text.like(held_out)) if held_out else training_text.split(TRAIN_SHARE)


def train_and_measure(**settings) -> RunResult:
    """Trains the decoder of the :class:`Run` with these settings and measures it at the steps ``measured``.

    Raises:
        ValueError: a text cannot be read or is too short, or a setting is out of range.
        NotConverged: the loss is not finite.
    """
    run = Run(**settings)
    generator = torch.Generator().manual_seed(run.seed)
    training_text, held_out = (
        ORDERS[run.order](text, generator) for text in texts(run.text, run.held_out, words=run.words)
    )
    windows = held_out.windows(run.windows, length=run.length)

    def untrained() -> Decoder:
        sizes = {"dim": run.dim, "hidden": run.dim, "depth": run.depth, "dropout": run.dropout}
        model = build(lambda: Decoder(vocabulary=len(training_text.vocabulary), **sizes), generator)
        assert isinstance(model, Decoder)
        return model

    metrics = attention_metrics(training_text, windows)
    first_window, rows, maps = AttentionMaps(keep=1), [], []

    def callback(step: int, model: nn.Module) -> None:
        rows.extend(measure_attention(model, windows, [*metrics, first_window], step=step))
        maps.append(np.stack([first_window.arrays()[name][0, 0] for name in sorted(first_window.arrays())]))

    trained = train_decoder(
        untrained(),
        training_text,
        optimiser=OPTIMISERS[run.optimiser](run.rate),
        steps=run.steps,
        generator=generator,
        batch=run.batch,
        length=run.length,
        callback_steps=run.measured,
        callback=callback,
    )
    with torch.no_grad():
        reference = measure_attention(
            untrained().eval(), windows, attention_metrics(training_text, windows), step=0
        )
    nulls = {(row.quantity, row.layer, row.head): row.value for row in reference}
    for number, row in enumerate(rows):
        value = nulls.get((row.quantity, row.layer, row.head))
        if row.null is None and value is not None:
            rows[number] = replace(row, nulls=(Null("untrained network", (value,)),))
    return RunResult(Table(rows), np.stack(maps), trained.losses.numpy(), len(training_text.vocabulary))


def attention_metrics(training_text: Text, windows: Int[Tensor, "n longer"]) -> list[Metric]:
    """Returns the metrics for windows ``[n, length + 1]``, with the attended words if a pair of words is
    frequent enough in the text.
    """
    metrics: list[Metric] = [AttentionStatistics(), ScanAndSnap()]
    vocab_size, context = len(training_text.vocabulary), windows.shape[1] - 1
    try:
        counted = count_continuations(
            training_text.ids, vocab_size=vocab_size, context=context, min_occurrences=MIN_OCCURRENCES
        )
    except ValueError:  # no pair of a short text is frequent enough
        return metrics
    return [*metrics, AttendedWords(windows, counted)]


def measure_attention(
    model: nn.Module, windows: Int[Tensor, "n longer"], metrics: Sequence[Metric], *, step: int
) -> list[Measurement]:
    """Computes the metrics and the loss on the same windows ``[n, length + 1]``, as rows of this theory's
    figures.
    """
    with probe(model, metrics) as p:
        p.labels, p.step = torch.arange(len(windows)), step
        value = float(next_word_loss(model, windows))
    rows = [
        replace(row, theory=NAME, kind="figure", scope="own instances", model="") for row in p.result().table
    ]
    return [
        *rows,
        Measurement(NAME, "figure", HELD_OUT_LOSS, value, unit="nats", split="validation", step=step),
    ]


@dataclass(frozen=True)
class Phases:
    """The two phases of a head.

    Attributes:
        scanning: the step around which attention moves fastest; None if it never moves.
        snapped: the step after which it stays slow; None if it is still fast in the last interval, or never
            moves.
    """

    scanning: float | None
    snapped: int | None


def phases(steps: Sequence[int], overlaps: Sequence[float], *, slow: float = SLOW) -> Phases:
    """Computes the phases of one head, as defined in the module's docstring.

    Args:
        steps: steps of the measurements, increasing, at least two.
        overlaps: overlap of each measurement with the previous one, in [-1, 1], from the second measurement
            on.
        slow: share of the largest speed below which attention counts as frozen.
    Raises:
        ValueError: the lengths do not fit, or the steps do not increase.
    """
    if len(steps) != len(overlaps) + 1 or len(steps) < 2:
        raise ValueError(
            f"steps must be one more than overlaps, and at least two, got {len(steps)} and {len(overlaps)}"
        )
    lengths = [later - earlier for earlier, later in pairwise(steps)]
    if min(lengths) <= 0:
        raise ValueError(f"steps must increase, got {list(steps)[:5]}; sort them and drop repetitions")
    # The chord of two unit vectors with cosine rho; an overlap that exceeds 1 by rounding counts as 1.
    speeds = [math.sqrt(2 * max(0.0, 1 - overlap)) / length for overlap, length in zip(overlaps, lengths)]
    largest = max(speeds)
    if largest == 0:
        return Phases(None, None)
    fastest = speeds.index(largest)
    last_fast = max((k for k, speed in enumerate(speeds) if speed > slow * largest), default=-1)
    snapped = steps[last_fast + 1] if last_fast + 1 < len(speeds) else None
    return Phases((steps[fastest] + steps[fastest + 1]) / 2, snapped)
