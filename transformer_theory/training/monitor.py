"""Metrics of networks during training: the theories' and the general ones, beside their values in untrained networks of the same sizes.

A row whose metric makes no null of its own gets the values of the same metric in untrained networks on the same samples as its null.

Attention is measured on a few hundred samples. Features with classes are measured on many more: coding rates and the collapse of classes
are biased by few samples, and cost no more than a forward pass.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core.measurement import Arrays, Measurement, Null, Table
from ..core.metric import Metric
from ..core.parallel import one_thread
from ..core.statistics import nulls_of, over_heads, place_of
from ..data.image_data import Images
from ..data.tokens import TokenData
from ..metrics.class_features import ClassFeatures, NeuralCollapse
from ..metrics.networks import AttentionMaps, AttentionStatistics, Geometry
from ..models import CRATEMAE, build
from ..probes import NoAttention, probe
from ..probes.features import features
from .networks import Pixels
from .objectives import ACCURACY
from .objectives.masked_autoencoding import Completion
from .objectives.protocol import scaled
from .recipes import Recipe
from .supervised import train_classifier
from .tasks import Classification

SAMPLES = 256  # samples of a measurement: constraints of a few hundred sequences suffice, and it takes well under a second
SAMPLES_BY_CLASS = 3_072  # samples of features with classes: beyond them value and null fall together, see docs/probes.md
PER_PASS, PER_PASS_BY_CLASS = 128, 512  # images per forward pass, with attention maps or features alone in memory
UNTRAINED_NETWORKS = 3  # behind the null
PICTURED = 6  # samples whose attention maps are kept for pictures
MAP_NUMBERS = 2**22  # limit on the numbers in all maps of a network, 16 MiB; of longer sequences fewer maps are kept
CHECKPOINTS = 14
UNTRAINED_NULL = "untrained networks"

Metrics = Callable[[], Sequence[Metric]]
"""Makes fresh metrics: some compare with earlier measurements, which must not be of another network."""
Batches = Iterable[tuple[Tensor, Tensor | None]]


class Encoder(nn.Module):
    """The encoder of a masked autoencoder, nothing hidden: ``[b, c, h, w] -> [b, 1 + seq, dim]``, the class token first."""

    def __init__(self, autoencoder: CRATEMAE):
        super().__init__()
        self.autoencoder = autoencoder

    @property
    def cls_token(self) -> Tensor:
        """The first token, ``[1, 1, dim]``."""
        return self.autoencoder.cls_token

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b n dim"]:
        return self.autoencoder.encode(images)


def measured_network(model: nn.Module) -> nn.Module:
    """The network whose activations are measured, on images in [0, 1]: of a masked autoencoder the encoder, otherwise the network."""
    if not isinstance(model, Pixels) or not isinstance(model.network, Completion):
        return model
    encoder = Encoder(model.network.autoencoder)
    return Pixels(encoder, model.mean.flatten(), model.std.flatten()).train(model.training)


@dataclass(frozen=True)
class Moment:
    """The state of a training, for callbacks.

    Attributes:
        step, epoch: so far; the last epoch in part.
        done: share of the training, in [0, 1].
        seconds: since the beginning, without interruptions.
        speed: images per second since the last interval, without measurements; None before the first step.
        loss: of the last step, or at an interval the mean since the one before; None before the first step.
        measured: the objective's rows on the validation images, at an interval; otherwise None.
    """

    step: int
    epoch: float
    done: float
    seconds: float
    speed: float | None
    loss: float | None
    measured: Table | None = None

    @property
    def left(self) -> float | None:
        """Seconds until the end, at the speed so far."""
        return self.seconds * (1 - self.done) / self.done if self.done else None


class Monitor:
    """Measures a network on images or sequences of tokens, at the checkpoints of its training or once.

    Args:
        samples: in random order. Of images the first :data:`SAMPLES` are used, for metrics with classes the first
            :data:`SAMPLES_BY_CLASS`; of sequences the first :data:`SAMPLES`.
        metrics: makes fresh metrics; :func:`with_general` adds others.
        name: column ``model``.
        untrained: makes the networks with random weights behind the null, by number; if None, :meth:`compare_with` gets them later.
        split: column ``split``.
    Raises:
        ValueError: there are no samples.
    """

    def __init__(
        self,
        samples: Images | TokenData,
        metrics: Metrics,
        *,
        name: str,
        untrained: Callable[[int], nn.Module] | None,
        split: str = "validation",
    ):
        if not len(samples):
            raise ValueError("a monitor needs samples, got none")
        self.samples, self.fresh, self.name, self.split = samples[:SAMPLES_BY_CLASS], metrics, name, split
        self.nulls: dict[tuple, Null] = {}
        if untrained is not None:
            self.compare_with(untrained(number) for number in range(UNTRAINED_NETWORKS))
        self.metrics = with_general(metrics())

    def compare_with(self, untrained: Iterable[nn.Module]) -> None:
        """Measures the networks behind the null, with fresh metrics for each: a trained network must not be compared with them."""
        try:
            self.nulls = nulls_of([self._rows(network, with_general(self.fresh()), 0) for network in untrained], UNTRAINED_NULL)
        except NoAttention:
            self.nulls = {}

    def memory(self) -> list[dict]:
        """What the metrics keep from measurement to measurement."""
        return [metric.memory() for metric in self.metrics]

    def remember(self, memory: Sequence[dict]) -> None:
        """Restores a :meth:`memory`, so that a resumed training continues exactly.

        Raises:
            ValueError: it belongs to other metrics.
        """
        if len(self.metrics) != len(memory):
            raise ValueError(f"a memory of {len(self.metrics)} metrics was expected, got one of {len(memory)}; pass the same metrics")
        for metric, state in zip(self.metrics, memory):
            metric.remember(state)

    def measure(self, model: nn.Module, step: int) -> list[Measurement]:
        """The rows of a network at a step; at step 0 with a row for each metric that measures nothing in it.

        The network's mode is restored, and no random numbers are drawn.
        """
        try:
            rows = self._rows(model, self.metrics, step)
        except NoAttention:
            row = Measurement("network", "network", "attention", None, reason="the network has no attention maps", model=self.name)
            return [] if step else [replace(row, step=step, split=self.split)]
        return with_nulls(rows, self.nulls)

    def _rows(self, model: nn.Module, metrics: Sequence[Metric], step: int) -> list[Measurement]:
        samples = self.samples
        if isinstance(samples, TokenData):
            samples = samples[:SAMPLES]
            return self._measure(model, metrics, step, [(_inputs(model, samples), samples.labels)], len(samples))
        by_class = [metric for metric in metrics if isinstance(metric, ClassFeatures)]
        others = [metric for metric in metrics if not isinstance(metric, ClassFeatures)]
        with one_thread():
            few = samples[:SAMPLES]
            rows = self._measure(model, others, step, _passes(model, few, PER_PASS), len(few))
        return rows + self._measure(model, by_class, step, _passes(model, samples, PER_PASS_BY_CLASS), len(samples))

    def _measure(self, model: nn.Module, metrics: Sequence[Metric], step: int, batches: Batches, n: int) -> list[Measurement]:
        """One measurement of all batches, of n samples together."""
        training = model.training
        model.eval()
        measured = measured_network(model)
        try:
            with probe(measured, metrics, name=self.name) as p, torch.no_grad(), p.together(step):
                for inputs, labels in batches:
                    p.labels = labels
                    measured(inputs)
        finally:
            model.train(training)
        rows = p.rows if step else [*p.rows, *p.silent()]
        return [replace(row, n=n if row.n is None else row.n, split=self.split) for row in rows]


def _passes(model: nn.Module, images: Images, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Images in [0, 1] for forward passes of at most ``size`` images, with labels."""
    parameter = next(model.parameters())
    for pixels, labels in zip(images.pixels.split(size), images.labels.split(size)):
        yield scaled(pixels, parameter), labels


def with_general(metrics: Sequence[Metric]) -> list[Metric]:
    """The metrics, and those of no theory: statistics of attention, geometry of the features, collapse of classes."""
    return [*metrics, AttentionStatistics(), Geometry(), NeuralCollapse()]


def with_nulls(rows: Sequence[Measurement], nulls: dict[tuple, Null]) -> list[Measurement]:
    """The rows; each row without a null gets the null of its place."""
    return [replace(row, null=nulls[place_of(row)]) if row.null is None and place_of(row) in nulls else row for row in rows]


def mean_over_heads(rows: Iterable[Measurement]) -> list[Measurement]:
    """One row per model, quantity, layer and step: the mean of the heads' values, and of their nulls draw by draw."""
    groups: dict[tuple, list[Measurement]] = {}
    for row in rows:
        if row.value is not None:
            groups.setdefault((row.model, row.theory, row.quantity, row.setting, row.layer, row.step), []).append(row)
    return [over_heads(heads) for heads in groups.values()]


def attention_maps(model: nn.Module, inputs: Tensor, *, limit: int = MAP_NUMBERS) -> np.ndarray | None:
    """Attention of the first inputs, ``[layers, heads, samples, queries, keys]`` float32; None if there is none, or maps differ in shape.

    Args:
        model: in evaluation mode.
        inputs: of the model; at most :data:`PICTURED` are used.
        limit: on the numbers in the array: it holds as many samples as the limit allows.
    """
    keeper = AttentionMaps(keep=PICTURED)
    try:
        with probe(model, [keeper]), torch.no_grad():
            model(inputs[:PICTURED])
    except NoAttention:
        return None
    maps = [keeper.sums[where].cpu().numpy().swapaxes(0, 1) for where in sorted(keeper.sums)]
    if len({each.shape for each in maps}) != 1:
        return None
    whole = np.stack(maps).astype(np.float32)
    return whole[:, :, : limit * whole.shape[2] // whole.size]


@dataclass(frozen=True)
class Monitored:
    """A trained network with its timeline.

    Attributes:
        model: trained, in evaluation mode.
        rows: of all checkpoints, with ``model``, ``step`` and ``split``.
        arrays: ``network/<name>/steps`` and ``network/<name>/attention``, maps [steps, layers, heads, sequences, queries, keys].
        queries: for each of these steps, the last block's output at the query's token, [n, dim], of the first validation sequences.
    """

    model: nn.Module
    rows: list[Measurement]
    arrays: Arrays
    queries: list[Tensor]


def checkpoints(steps: int, count: int = CHECKPOINTS) -> tuple[int, ...]:
    """Steps at which to measure: 0, the last, and steps between, denser at the start (uniform in the square root).

    >>> checkpoints(100, 5)
    (0, 6, 25, 56, 100)
    """
    return tuple(sorted({round(steps * (i / (count - 1)) ** 2) for i in range(count)}))


def monitored_training(
    recipe: Recipe,
    train_data: TokenData,
    validation_data: TokenData,
    *,
    metrics: Metrics,
    steps: int,
    seed: int,
    featured: int,
    device: str = "cpu",
    progress: Callable[[str], None] | None = None,
) -> Monitored:
    """Trains a recipe's network on tokens and measures it at checkpoints on the first validation sequences.

    Args:
        recipe: network and settings.
        train_data, validation_data: with labels; tokens ``[n, seq, dim]``.
        metrics: makes fresh metrics (the theories'); :func:`with_general` adds others.
        steps: optimiser steps.
        seed: of initial weights, batches and dropout.
        featured: number of validation sequences whose queries are kept at each checkpoint.
        device: of the training.
        progress: is called with one line per checkpoint.
    Raises:
        NotConverged: the loss became infinite or NaN.
        ValueError: data without labels, or settings out of range.
    """
    generator = torch.Generator().manual_seed(seed)
    model = build(lambda: recipe.build(train_data), generator)
    task, stops = Classification(train_data, validation_data), checkpoints(steps)
    monitor = Monitor(validation_data, metrics, name=recipe.name, untrained=None)
    rows: list[Measurement] = []
    maps: list[np.ndarray] = []
    queries: list[Tensor] = []

    def checkpoint(step: int, network: nn.Module) -> None:
        rows.extend(monitor.measure(network, step))
        learnt = task.evaluate(network)
        rows.extend(replace(row, model=recipe.name, step=step) for row in learnt)
        attention = attention_maps(network, _inputs(network, validation_data[:PICTURED]), limit=MAP_NUMBERS // len(stops))
        maps.extend([] if attention is None else [attention])
        query = features(network, validation_data[:featured]).query
        assert query is not None
        queries.append(query.clone())  # the query is a view of all tokens
        if progress:
            accuracy = Table(learnt).select(quantity=ACCURACY).one().value or 0.0
            progress(f"{recipe.name}: step {step} of {steps}, validation accuracy {100 * accuracy:.1f} %")

    trained = train_classifier(
        model,
        train_data,
        validation_data,
        steps=steps,
        learning_rate=recipe.learning_rate,
        batch_size=recipe.batch_size,
        generator=generator,
        checkpoints=stops,
        callback=checkpoint,
        device=device,
    )
    # After the training, whose batches the generator draws first: the trained network does not depend on the number of others.
    monitor.compare_with([build(lambda: recipe.build(train_data), generator).to(device).eval() for _ in range(UNTRAINED_NETWORKS)])
    arrays = Arrays({f"network/{recipe.name}/steps": np.array(stops)})
    if len(maps) == len(stops) and maps[0].size:
        arrays[f"network/{recipe.name}/attention"] = np.stack(maps)
    return Monitored(trained.model, with_nulls(rows, monitor.nulls), arrays, queries)


def _inputs(model: nn.Module, data: TokenData) -> Tensor:
    parameter = next(model.parameters())
    return data.tokens.to(parameter.device, parameter.dtype)
