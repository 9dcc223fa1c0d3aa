r"""Sequences of discrete tokens as samples of the theory's block, and the block trained on them.

The theory assumes that the samples of one query alone train the MLP. The first set of samples therefore
contains the contexts of the most frequent query only. The second set adds the contexts of other queries and
violates the assumption. The block has linear units and learns the next token with cross-entropy, by gradient
flow from a small Gaussian start. Source: :cite:t:`tian2024joma`.
"""

from dataclasses import dataclass
from typing import no_type_check

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ...core.statistics import RANGE_DRAWS, fixed_generator, permutations
from ...core.theory import Unsupported
from ...data.queries import most_frequent, subsample
from .block import Block, Contexts, Exponential, Softmax, gaussian_block
from .dynamics import Model, Path, gradient_flow
from .invariants import drift, factorisation_error, fixed_mean, mean_attention, moving_mean

MAX_SEQUENCES, MAX_CLASSES, MAX_TOKENS, MAX_QUERIES = 300, 20, 100, 5
# time step, default number of steps and saving interval of the gradient flow
TIME_STEP, STEPS, SAVE_EVERY = 0.5, 100, 2
SCALE = 0.1  # standard deviation of the start
RARE = -1  # id of the column that holds all tokens beyond the most frequent ones


@dataclass(frozen=True, eq=False)
class Sample:
    """Samples of the block.

    Attributes:
        one_query: contexts of the most frequent query, as shares of tokens.
        all_queries: contexts of the most frequent query, number 0, and of other queries. None: there are no
            other queries.
        token_ids: id of each column, ``[M]``; :data:`RARE` for the column that holds all rarer tokens.
    """

    one_query: Contexts
    all_queries: Contexts | None
    token_ids: Int[Tensor, " M"]

    @property
    def has_choice(self) -> bool:
        """Whether softmax attention can move: some context of the one query contains more than one token."""
        return bool(((self.one_query.counts > 0).sum(1) > 1).any())


@dataclass(frozen=True, eq=False)
class QueryData:
    """Sequences, their most frequent queries, and the next tokens to learn.

    Attributes:
        context: ids of the contextual tokens, ``[n, context]``.
        query: id of the query of each sequence, ``[n]``.
        next_token: id of the token that follows each sequence, ``[n]``.
        queries: ids of up to five most frequent queries, most frequent first.
        classes: ids of up to twenty most frequent next tokens of the first query.
    """

    context: Int[Tensor, "n context"]
    query: Int[Tensor, " n"]
    next_token: Int[Tensor, " n"]
    queries: Int[Tensor, " q"]
    classes: Int[Tensor, " K"]

    @property
    def share(self) -> float:
        """Share of the sequences that have the most frequent query."""
        return float((self.query == self.queries[0]).double().mean())

    def sample(self) -> Sample:
        """Returns at most 300 sequences with the most frequent query and at most 300 with other queries, all
        followed by a class.

        If there are more sequences, the subsets are random; they are the same in every call.
        """
        generator = fixed_generator()
        has_class = torch.isin(self.next_token, self.classes)
        masks = (
            (self.query == self.queries[0]) & has_class,
            torch.isin(self.query, self.queries[1:]) & has_class,
        )
        first, others = (subsample(mask.nonzero()[:, 0], MAX_SEQUENCES, generator) for mask in masks)
        words = most_frequent(self.context[first].flatten(), MAX_TOKENS)
        rows, n = torch.cat([first, others]), len(first)
        counts = (self.context[rows][:, :, None] == words).double().mean(1)
        # All rarer tokens share one more column, so that every row sums to one. A total below 1e-9 is
        # rounding.
        rare_share = (1 - counts.sum(1, keepdim=True)).clamp(min=0)
        if float(rare_share.sum()) > 1e-9:
            counts, words = torch.cat([counts, rare_share], dim=1), torch.cat([words, torch.tensor([RARE])])
        query = (self.query[rows][:, None] == self.queries).long().argmax(1)
        targets = (self.next_token[rows][:, None] == self.classes).long().argmax(1)
        all_queries = Contexts(counts, query, targets) if len(rows) > n else None
        return Sample(Contexts(counts[:n], query[:n], targets[:n]), all_queries, words)


def select_query(
    context: Int[Tensor, "n context"], query: Int[Tensor, " n"], next_token: Int[Tensor, " n"]
) -> QueryData | Unsupported:
    """Selects the most frequent queries and next tokens, or returns the reason why the theory does not apply.

    Args:
        context: ids of the contextual tokens, ``[n, context]``.
        query, next_token: ids of the query and of the token that follows, ``[n]``.
    """
    queries = most_frequent(query, MAX_QUERIES)
    first = query == queries[0]
    classes = most_frequent(next_token[first], MAX_CLASSES)
    if len(classes) < 2:
        return Unsupported(
            f"needs at least two next tokens after the same query, got one in {int(first.sum())} sequences"
        )
    if len(context[first & torch.isin(next_token, classes)].unique()) < 2:
        return Unsupported("needs at least two different contextual tokens, got one")
    return QueryData(context, query, next_token, queries, classes)


@dataclass(frozen=True, eq=False)
class SoftmaxRun:
    """A flow with softmax attention: run 0 learns the next tokens of the data, the others learn shuffled next
    tokens.

    Attributes:
        times: times of the flow, ``[t]``.
        measured: measured change of z, ``[t, runs, M]``.
        fixed, moving: predicted change, with the mean attention at the start and at each time, ``[t, runs,
            M]``.
        shift: total variation distance between the mean attention of run 0 at the start and at the end.
        factorisation_error: share of dz/dt of run 0 that the factorisation loses, the larger of start and
            end.
    """

    times: Float[Tensor, " t"]
    measured: Float[Tensor, "t runs M"]
    fixed: Float[Tensor, "t runs M"]
    moving: Float[Tensor, "t runs M"]
    shift: float
    factorisation_error: float


@dataclass(frozen=True, eq=False)
class ExponentialRun:
    """A flow with exponential attention.

    Attributes:
        squares, logits: change of sum v^2 / 2 and of z for query 0, ``[M]``; the invariant says that they are
            equal.
        drift: the largest change of their difference over tokens and times, as a share of the largest change
            of z.
    """

    squares: Float[Tensor, " M"]
    logits: Float[Tensor, " M"]
    drift: float


@dataclass(frozen=True)
class OneQuery(Model):
    r"""Softmax attention of a single query and linear units: the dynamics of :class:`.Model` without arrays
    of shape ``[*runs, n, M]``.

    All samples share the logits z of the query, so :math:`b_i = w \circ x_i / A_i` with :math:`w = e^{(z -
    \max z)/T}` and :math:`A_i = w^\top x_i`. Let :math:`p_{ik} = v_k^\top b_i` and :math:`G_k = \sum_i g_{ik}
    b_i`. The velocity needs two products with the counts, which all runs share:

    .. math:: n \dot v_k = G_k, \qquad n T \dot z = \sum_k v_k \circ G_k - \sum_i \big(\textstyle\sum_k g_{ik}
        p_{ik}\big)\, b_i .
    """

    @no_type_check
    def velocity(self, block: Block, contexts: Contexts) -> Block:
        """Returns the right-hand side of the flow for samples of one query."""
        weights, totals, p = self._projections(block, contexts.counts)
        g = self.loss(p + block.offset.mT, contexts.targets)[1]
        n, K = g.shape[-2:]
        # The column of sums over k yields the second term of dz/dt from the same product with the counts as
        # G.
        factors = torch.cat([g, (g * p).sum(-1, keepdim=True)], dim=-1) / totals[..., None]
        products = (factors.mT.reshape(-1, n) @ contexts.counts).view(
            *totals.shape[:-1], K + 1, -1
        ) * weights[..., None, :]
        G = products[..., :K, :]
        pull = (block.lower * G).sum(-2) - products[..., K, :]
        return Block(
            (self.rate_logits * 2 * self.attention.factor / n * pull)[..., None, :],
            self.rate_lower * (G / n - self.decay * block.lower),
            self.rate_lower * (g.mean(-2)[..., None] - self.decay * block.offset),
        )

    @no_type_check
    def mean_loss(self, block: Block, contexts: Contexts) -> Float[Tensor, "*runs"]:
        """Returns the mean loss over the samples."""
        return self.loss(self._projections(block, contexts.counts)[2] + block.offset.mT, contexts.targets)[
            0
        ].mean(-1)

    @no_type_check
    def attend(self, block: Block, contexts: Contexts) -> Float[Tensor, "*runs n M"]:
        """Returns the mean of b over the samples as the row of every sample, which has the same mean over
        samples.
        """
        weights, totals = self._weights(block, contexts.counts)
        mean = weights * (totals.reciprocal() @ contexts.counts) / len(contexts.counts)
        return mean[..., None, :].expand(*mean.shape[:-1], len(contexts.counts), mean.shape[-1])

    def _weights(self, block: Block, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Returns w, ``[*runs, M]``, and A, ``[*runs, n]``."""
        z = 2 * self.attention.factor * block.logits[..., 0, :]  # z / T
        weights = (z - z.amax(-1, keepdim=True)).exp()
        return weights, weights @ counts.mT

    def _projections(self, block: Block, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns w, A and p, ``[*runs, n, K]``."""
        weights, totals = self._weights(block, counts)
        # one product for all runs and units
        products = (block.lower * weights[..., None, :]).flatten(0, -2) @ counts.mT
        return weights, totals, products.view(*block.lower.shape[:-1], -1).mT / totals[..., None]


def softmax_run(
    contexts: Contexts, *, units: int, generator: Generator, steps: int = STEPS, draws: int = RANGE_DRAWS
) -> SoftmaxRun:
    """Trains one block on the targets, and others on shuffled targets, all from one start.

    Args:
        contexts: contexts of one query; at least one contains more than one token.
        units: K.
        generator: draws the start.
        steps: number of steps of the flow, each of time 1/2.
        draws: number of blocks that learn shuffled targets. The shuffles depend only on the number of
            contexts.
    Raises:
        NotConverged: a state is not finite.
    """
    exact, model = Model(Softmax()), OneQuery(Softmax())
    shuffled = contexts.targets[permutations(len(contexts.query), draws)]
    runs = Contexts(contexts.counts, contexts.query, torch.cat([contexts.targets[None], shuffled]))
    start = gaussian_block(contexts, units=units, scale=SCALE, generator=generator)
    # All runs start from the same weights, so that only the targets distinguish them: repeat each tensor
    # along a leading axis of runs.
    starts = Block(
        *(part.expand(1 + draws, *part.shape) for part in (start.logits, start.lower, start.offset))
    )
    path = gradient_flow(
        starts, runs, model, step=TIME_STEP, steps=steps, save_steps=range(0, steps, SAVE_EVERY)
    )
    z, mean = path.states.logits[..., 0, :], mean_attention(model, runs, path)[:, 0]
    states = path.states
    # The factorisation is measured in run 0, at the start and at the end.
    ends = Path(
        path.times[[0, -1]],
        Block(*(part[[0, -1], 0] for part in (states.logits, states.lower, states.offset))),
        path.loss[[0, -1], 0],
    )
    return SoftmaxRun(
        path.times,
        z - z[0],
        fixed_mean(model, runs, path),
        moving_mean(model, runs, path),
        float((mean[-1] - mean[0]).abs().sum()) / 2,
        float(factorisation_error(exact, contexts, ends).max()),
    )


def exponential_run(
    contexts: Contexts, *, units: int, generator: Generator, steps: int = STEPS
) -> ExponentialRun:
    """Trains a block with exponential attention.

    Args:
        contexts: contexts of one query or several.
        units: K.
        generator: draws the start.
        steps: number of steps of the flow, each of time 1/2.
    Raises:
        NotConverged: a state is not finite.
    """
    form = Exponential()
    start = gaussian_block(contexts, units=units, scale=SCALE, generator=generator)
    path = gradient_flow(
        start, contexts, Model(form), step=TIME_STEP, steps=steps, save_steps=range(0, steps, SAVE_EVERY)
    )
    squares, z = path.states.lower.square().sum(-2) / 2, path.states.logits[:, 0]
    return ExponentialRun(
        squares[-1] - squares[0], z[-1] - z[0], float(drift(form, path)) / float((z - z[0]).abs().max())
    )
