r"""The one-layer model in count form: its two matrices, any sequences as counts, and the closed-form descent
directions of Lemma 1.

    c = x e^z / sum(x e^z),    f = c / ||c||_2,    alpha = softmax(Y^T f),    g = Y (e_n - alpha)
    dY = f (e_n - alpha)^T,    dz = f o (g - f (f.g))

x holds the counts of a sequence. With the conditional :math:`P(\cdot | n)` in place of counts and the class
shares as weights (:func:`population`), a step is an Euler step of unit length of the exact population flow.
Here a sequence is a row of S counts; :mod:`.grouped` is faster for sampled sequences, :mod:`.minibatches` for
those of a text.

The explicit model has two M x M matrices over the whole vocabulary. Only the rows of Y and columns of Z of
contextual tokens, and the rows of Z of queries, ever move. From Y = 0 the M - K columns of Y whose token
never follows stay equal, so one column ("rest") represents them all. From a random start they differ, and all
M are stored. Source: :cite:t:`tian2023scan`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..problem import SequenceClasses


@dataclass(frozen=True, eq=False)
class Weights:
    """The two trained matrices.

    Attributes:
        decoder: Y, one column per class, then one column that represents all equal columns, if there are any,
            ``[*runs, S, K or K + 1]``. A random start has all M columns, the classes first.
        attention: Z, a row of logits for each query token, ``[*runs, Q, S]``.
        rest: number of equal columns that the last column represents; 0 if it is a column like the others.
    """

    decoder: Float[Tensor, "*runs S C"]
    attention: Float[Tensor, "*runs Q S"]
    rest: int

    @classmethod
    def zeros(
        cls,
        tokens: int,
        queries: int,
        classes: int,
        vocab_size: int,
        *,
        runs: tuple[int, ...] = (),
        dtype: torch.dtype = torch.float64,
    ) -> "Weights":
        """Returns the initial weights of the theory, Y = 0 and Z = 0."""
        rest = vocab_size - classes
        decoder = torch.zeros(*runs, tokens, classes + (rest > 0), dtype=dtype)
        return cls(decoder, torch.zeros(*runs, queries, tokens, dtype=dtype), rest)

    @classmethod
    def random(
        cls, classes: SequenceClasses, *, seeds: Sequence[int], dtype: torch.dtype = torch.float64
    ) -> "Weights":
        r"""Draws one run per seed; entries are uniform in :math:`\pm 1/\sqrt M`, torch's default for a linear
        layer of M inputs.

        Args:
            classes: classes with S tokens, Q queries and a vocabulary of M.
            seeds: one seed per run; a run depends on its own seed only.
            dtype: dtype of the weights; the random numbers do not depend on it.
        Raises:
            ValueError: there is no seed.
        """
        if not len(seeds):
            raise ValueError("seeds must hold at least one seed, got none; pass e.g. seeds=range(10)")
        matrices = [_uniform(classes, torch.Generator().manual_seed(seed)) for seed in seeds]
        decoder, attention = (torch.stack(parts).to(dtype) for parts in zip(*matrices))
        return cls(decoder, attention, 0)

    def decoder_row_sums(self) -> Float[Tensor, "*runs S"]:
        """Sums the rows of Y over the whole vocabulary; plain descent with any momentum conserves the sums
        (Lemma 1).
        """
        total = self.decoder.sum(-1)
        return total + (self.rest - 1) * self.decoder[..., -1] if self.rest else total


def _uniform(classes: SequenceClasses, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    S, Q, M = classes.tokens, classes.queries, classes.vocab_size
    Y, Z = (torch.rand(*shape, generator=generator, dtype=torch.float64) for shape in ((S, M), (Q, S)))
    return (2 * Y - 1) / M**0.5, (2 * Z - 1) / M**0.5


@dataclass(frozen=True, eq=False)
class Descent:
    """Mean loss of a batch (nats) and minus its gradients."""

    loss: Float[Tensor, "*runs"]
    decoder: Float[Tensor, "*runs S C"]
    attention: Float[Tensor, "*runs Q S"]


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences as counts.

    Attributes:
        counts: counts of the contextual tokens, non-negative, each row with a positive sum, ``[*runs, batch,
            S]``.
        query: number of each query, ``[*runs, batch]``.
        target: number of each class, ``[*runs, batch]``.
        weight: weight of each sequence in the loss, ``[batch]``. None: 1/batch.
        log_counts: logarithms of the counts, if they are known, ``[*runs, batch, S]``. None: computed where
            needed.
    """

    counts: Float[Tensor, "*runs batch S"]
    query: Int[Tensor, "*runs batch"]
    target: Int[Tensor, "*runs batch"]
    weight: Float[Tensor, " batch"] | None = None
    log_counts: Float[Tensor, "*runs batch S"] | None = None

    def descent(self, weights: Weights) -> Descent:
        """Computes the mean loss and the descent directions, by :func:`forward`."""
        return forward(weights, self)


@dataclass(frozen=True, eq=False)
class Pass(Descent):
    """Descent directions, the attention of each sequence, and the logits of the classes; the loss is weighted
    by :attr:`Batch.weight`.
    """

    attended: Float[Tensor, "*runs batch S"]
    logits: Float[Tensor, "*runs batch K"]


def attend(weights: Weights, batch: Batch) -> Float[Tensor, "*runs batch S"]:
    """Returns c, the attention to each contextual token; rows sum to one, tokens that do not occur in a
    sequence get zero.
    """
    rows = weights.attention  # a single query needs no copies of its row
    if rows.shape[-2] > 1:
        rows = rows.gather(-2, batch.query[..., None].expand(*batch.query.shape, rows.shape[-1]))
    logs = batch.counts.log() if batch.log_counts is None else batch.log_counts
    # x e^z in the log domain: no overflow, and log 0 gives exactly zero
    return torch.softmax(rows + logs, dim=-1)


def residuals(logits: Tensor, target: Tensor, rest: int) -> tuple[Tensor, Tensor]:
    """Returns e_n - alpha, ``[*runs, batch, C]``, and the loss of each sequence, nats, ``[*runs, batch]``."""
    index = target[..., None]
    if rest:  # the last column represents `rest` equal ones
        logits = torch.cat([logits[..., :-1], logits[..., -1:] + math.log(rest)], -1)
    top = logits.amax(-1, keepdim=True)
    target_logit = logits.gather(-1, index) - top
    # Leave the target out of the sum: 1 - alpha_n is then a sum of positive terms; the difference would
    # cancel.
    alpha = torch.exp(logits - top).scatter_(-1, index, 0.0)
    others = alpha.sum(-1, keepdim=True)
    total = others + target_logit.exp()
    residual = alpha.div_(-total).scatter_(-1, index, others / total)
    return residual, (total.log() - target_logit)[..., 0]


def forward(weights: Weights, batch: Batch) -> Pass:
    """Computes loss, attention, logits and closed-form descent directions (Lemma 1) of a batch; exact for any
    counts.
    """
    K = weights.decoder.shape[-1] - (weights.rest > 0)
    c = attend(weights, batch)  # [*runs, batch, S]
    f = c / torch.linalg.vector_norm(c, dim=-1, keepdim=True)
    logits = f @ weights.decoder
    residual, losses = residuals(logits, batch.target, weights.rest)
    share = 1 / batch.target.shape[-1] if batch.weight is None else batch.weight[:, None]
    residual *= share
    # The norm of f is one, so only the part of g that is orthogonal to f acts on the logits. f.g = f.(Y r) =
    # (f Y).r
    g = residual @ weights.decoder.mT
    dz = f * (g - f * (residual * logits).sum(-1, keepdim=True))
    dY = f.mT @ residual
    if weights.rest:  # each of the equal columns gets an equal part of the pooled residual
        dY[..., K:] /= weights.rest
    # One-hot numbers of the queries by comparison: torch's function checks every number first.
    to_query = (batch.query[..., None] == torch.arange(weights.attention.shape[-2])).to(f.dtype)
    dZ = to_query.mT @ dz
    return Pass((share * losses[..., None]).sum((-2, -1)), dY, dZ, c, logits[..., :K])


def population(classes: SequenceClasses) -> Callable[[int], Batch]:
    """Returns a function that gives, at every step, one batch of infinitely long sequences of all classes.

    A step on this batch is an Euler step of the exact population flow.
    """
    batch = Batch(classes.conditional, classes.query, torch.arange(classes.classes), classes.weights)
    return lambda step: batch  # the same batch in every step
