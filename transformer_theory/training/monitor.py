"""Metrics of networks during training, those of theories and general ones, compared with untrained networks
of the same sizes.

If a metric gives a row no null distribution, the values of the same metric in untrained networks on the same
samples are its null distribution. At the checkpoints of a training, nulls have
:data:`~..core.statistics.BAND_DRAWS` draws, which suffice for a band around a curve; where a number is
reported, they have more (:meth:`Monitor.measure`).

Attention is measured on a few hundred samples. Features with classes are measured on many more: few samples
bias coding rates and the collapse of classes, and the measurement costs no more than a forward pass.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..core.format import plain_percent
from ..core.measurement import Measurement
from ..core.metric import Metric
from ..core.statistics import BAND_DRAWS, HEADLINE_DRAWS, UNTRAINED
from ..core.table import Arrays, Table
from ..core.threads import one_thread
from ..data.image_data import Images
from ..data.tokens import TokenData
from ..metrics.class_features import ClassFeatures
from ..models import CRATEMAE, build
from ..models.image_networks import Pixels
from ..probes import NoAttention
from ..probes.attention_maps import attention_maps, first_samples
from ..probes.features import features
from ..probes.measure import with_general, with_nulls
from ..probes.passes import Batch, measure_metrics
from .objectives import ACCURACY
from .objectives.masked_autoencoding import Completion
from .objectives.protocol import scaled
from .recipes import Recipe
from .tasks import Classification

SAMPLES = 256  # samples per measurement: a few hundred suffice, and the measurement takes well under a second
# samples for features with classes; with more, value and null decrease together, see docs/probes.md
SAMPLES_BY_CLASS = 3_072
# images per forward pass, with attention maps or with features only in memory
PER_PASS, PER_PASS_BY_CLASS = 128, 512
UNTRAINED_NETWORKS = BAND_DRAWS  # networks that the null distribution of a timeline is computed from
PICTURED = 6  # samples whose attention maps are stored for figures
MAP_NUMBERS = 2**22  # limit on the numbers in all maps of a network, 16 MiB; longer sequences have fewer maps
CHECKPOINTS = 14

Metrics = Callable[[], Sequence[Metric]]
"""Makes new metrics. Some metrics compare a measurement with earlier ones, so each network needs its own."""


class Encoder(nn.Module):
    """The encoder of a masked autoencoder on whole images: ``[b, c, h, w] -> [b, 1 + seq, dim]``, with the
    class token first.
    """

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
    """Returns the network whose activations are measured: the encoder of a masked autoencoder, otherwise the
    network itself.
    """
    if not isinstance(model, Pixels) or not isinstance(model.network, Completion):
        return model
    encoder = Encoder(model.network.autoencoder)
    return Pixels(encoder, model.mean.flatten(), model.std.flatten()).train(model.training)


class Monitor:
    """Measures a network on images or sequences of tokens, once or at the checkpoints of its training.

    Args:
        samples: images or sequences in random order. The first :data:`SAMPLES` are used; metrics with classes
            use the first :data:`SAMPLES_BY_CLASS` images.
        metrics: function that makes new metrics.
        name: column ``model`` of the rows.
        untrained: function that makes a network with random weights, given its number; these networks give
            the null distributions. None: rows have only the nulls of their metrics.
        split: column ``split`` of the rows.
        networks: number of untrained networks.
        general: whether the general metrics are measured too (:func:`with_general`).

    Attributes:
        untrained: rows of each untrained network.

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
        networks: int | None = None,
        general: bool = True,
    ):
        if not len(samples):
            raise ValueError("a monitor needs samples, got none")
        self.samples, self.name, self.split = samples[:SAMPLES_BY_CLASS], name, split
        self.untrained: list[list[Measurement]] = []

        def new_metrics() -> Sequence[Metric]:
            return with_general(metrics()) if general else metrics()

        if untrained is not None:
            # Each network has new metrics, so that no metric compares a trained network with an untrained one
            # as an earlier measurement.
            with contextlib.suppress(NoAttention):
                for number in range(UNTRAINED_NETWORKS if networks is None else networks):
                    self.untrained.append(self._rows(untrained(number), new_metrics(), 0, 0))
        self.metrics = new_metrics()

    def persistent_state(self) -> list[dict]:
        """Returns the state that the metrics carry from one measurement to the next."""
        return [metric.persistent_state() for metric in self.metrics]

    def load_persistent_state(self, states: Sequence[dict]) -> None:
        """Restores a :meth:`persistent_state`, so that a resumed training continues exactly.

        Raises:
            ValueError: the states belong to different metrics.
        """
        if len(self.metrics) != len(states):
            raise ValueError(
                f"the state of {len(self.metrics)} metrics was expected, got one of {len(states)}; pass the "
                "same metrics"
            )
        for metric, state in zip(self.metrics, states):
            metric.load_persistent_state(state)

    def measure(self, model: nn.Module, step: int, *, draws: int = BAND_DRAWS) -> list[Measurement]:
        """Returns the rows of a network at a step; at step 0 also a row with reasons for each metric that
        measured nothing.

        The network's mode is restored, and torch's global generator is not used.

        Args:
            model: network to measure.
            step: column ``step`` of the rows.
            draws: number of null draws of the metrics' own nulls, see :meth:`.Metric.compute`.
        """
        try:
            rows = self._rows(model, self.metrics, step, draws)
        except NoAttention:
            row = Measurement(
                "network",
                "network",
                "attention",
                None,
                reason="the network has no attention maps",
                model=self.name,
            )
            return [] if step else [replace(row, step=step, split=self.split)]
        return with_nulls(rows, {UNTRAINED: self.untrained})

    def _rows(self, model: nn.Module, metrics: Sequence[Metric], step: int, draws: int) -> list[Measurement]:
        """Measures the metrics, each on its number of samples."""
        samples = self.samples
        if isinstance(samples, TokenData):
            samples = samples[:SAMPLES]
            return self._measure(
                model, metrics, step, draws, [Batch(_inputs(model, samples), samples.labels)], len(samples)
            )
        by_class = [metric for metric in metrics if isinstance(metric, ClassFeatures)]
        others = [metric for metric in metrics if not isinstance(metric, ClassFeatures)]
        with one_thread():
            few = samples[:SAMPLES]
            rows = self._measure(model, others, step, draws, _passes(model, few, PER_PASS), len(few))
        return rows + self._measure(
            model, by_class, step, draws, _passes(model, samples, PER_PASS_BY_CLASS), len(samples)
        )

    def _measure(
        self,
        model: nn.Module,
        metrics: Sequence[Metric],
        step: int,
        draws: int,
        passes: Iterable[Batch],
        n: int,
    ) -> list[Measurement]:
        """Measures the metrics once, on all batches together; they hold n samples."""
        rows, unmeasured = measure_metrics(
            measured_network(model),
            passes,
            metrics,
            name=self.name,
            draws=draws,
            n=n,
            step=step,
            grid=self.samples.grid if isinstance(self.samples, TokenData) else None,
        )
        return [replace(row, split=self.split) for row in (rows if step else [*rows, *unmeasured])]


def _passes(model: nn.Module, images: Images, size: int) -> Iterator[Batch]:
    """Yields images in [0, 1] and their labels, at most ``size`` at a time."""
    parameter = next(model.parameters())
    for pixels, labels in zip(images.pixels.split(size), images.labels.split(size)):
        yield Batch(scaled(pixels, parameter), labels)


@dataclass(frozen=True)
class Monitored:
    """A trained network with the measurements of its training.

    Attributes:
        model: trained network, in evaluation mode.
        rows: rows of all checkpoints, with ``model``, ``step`` and ``split``; nulls are those of the metrics,
            not untrained networks.
        arrays: ``network/<name>/steps`` and, if the network has attention maps, ``network/<name>/attention``
            [steps, layers, heads, sequences, queries, keys].
        queries: outputs of the last block at the query token, [n, dim], for the first validation sequences;
            one array per checkpoint.
    """

    model: nn.Module
    rows: list[Measurement]
    arrays: Arrays
    queries: list[Tensor]


def checkpoints(steps: int, count: int = CHECKPOINTS) -> tuple[int, ...]:
    """Returns steps for measurements, from 0 to the last, denser at the start: uniform in the square root of
    the step.

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
        train_data, validation_data: tokens ``[n, seq, dim]`` with labels.
        metrics: function that makes new metrics of theories; :func:`with_general` adds the general ones.
        steps: number of optimiser steps.
        seed: seed of initial weights, batches and dropout.
        featured: number of validation sequences whose queries are stored at each checkpoint.
        device: torch device of the training.
        progress: called with one line per checkpoint.
    Raises:
        NotConverged: the loss became infinite or NaN.
        ValueError: data have no labels, or a setting is out of range.
    """
    generator = torch.Generator().manual_seed(seed)
    model = build(lambda: recipe.build(train_data), generator)
    task, stops = Classification(train_data, validation_data), checkpoints(steps)
    monitor = Monitor(validation_data, metrics, name=recipe.name, untrained=None)
    rows: list[Measurement] = []
    maps: list[np.ndarray] = []
    queries: list[Tensor] = []

    def checkpoint(step: int, network: nn.Module) -> None:
        rows.extend(monitor.measure(network, step, draws=HEADLINE_DRAWS if step == steps else BAND_DRAWS))
        scores = task.evaluate(network)
        rows.extend(replace(row, model=recipe.name, step=step) for row in scores)
        attention = attention_maps(network, _inputs(network, validation_data[:PICTURED]), keep=PICTURED)
        maps.extend([] if attention is None else [first_samples(attention, MAP_NUMBERS // len(stops))])
        query = features(network, validation_data[:featured]).query
        assert query is not None
        queries.append(query.clone())  # the query is a view, which would keep all tokens in memory
        if progress:
            accuracy = Table(scores).select(quantity=ACCURACY).one().value or 0.0
            progress(f"{recipe.name}: step {step} of {steps}, validation accuracy {plain_percent(accuracy)}")

    trained = recipe.train(
        model,
        train_data,
        # ``task`` measures accuracy and loss together; the accuracy of this function is not used
        validation_data[:1],
        steps=steps,
        generator=generator,
        checkpoints=stops,
        callback=checkpoint,
        device=device,
    )
    arrays = Arrays({f"network/{recipe.name}/steps": np.array(stops)})
    if len(maps) == len(stops) and maps[0].size:
        arrays[f"network/{recipe.name}/attention"] = np.stack(maps)
    return Monitored(trained.model, rows, arrays, queries)


def _inputs(model: nn.Module, data: TokenData) -> Tensor:
    """Returns the tokens on the model's device, in its precision."""
    parameter = next(model.parameters())
    return data.tokens.to(parameter.device, parameter.dtype)
