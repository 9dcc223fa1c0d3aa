r"""Minibatches of counted sequences, and descent directions at a cost that does not grow with the vocabulary.

A sequence of 34 words contains few of the thousands of words of a text, so most counts are zero. A
:class:`SparseBatch` stores, for each sequence, the tokens that occur in it and the logarithms of their
counts. Its products involve the rows of Y of these tokens only:

    scores = z + ln x,   c = softmax(scores),   f = c / |c|_2,   logits = f Y,   r = e_n - alpha,
                         dz = f o (Y r - f (f.Y r)),   dY = f r^T

Source: :cite:t:`tian2023scan` (Lemma 1).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..problem import CountedSequences
from .model import Batch, Descent, Weights, residuals

# largest share of tokens in a sequence for which the sparse products are cheaper than the dense ones
SPARSE_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class SparseBatch:
    """Sequences of each run as lists of tokens. Lists that are shorter than W are padded with token 0 and a
    count of zero.

    Attributes:
        tokens: tokens that occur in each sequence, ``[*runs, batch, W]``.
        log_counts: logarithms of their counts, minus infinity at padded places, ``[*runs, batch, W]``.
        query: number of each query, ``[*runs, batch]``.
        target: number of each class, ``[*runs, batch]``.
    """

    tokens: Int[Tensor, "*runs batch W"]
    log_counts: Float[Tensor, "*runs batch W"]
    query: Int[Tensor, "*runs batch"]
    target: Int[Tensor, "*runs batch"]

    def descent(self, weights: Weights) -> Descent:
        """Computes the mean loss and the closed-form descent directions, like :func:`.forward`."""
        runs, (B, W) = self.target.shape[:-1], self.tokens.shape[-2:]
        R, S, C = math.prod(runs), *weights.decoder.shape[-2:]
        Q = weights.attention.shape[-2]
        run = torch.arange(R)[:, None, None]
        tokens = self.tokens.reshape(R, B, W)
        decoder_row = run * S + tokens  # number of the pair (run, token)
        # number of the triple (run, query, token)
        attention_entry = (run * Q + self.query.reshape(R, B, 1)) * S + tokens
        scores = weights.attention.reshape(-1).take(attention_entry) + self.log_counts.reshape(R, B, W).to(
            weights.attention.dtype
        )
        f = torch.softmax(scores, dim=-1)
        f = f / torch.linalg.vector_norm(f, dim=-1, keepdim=True)
        rows = weights.decoder.reshape(R * S, C).index_select(0, decoder_row.ravel()).view(R * B, W, C)
        logits = (f.view(R * B, 1, W) @ rows).view(R, B, C)
        residual, losses = residuals(logits, self.target.reshape(R, B), weights.rest)
        residual /= B  # the loss is a mean over the batch
        g = (rows @ residual.view(R * B, C, 1)).view(R, B, W)
        dz = f * (g - f * (residual * logits).sum(-1, keepdim=True))  # f.g = f.(Y r) = (f Y).r
        outer = f[..., None] * residual[..., None, :]  # [runs, batch, W, C]
        dY = (
            torch.zeros_like(weights.decoder)
            .view(R * S, C)
            .index_add_(0, decoder_row.ravel(), outer.view(-1, C))
        )
        dZ = torch.zeros_like(weights.attention).view(-1).index_add_(0, attention_entry.ravel(), dz.ravel())
        if weights.rest:  # each of the equal columns gets an equal part of the pooled residual
            dY[:, -1] /= weights.rest
        return Descent(losses.mean(-1).view(runs), dY.view_as(weights.decoder), dZ.view_as(weights.attention))


def sequence_batches(
    counts: Float[Tensor, "*sets n S"],
) -> Callable[[Tensor, Tensor, Tensor], Batch | SparseBatch]:
    """Returns a function that maps numbers of sequences ``[batch]``, queries and targets ``[*runs, batch]``
    to a batch.

    Batches are sparse if no sequence contains more than a quarter of the tokens.

    Args:
        counts: counts of all sequences; either one set for all runs, ``[n, S]``, or one set per run, ``[runs,
            n, S]``.
    """
    width = int((counts > 0).sum(-1).max())
    if width > SPARSE_SHARE * counts.shape[-1]:
        log_counts = counts.log()

        def dense(index: Tensor, query: Tensor, target: Tensor) -> Batch:
            shape = (*target.shape, counts.shape[-1])
            return Batch(
                counts[..., index, :].expand(shape),
                query,
                target,
                log_counts=log_counts[..., index, :].expand(shape),
            )

        return dense
    # The largest counts of each sequence are its positive ones; the rest of the list is padded with counts of
    # zero.
    top, tokens = counts.topk(width, dim=-1)
    tokens, logs = torch.where(top > 0, tokens, 0), top.log()

    def sparse(index: Tensor, query: Tensor, target: Tensor) -> SparseBatch:
        shape = (*target.shape, width)
        return SparseBatch(
            tokens[..., index, :].expand(shape), logs[..., index, :].expand(shape), query, target
        )

    return sparse


def minibatches(
    data: CountedSequences,
    batch: int,
    *,
    generator: torch.Generator,
    targets: Int[Tensor, "*runs n"] | None = None,
) -> Callable[[int], Batch | SparseBatch]:
    """Returns a function that draws batches of up to ``batch`` sequences of the data, in random order, epoch
    after epoch.

    Args:
        data: the sequences.
        batch: largest number of sequences per step.
        generator: draws the order of each epoch.
        targets: next tokens to learn, e.g. shuffled ones, one vector per run, ``[*runs, n]``. None: the next
            tokens of the data.
    """
    labels = data.target if targets is None else targets
    draw_index, batch_of = epochs(len(data.target), batch, generator=generator), sequence_batches(data.counts)

    def draw_batch(step: int) -> Batch | SparseBatch:
        index = draw_index(step)
        return batch_of(index, data.query[index].expand(*labels.shape[:-1], -1), labels[..., index])

    return draw_batch


def epochs(n: int, batch: int, *, generator: torch.Generator) -> Callable[[int], Int[Tensor, " size"]]:
    """Returns a function that draws the numbers of the next sequences, at most ``batch`` of n. Call it once
    per step, in order.
    """
    size, order = min(batch, n), torch.empty(0, dtype=torch.long)

    def draw(step: int) -> Tensor:
        nonlocal order
        if len(order) < size:  # an incomplete last batch is dropped, so that all steps have the same size
            order = torch.randperm(n, generator=generator)
        index, order = order[:size], order[size:]
        return index

    return draw
