r"""Scores of attention heads on blocks of random ids that occur twice, from attention weights A of shape ``[batch, heads, 2P, 2P]``.

A block has P different ids. With the positions i from 0,

.. math:: \text{previous token } A_{i, i-1}, \qquad \text{prefix matching } A_{i, i-P+1}, \qquad \text{duplicate token } A_{i, i-P} .

All are means over queries and sequences, in [0, 1]: the first over i >= 1, since keys of the first block are what an induction head
needs; the others over the queries of the second block that have a next id, P <= i < 2P - 1. An induction head has prefix matching 1.
*Chance* is not 0: uniform causal attention gives the mean of 1/(i+1), and a head that reads positions may look at the distance P - 1
without any match. The null is therefore the same head at the same distances on *unrelated blocks*: the first block is replaced by other
ids. Source: :cite:t:`olsson2022incontext`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from ...core.metric import ActivationKind, Activations, Metric
from ...core.validation import integers
from ...probes.evaluation import evaluation, forward
from ...probes.probing import probe

PREVIOUS, PREFIX, DUPLICATE = "attention to the previous token", "prefix matching", "attention to the duplicate token"
SCORES = (PREVIOUS, PREFIX, DUPLICATE)
BLOCK, SMALLEST_BLOCK = 25, 4  # ids in a block, if the limits allow; the smallest block
UNRELATED = "unrelated blocks"


def score_weights(weights: Float[Tensor, "batch heads n n"]) -> Float[Tensor, "3 batch heads"]:
    """Returns previous-token, prefix-matching and duplicate-token score of each sequence and head.

    Raises:
        ValueError: the weights are not square, or the number of tokens is odd or below 4.
    """
    n = weights.shape[-1]
    if weights.shape[-2] != n or n % 2 or n < 4:
        raise ValueError(f"weights must be [batch, heads, 2P, 2P] with P >= 2, got {list(weights.shape)}; pass a block that occurs twice")
    places = ((i.to(weights.device), distance) for i, distance in zip(_queries(n), (1, n // 2 - 1, n // 2)))
    return torch.stack([weights[..., i, i - distance].mean(-1) for i, distance in places])


def uniform_score(n: int, quantity: str = PREFIX) -> float:
    """Returns a score of uniform causal attention on n = 2P tokens, the mean of 1/(i+1) over its queries."""
    return float((1 / (1 + _queries(n)[SCORES.index(quantity)].double())).mean())


def _queries(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the queries of each score."""
    second = torch.arange(n // 2, n - 1)
    return torch.arange(1, n), second, second


def block_length(limits: Mapping[str, int]) -> int:
    """Returns the length P of the blocks: :data:`BLOCK`, half of the longest sequence, or half of the vocabulary, the smallest.

    Raises:
        ValueError: the limits leave blocks of fewer than :data:`SMALLEST_BLOCK` ids.
    """
    length, vocabulary = limits["length"], limits["vocabulary"]
    P = min(BLOCK, length // 2, vocabulary // 2)
    if P < SMALLEST_BLOCK:
        name, value = ("vocabulary", vocabulary) if vocabulary < length else ("length", length)
        raise ValueError(
            f"two unrelated blocks of {SMALLEST_BLOCK} different ids need a vocabulary and a length of at least {2 * SMALLEST_BLOCK}, "
            f"got {name} {value}; use a larger one"
        )
    return P


def draw_blocks(n: int, *, length: int, vocabulary: int, generator: Generator) -> tuple[Int[Tensor, "n twice"], Int[Tensor, "n twice"]]:
    """Draws blocks of different ids.

    Returns:
        Sequences that hold a block twice, and the same sequences with the first block replaced by other ids, ``[n, 2 length]`` each.
    Raises:
        ValueError: the vocabulary has fewer ids than two blocks.
    """
    integers(n=n, length=length, vocabulary=vocabulary)
    if vocabulary < 2 * length:
        raise ValueError(
            f"vocabulary must be at least {2 * length}, the ids of two blocks of {length}, got {vocabulary}; shorten the blocks"
        )
    # A loop, since a table [n, vocabulary] would be large for a vocabulary of 50,000.
    order = torch.stack([torch.randperm(vocabulary, generator=generator)[: 2 * length] for _ in range(n)])
    block, other = order[:, :length], order[:, length:]
    return torch.cat([block, block], 1), torch.cat([other, block], 1)


class _SequenceScores(Metric):
    """Scores of each sequence, by layer and first head, ``[3, sequences, heads]``."""

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)

    def update(self, activations: Activations) -> None:
        if activations.weights is not None:
            place = activations.layer, activations.first_head
            scores = score_weights(activations.weights.double()).cpu()
            self.sums[place] = torch.cat([self.sums[place], scores], 1) if place in self.sums else scores

    def compute(self, **_: Any) -> list[Any]:
        return []


def sequence_scores(model: nn.Module, ids: Int[Tensor, "n twice"], *, batch_size: int = 256) -> Float[Tensor, "3 n heads"]:
    """Returns the three scores of each sequence and of all heads of a model, layer by layer, ``[3, n, heads]``.

    Raises:
        ValueError: the model has no attention whose weights are known.
    """
    metric = _SequenceScores()
    with evaluation(model), torch.random.fork_rng(devices=[]), probe(model, [metric], max_samples=None) as p, p.together():
        for part in ids.split(batch_size):
            forward(model, part)
        sums = dict(metric.sums)
    if not sums:
        raise ValueError(f"{type(model).__name__} must have attention heads whose weights are known, got none; choose another model")
    return torch.cat([sums[place] for place in sorted(sums)], dim=-1)
