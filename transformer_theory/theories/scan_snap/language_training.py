r"""Training of language models on text by next-word prediction.

The loss is the mean cross-entropy (nats) of words 2 ... n + 1 of each stream given the words before them. Two
optimisers: :func:`sgd`, plain gradient descent in which the MLP of the first layer learns at twice the rate,
as in :cite:t:`tian2023scan`, and :func:`adam` :cite:p:`kingma2015adam`. Both have a constant rate; the norm
of the gradient is clipped at 0.5. Training is deterministic given the generator, which draws dropout; the
streams are read in order. The global CPU random state is left unchanged.
"""

from collections.abc import Callable, Iterable

import torch
from torch import nn

from ...core.validation import positive
from ...data.text import BATCH, CONTEXT, Text
from ...models.decoder import Decoder
from ...training.fitting import Fit, at_steps, fit
from ...training.tasks import NextWord

CLIP = 0.5  # largest norm of the gradient
OptimiserOf = Callable[[Decoder], torch.optim.Optimizer]
Callback = Callable[[int, nn.Module], None]


def sgd(rate: float) -> OptimiserOf:
    """Returns a constructor of plain gradient descent in which the MLP of the first layer learns at twice the
    rate.

    Raises:
        ValueError: the rate is not positive.
    """
    positive(rate=rate)

    def optimiser(model: Decoder) -> torch.optim.Optimizer:
        first = list(model.blocks[0].get_submodule("mlp").parameters())
        fast = {id(parameter) for parameter in first}
        rest = [parameter for parameter in model.parameters() if id(parameter) not in fast]
        return torch.optim.SGD([{"params": rest}, {"params": first, "lr": 2 * rate}], lr=rate)

    return optimiser


def adam(rate: float) -> OptimiserOf:
    """Returns a constructor of Adam with torch's default constants, without weight decay.

    Raises:
        ValueError: the rate is not positive.
    """
    positive(rate=rate)
    return lambda model: torch.optim.Adam(model.parameters(), lr=rate)


def train_decoder(
    model: Decoder,
    text: Text,
    *,
    optimiser: OptimiserOf,
    steps: int,
    generator: torch.Generator,
    batch: int = BATCH,
    length: int = CONTEXT,
    clip: float = CLIP,
    callback_steps: Iterable[int] = (),
    callback: Callback = lambda step, model: None,
) -> Fit:
    """Trains ``model`` in place on the streams of ``text``.

    Args:
        optimiser: :func:`sgd`, :func:`adam`, or any function from the model to an optimiser of its
            parameters.
        steps: number of steps, one batch each.
        generator: draws dropout.
        batch, length: number of streams, and number of words of each stream per batch.
        clip: largest norm of the gradient.
        callback_steps: steps after which ``callback(step, model)`` is called; 0 means before training.
        callback: function of the step and the model, which is in evaluation mode; gradients are off.
    Raises:
        ValueError: the text has more words than the model, or settings are out of range.
        NotConverged: a loss is not finite; the error names the step and carries the model.
    """
    words = len(text.vocabulary)
    if words > model.embedding.num_embeddings:
        embeddings = model.embedding.num_embeddings
        raise ValueError(
            f"the model must have an embedding for each of the {words} words of {text.name}, got "
            f"{embeddings}; enlarge it"
        )
    positive(clip=clip)
    return fit(
        model,
        NextWord(text, batch, length),
        optimiser=optimiser(model),
        steps=steps,
        callbacks=[at_steps(callback_steps, callback, limit=steps)],
        clip=clip,
        generator=generator,
    )
