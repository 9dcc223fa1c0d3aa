r"""Scores of attention heads on blocks of random ids that occur twice, from attention weights A of shape
``[batch, heads, 2P, 2P]``.

A block has P different ids. With the positions i from 0,

.. math:: \text{previous token } A_{i, i-1}, \qquad \text{prefix matching } A_{i, i-P+1}, \qquad
    \text{duplicate token } A_{i, i-P} .

All are means over queries and sequences, in [0, 1]: the first over i >= 1, since keys of the first block are
what an induction head needs; the others over the queries of the second block that have a next id, P <= i < 2P
- 1. An induction head has prefix matching 1. *Chance* is not 0: uniform causal attention gives the mean of
1/(i+1), and a head that reads positions may look at the distance P - 1 without any match. The null is
therefore the same head at the same distances on *unrelated blocks*: the first block is replaced by other ids.
Source: :cite:t:`olsson2022incontext`.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from ...core.measurement import Measurement
from ...core.metric import ALL, ActivationKind, Activations, Metric, PerModule, Place
from ...core.sources import Source
from ...core.validation import as_float, full_precision, in_range, integers
from ...models.embedding import check_ids
from ...probes.evaluation import evaluation, forward
from ...probes.probing import probe

NAME, OLSSON = "induction", Source("olsson2022incontext")
PREVIOUS, PREFIX, DUPLICATE = (
    "attention to the previous token",
    "prefix matching",
    "attention to the duplicate token",
)
SCORES = (PREVIOUS, PREFIX, DUPLICATE)
BLOCK, SMALLEST_BLOCK = 25, 4  # ids in a block, if the limits allow; the smallest block
UNRELATED = "unrelated blocks"


@in_range
@full_precision
def score_weights(weights: Float[Tensor, "batch heads n n"]) -> Float[Tensor, "3 batch heads"]:
    """Returns previous-token, prefix-matching and duplicate-token score of each sequence and head.

    Raises:
        ValueError: the weights are no floats ``[batch, heads, n, n]``, or the number of tokens is odd or
            below 4.
    """
    n = weights.shape[-1] if weights.ndim == 4 else 0
    if n % 2 or n < 4 or weights.shape[-2] != n or not weights.is_floating_point():
        raise ValueError(
            f"weights must be floats [batch, heads, 2P, 2P] with P >= 2, got {weights.dtype} "
            f"{list(weights.shape)}; pass those of a block that occurs twice"
        )
    weights = as_float("weights", weights)
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
    """Returns the length P of the blocks: :data:`BLOCK`, half of the longest sequence, or half of the
    vocabulary, the smallest.

    Raises:
        ValueError: the limits leave blocks of fewer than :data:`SMALLEST_BLOCK` ids.
    """
    length, vocabulary = limits["length"], limits["vocabulary"]
    P = min(BLOCK, length // 2, vocabulary // 2)
    if P < SMALLEST_BLOCK:
        name, value = ("vocabulary", vocabulary) if vocabulary < length else ("length", length)
        raise ValueError(
            f"two unrelated blocks of {SMALLEST_BLOCK} different ids need a vocabulary and a length of at "
            f"least {2 * SMALLEST_BLOCK}, got {name} {value}; use a larger one"
        )
    return P


def draw_blocks(
    n: int, *, length: int, vocabulary: int, generator: Generator
) -> tuple[Int[Tensor, "n twice"], Int[Tensor, "n twice"]]:
    """Draws blocks of different ids.

    Returns:
        Sequences that hold a block twice, and the same sequences with the first block replaced by other ids,
        ``[n, 2 length]`` each.
    Raises:
        ValueError: the vocabulary has fewer ids than two blocks.
    """
    integers(n=n, length=length, vocabulary=vocabulary)
    if vocabulary < 2 * length:
        raise ValueError(
            f"vocabulary must be at least {2 * length}, the ids of two blocks of {length}, got "
            f"{vocabulary}; shorten the blocks"
        )
    # A loop, since a table [n, vocabulary] would be large for a vocabulary of 50,000.
    order = torch.stack([torch.randperm(vocabulary, generator=generator)[: 2 * length] for _ in range(n)])
    block, other = order[:, :length], order[:, length:]
    return torch.cat([block, block], 1), torch.cat([other, block], 1)


class InductionScores(PerModule):
    """Previous-token, prefix-matching and duplicate-token score of each head, for blocks that occur twice
    (:func:`score_weights`).

    Attributes:
        sums: scores of each sequence by layer, first head and number of tokens, ``[sequences, 3, heads]``.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)
    keeps = ALL
    theory, source = NAME, OLSSON

    def place(self, activations: Activations, statistics: Tensor) -> Place:
        """Returns layer, first head and number of tokens."""
        assert activations.weights is not None
        return (*super().place(activations, statistics), activations.weights.shape[-1])

    def statistics(self, activations: Activations) -> Float[Tensor, "sequences 3 heads"] | None:
        """Returns the scores of one module; None if it has no known weights.

        Raises:
            ValueError: the tokens are not a block that occurs twice (:func:`score_weights`).
        """
        weights = activations.weights
        return None if weights is None else score_weights(weights.double()).cpu().transpose(0, 1)

    def rows(
        self, place: Place, *sums: Float[Tensor, "_ 3 heads"], draws: int, generator: Generator | None
    ) -> Iterator[Measurement]:
        """Yields three rows per head and number of tokens; :func:`.respond` adds the null."""
        lengths = sorted(key[2] for key in self.sums if key[:2] == place)
        for tokens, scores in zip(lengths, sums):
            # The layout decides the order of the sum, and so its last digit.
            means = scores.transpose(0, 1).contiguous().mean(1)
            for head, values in enumerate(means.T.tolist()):
                for quantity, value in zip(SCORES, values):
                    note = f"uniform attention, 1/(i+1): {uniform_score(tokens, quantity):.3f}"
                    columns = {"head": head, "n": len(scores), "note": note}
                    yield self.other_row(quantity, value, unit="share", side=">=", **columns)


@full_precision
def sequence_scores(
    model: nn.Module, ids: Int[Tensor, "n twice"], *, batch_size: int = 256
) -> Float[Tensor, "3 n heads"]:
    """Returns the three scores of each sequence and of all heads of a model, layer by layer, ``[3, n,
    heads]``.

    Raises:
        ValueError: the ids are no integers ``[n, 2P]`` with P of at least 2, or the model has no attention
            whose weights are known.
    """
    check_ids(ids, vocabulary=2**62)  # the model checks its vocabulary
    if not len(ids) or ids.shape[1] % 2 or ids.shape[1] < 4:
        raise ValueError(
            f"ids must be [n, 2P] with n >= 1 and P >= 2, got {list(ids.shape)}; pass blocks that occur twice"
        )
    metric = InductionScores()
    observe(model, metric, ids, batch_size=batch_size)
    if not metric.sums:
        raise ValueError(
            f"{type(model).__name__} must have attention heads whose weights are known, got none; choose "
            "another model"
        )
    return torch.cat([metric.sums[place] for place in sorted(metric.sums)], dim=-1).transpose(0, 1)


def observe(model: nn.Module, metric: Metric, ids: Int[Tensor, "n seq"], *, batch_size: int = 256) -> None:
    """Fills the sums of a metric from the forward passes of a model on ids."""
    with (
        evaluation(model),
        torch.random.fork_rng(devices=[]),
        probe(model, [metric], max_samples=None) as p,
        p.accumulate(),
    ):
        for part in ids.split(batch_size):
            forward(model, part)
