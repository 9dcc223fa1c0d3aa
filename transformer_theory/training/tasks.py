"""Tasks for :func:`.fit`. A task yields batches and computes their loss, see :class:`.Task`.

* :class:`Classification` learns the class of a sequence of tokens.
* :class:`NextWord` learns the next word of a text.
* :class:`StreamTask` combines any loss with any stream of batches, for the minimal networks of the theories
  and for your networks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ..core.measurement import Measurement
from ..core.validation import integers
from ..data.text import BATCH, CONTEXT, Text
from ..data.tokens import TokenData
from ..probes.evaluation import evaluation
from .fitting import permuted
from .objectives.protocol import ACCURACY, LOSS


@dataclass(frozen=True)
class StreamTask:
    """A loss on a stream of batches.

    Attributes:
        loss: differentiable function of the model and a batch, ``[]``.
        stream: yields batches drawn with a generator, at least as many as the training has steps.
    """

    loss: Callable[[nn.Module, Any], Tensor]
    stream: Callable[[torch.Generator], Iterator[Any]]

    def batches(self, generator: torch.Generator, start: int = 0) -> Iterator[Any]:
        """Yields the batches from a step on. Earlier batches are drawn and dropped, so a resumed training
        gets the same batches.
        """
        return islice(self.stream(generator), start, None)


@dataclass(frozen=True)
class Classification:
    """Classification of sequences of tokens, by cross-entropy in nats.

    Args:
        train, validation: tokens [n, seq, dim] with labels; the validation data are used for measurements
            only.
        batch_size: sequences per step; a larger number than n is reduced to n.
    Raises:
        ValueError: data have no labels, or the batch size is below 1.
    """

    train: TokenData
    validation: TokenData
    batch_size: int = 64

    def __post_init__(self):
        for name, data in (("train", self.train), ("validation", self.validation)):
            if data.labels is None:
                raise ValueError(f"{name} data must have labels, {data.name} has none")
        integers(batch_size=self.batch_size)

    def batches(self, generator: torch.Generator, start: int = 0) -> Iterator[Int[Tensor, " batch"]]:
        """Yields positions of sequences: a new permutation per epoch, without the incomplete last batch."""
        n = len(self.train.tokens)
        return islice(permuted(n, min(self.batch_size, n), generator), start, None)

    def loss(self, model: nn.Module, batch: Int[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Returns the mean cross-entropy.

        Raises:
            ValueError: the model has fewer logits than there are classes.
        """
        inputs, labels = inputs_of(self.train, model, batch)
        logits = model(inputs)
        if (classes := self.train.classes) > logits.shape[-1]:
            message = f"labels must lie below the number of logits, {logits.shape[-1]}, got {classes - 1}"
            raise ValueError(f"{message}; build the model for {classes} classes")
        return functional.cross_entropy(logits, labels)

    def evaluate(self, model: nn.Module) -> list[Measurement]:
        """Measures accuracy and loss on the validation data, in evaluation mode."""
        logits, labels = logits_of(model, self.validation)
        accuracy, loss = (
            (logits.argmax(-1) == labels).double().mean().item(),
            functional.cross_entropy(logits, labels).item(),
        )
        columns = {"n": len(labels), "split": "validation"}
        return [
            Measurement("network", "network", ACCURACY, accuracy, unit="share", **columns),
            Measurement("network", "network", LOSS, loss, unit="nats", **columns),
        ]

    def sample(self, generator: torch.Generator, n: int = 64) -> Float[Tensor, "n seq dim"]:
        """Returns n random validation sequences."""
        order = torch.randperm(len(self.validation.tokens), generator=generator)
        return self.validation.tokens[order[:n]]


@dataclass(frozen=True)
class NextWord:
    """Prediction of the next word of a text, by cross-entropy in nats.

    Attributes:
        text: the text; it is read in order as ``batch`` parallel streams.
        batch: number of streams.
        length: words per stream and step.
    """

    text: Text
    batch: int = BATCH
    length: int = CONTEXT

    def batches(self, generator: torch.Generator, start: int = 0) -> Iterator[Int[Tensor, "batch longer"]]:
        """Yields windows ``[batch, length + 1]``; the last ``length`` words are targets."""
        return islice(self.text.batches(batch=self.batch, length=self.length), start, None)

    def loss(self, model: nn.Module, batch: Int[Tensor, "batch longer"]) -> Float[Tensor, ""]:
        """Returns the loss of :func:`next_word_loss`."""
        return next_word_loss(model, batch)

    def sample(self, generator: torch.Generator, n: int = 64) -> Int[Tensor, "n length"]:
        """Returns n random windows of the text, ``[n, length]``."""
        windows = self.text.windows(len(self.text), length=self.length)
        return windows[torch.randperm(len(windows), generator=generator)[:n], :-1]


def next_word_loss(model: nn.Module, windows: Int[Tensor, "batch longer"]) -> Float[Tensor, ""]:
    """Returns the mean cross-entropy (nats) of each word but the first, given the words before it. The
    model's mode is not changed.

    Args:
        model: maps ids ``[batch, n]`` to logits ``[batch, n, vocabulary]``.
        windows: ids, ``[batch, n + 1]``.
    """
    return functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def logits_of(
    model: nn.Module, data: TokenData, *, batch_size: int = 512
) -> tuple[Float[Tensor, "n classes"], Int[Tensor, " n"]]:
    """Returns logits ``[n, classes]`` and labels ``[n]`` on the CPU; the model's mode is restored."""
    assert data.labels is not None
    positions = torch.arange(len(data.tokens)).split(batch_size)
    with evaluation(model):
        logits = torch.cat([model(inputs_of(data, model, part)[0]).cpu() for part in positions])
    return logits, data.labels.cpu()


def inputs_of(
    data: TokenData, model: nn.Module, positions: Int[Tensor, " b"]
) -> tuple[Float[Tensor, "b seq dim"], Int[Tensor, " b"]]:
    """Returns the tokens, in the model's precision, and the labels of the given sequences, on the model's
    device.
    """
    assert data.labels is not None
    parameter = next(model.parameters())
    return data.tokens[positions].to(parameter.device, parameter.dtype), data.labels[positions].to(
        parameter.device
    )
