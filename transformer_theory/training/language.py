r"""Training on text: a language model learns the next word, by the loop that all trainings share.

The loss is the mean cross-entropy of words 2 ... n + 1 of each stream given those before (nats). Two recipes: :func:`sgd`, plain stochastic
gradient descent in which the MLP of the first layer learns at twice the rate, and :func:`adam`; both at constant rate, the gradient's norm
clipped at 0.5. Deterministic given the generator (dropout; the streams are read in order); the global CPU random state is left as it was.
Source: :cite:t:`tian2023scan` (the recipe), :cite:t:`kingma2015adam`.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR

from ..data.text import BATCH, CONTEXT, Text
from ..models.decoder import Decoder
from .descent import descend, within

CLIP = 0.5
Recipe = Callable[[Decoder], torch.optim.Optimizer]
Watch = Callable[[int, nn.Module], None]


def sgd(rate: float) -> Recipe:
    """Plain gradient descent; the MLP of the first layer at twice the rate.

    Args:
        rate: positive.
    Raises:
        ValueError: it is not. Source: :cite:t:`tian2023scan`.
    """
    _check_rate(rate)

    def optimiser(model: Decoder) -> torch.optim.Optimizer:
        first = list(model.blocks[0].get_submodule("mlp").parameters())
        fast = {id(parameter) for parameter in first}
        rest = [parameter for parameter in model.parameters() if id(parameter) not in fast]
        return torch.optim.SGD([{"params": rest}, {"params": first, "lr": 2 * rate}], lr=rate)

    return optimiser


def adam(rate: float) -> Recipe:
    """Adam with its usual moments, without weight decay.

    Args:
        rate: positive.
    Raises:
        ValueError: it is not. Source: :cite:t:`kingma2015adam`.
    """
    _check_rate(rate)
    return lambda model: torch.optim.Adam(model.parameters(), lr=rate)


@dataclass(frozen=True)
class Learnt:
    """A language model and how it came to be.

    Attributes:
        model: in evaluation mode.
        losses: of the batch of each step, nats, [steps].
        seconds: wall time, with the watching.
    """

    model: Decoder
    losses: Float[Tensor, " steps"]
    seconds: float


def learn(
    model: Decoder,
    text: Text,
    *,
    recipe: Recipe,
    steps: int,
    generator: torch.Generator,
    batch: int = BATCH,
    length: int = CONTEXT,
    clip: float = CLIP,
    at: Iterable[int] = (),
    watch: Watch = lambda step, model: None,
) -> Learnt:
    """Trains ``model`` in place on the streams of ``text``.

    Args:
        recipe: :func:`sgd` or :func:`adam`, or any function from the model to an optimiser of it.
        steps: >= 1, one batch each.
        generator: of dropout.
        batch, length: streams, and words of each in a batch.
        clip: largest norm of the gradient.
        at: steps at which ``watch(step, model)`` is called: 0 is before training, ``steps`` the end.
        watch: reads the model, in evaluation mode and without gradients.
    Returns:
        :class:`Learnt`.
    Raises:
        ValueError: the text does not fit the model, or settings are out of range.
        NotConverged: a loss is not finite; names the step and carries the model. Source: :cite:t:`tian2023scan`.
    """
    stops, words = within(at, steps), len(text.vocabulary)
    if words > model.embedding.num_embeddings:
        raise ValueError(
            f"the model must know the {words} words of {text.name}, it knows {model.embedding.num_embeddings}; build it for them"
        )
    if not clip > 0:
        raise ValueError(f"clip must be positive, got {clip}")
    started = time.perf_counter()
    optimiser = recipe(model)

    def stop(step: int) -> None:
        if step in stops:
            model.eval()
            with torch.no_grad():
                watch(step, model)
            model.train()

    losses = descend(
        model,
        lambda seen: loss(model, seen),
        text.batches(batch=batch, length=length),
        steps=steps,
        optimiser=optimiser,
        schedule=LambdaLR(optimiser, lambda step: 1.0),
        generator=generator,
        clip=clip,
        after=stop,
    )
    return Learnt(model, losses, time.perf_counter() - started)


def loss(model: nn.Module, seen: Int[Tensor, "batch longer"]) -> Float[Tensor, ""]:
    """Mean cross-entropy (nats) of each word but the first given those before it, in the mode that the model is in.

    Args:
        model: ids [batch, n] to logits [batch, n, vocabulary].
        seen: ids, ``[batch, n + 1]``.
    Source: textbook.
    """
    return functional.cross_entropy(model(seen[:, :-1]).flatten(0, 1), seen[:, 1:].flatten())


def _check_rate(rate: float) -> None:
    if not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"rate must be positive, got {rate}")
