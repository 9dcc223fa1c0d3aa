r"""Any sequences as counts, with what the model makes of them and the closed-form descent directions of Lemma 1.

    c = x e^z / sum(x e^z),    f = c / ||c||_2,    alpha = softmax(Y^T f),    g = Y (e_n - alpha)
    dY = f (e_n - alpha)^T,    dz = f o (g - f (f.g))

Put the conditional :math:`P(\cdot | n)` in place of counts and the class shares as weights (:func:`population`), and a step is an Euler
step of unit length of the exact population flow. The dense form: a row of S counts a sequence; :mod:`.grouped` is faster where it applies.

Source: :cite:t:`tian2023scan`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..problem import CountedSequences, SequenceClasses
from .weights import Weights


@dataclass(frozen=True, eq=False)
class Descent:
    """Mean loss of a batch, nats, and minus its gradients."""

    loss: Float[Tensor, "*runs"]
    decoder: Float[Tensor, "*runs S C"]
    attention: Float[Tensor, "*runs Q S"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences as counts.

    Attributes:
        counts: of the contextual tokens; any non-negative numbers, each row with a positive sum, ``[*runs, batch, S]``.
        query: number of the query, ``[*runs, batch]``.
        target: number of the class, ``[*runs, batch]``.
        weight: of each sequence in the loss; 1/batch if None, ``[batch]``.
    """

    counts: Float[Tensor, "*runs batch S"]
    query: Int[Tensor, "*runs batch"]
    target: Int[Tensor, "*runs batch"]
    weight: Float[Tensor, " batch"] | None = None

    def descent(self, weights: Weights) -> Descent:
        """:func:`forward`."""
        return forward(weights, self)


@dataclass(frozen=True, eq=False)
class Pass(Descent):
    """What the model does with a batch besides: the attention it pays, and the share of classes that it gets right."""

    attended: Float[Tensor, "*runs batch S"]
    correct: Float[Tensor, "*runs"]


def attend(weights: Weights, batch: Batch) -> Float[Tensor, "*runs batch S"]:
    """c: the attention that each contextual token type gets in each sequence, rows sum to one. Tokens that do not occur get zero."""
    rows = weights.attention.gather(-2, batch.query[..., None].expand(*batch.query.shape, weights.attention.shape[-1]))
    return torch.softmax(rows + batch.counts.log(), dim=-1)


def _one_hot(index: Tensor, size: int) -> Tensor:
    """As torch's, in Booleans; cheaper, since torch's looks at every number first."""
    return index[..., None] == torch.arange(size, device=index.device)


def forward(weights: Weights, batch: Batch) -> Pass:
    """One pass and its closed-form gradients (Lemma 1), exact for any counts.

    Returns:
        attention, mean loss (nats), share of correct predictions among the classes, and descent directions of Y and Z.
    """
    K = weights.decoder.shape[-1] - (weights.rest > 0)
    c = attend(weights, batch)
    f = c / torch.linalg.vector_norm(c, dim=-1, keepdim=True)
    logits = f @ weights.decoder
    pooled = torch.cat([logits[..., :K], logits[..., K:] + math.log(max(weights.rest, 1))], dim=-1)
    log_alpha = torch.log_softmax(pooled, dim=-1)
    alpha = log_alpha.exp()
    here = _one_hot(batch.target, alpha.shape[-1])
    others = torch.where(here, torch.zeros_like(alpha), alpha)
    residual = torch.where(here, others.sum(-1, keepdim=True), -others)  # 1 - alpha_n as the sum of the others: no cancellation
    g = residual @ weights.decoder.mT
    dz = f * (g - f * (f * g).sum(-1, keepdim=True))
    share = torch.full(batch.target.shape[-1:], 1 / batch.target.shape[-1], dtype=f.dtype) if batch.weight is None else batch.weight
    dY = f.mT @ (share[:, None] * residual)
    if weights.rest:
        dY = torch.cat([dY[..., :K], dY[..., K:] / weights.rest], dim=-1)
    asked = _one_hot(batch.query, weights.attention.shape[-2]).to(f.dtype)
    dZ = asked.mT @ (share[:, None] * dz)
    loss = -(share * log_alpha.gather(-1, batch.target[..., None])[..., 0]).sum(-1)
    correct = (share * (logits[..., :K].argmax(-1) == batch.target)).sum(-1)
    return Pass(loss, dY, dZ, c, correct)


def population(classes: SequenceClasses) -> Callable[[int], Batch]:
    """Infinitely long sequences of all classes at once: a step is an Euler step of the exact population flow."""
    whole = Batch(classes.conditional, classes.query, torch.arange(classes.classes), classes.weights)
    return lambda step: whole


def minibatches(
    data: CountedSequences, batch: int, *, generator: torch.Generator, targets: Int[Tensor, "*runs n"] | None = None
) -> Callable[[int], Batch]:
    """The sequences of the data in random order, epoch after epoch: a function that draws the next batch of up to ``batch`` sequences.

    Args:
        targets: other next tokens to learn, one vector a run (e.g. shuffled ones); the data's own if None.
    """
    labels = data.target if targets is None else targets
    draw = epochs(len(data.target), batch, generator=generator)

    def take(step: int) -> Batch:
        index = draw(step)
        shape = (*labels.shape[:-1], len(index))
        return Batch(data.counts[index].expand(*shape, data.counts.shape[1]), data.query[index].expand(shape), labels[..., index])

    return take


def epochs(n: int, batch: int, *, generator: torch.Generator) -> Callable[[int], Int[Tensor, " size"]]:
    """Numbers of up to ``batch`` of n sequences, in random order, epoch after epoch: a function of the step, called step after step."""
    size, order = min(batch, n), torch.empty(0, dtype=torch.long)

    def draw(step: int) -> Tensor:
        nonlocal order
        if len(order) < size:
            order = torch.randperm(n, generator=generator)
        index, order = order[:size], order[size:]
        return index

    return draw
