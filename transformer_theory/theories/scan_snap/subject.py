r"""Which part of given sequences the theory can read, how distinct their tokens are, and how to compare two orders of tokens.

The theory treats one query at a time: the sequences of the most frequent query are read. The *distinctness* of a token is
:math:`\max_n P(l|n) / \sum_n P(l|n)`: 1 if it occurs in one class only, 1/K if it is equally likely in all. The query is the class
token or the last token, and the next token its class (:cite:t:`tian2023scan`).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...data.tokens import TokenData
from .problem import CountedSequences, SequenceClasses, count_sequences

MOST_SEQUENCES, MOST_CLASSES, MOST_COUNTS = 2000, 50, 4_000_000
DISTINCT = 0.5  # a token counts as distinct if its likeliest class outweighs all others together


@dataclass(frozen=True, eq=False)
class Subject:
    """The sequences of the most frequent query.

    Attributes:
        counted: their tokens as counts.
        classes: P(l | n) estimated from them, one query.
        context: contextual tokens a sequence.
        share: of all sequences, those that ask with this query (before rare classes and surplus sequences are left out).
        total: number of all sequences.
    """

    counted: CountedSequences
    classes: SequenceClasses
    context: int
    share: float
    total: int

    @property
    def distinctness(self) -> Float[Tensor, " S"]:
        """Share of the likeliest class in each token: between 1/K and 1."""
        P = self.classes.conditional
        return P.max(0).values / P.sum(0)

    @property
    def frequency(self) -> Float[Tensor, " S"]:
        """Share of each token among the contextual tokens."""
        return self.classes.weights @ self.classes.conditional


def subject(data: TokenData, generator: torch.Generator) -> Subject | str:
    """The part of the data that the theory can read, or the reason why there is none.

    The word at the query's position asks (the last one, if no position holds the query); the words at the others are the context.

    At most the 50 most frequent classes and 2000 sequences (fewer for thousands of words; drawn by the generator) are kept.
    """
    assert data.ids is not None
    assert data.next_id is not None
    assert data.vocab_size is not None
    if data.ids.shape[1] < 3:
        return f"needs sequences of at least two contextual tokens and a query, got {data.ids.shape[1]} tokens"
    place = data.ids.shape[1] - 1 if data.query_position is None else data.query_position
    query, context = data.ids[:, place], torch.cat([data.ids[:, :place], data.ids[:, place + 1 :]], dim=1)
    asked = (query == torch.bincount(query).argmax()).nonzero()[:, 0]
    classes, counts = data.next_id[asked].unique(return_counts=True)
    frequent = classes[counts.argsort(descending=True, stable=True)[:MOST_CLASSES]]
    if len(frequent) < 2:
        return f"needs at least two next tokens after the same query, got one in the {len(asked)} sequences of the most frequent query"
    kept = asked[torch.isin(data.next_id[asked], frequent)]
    most = min(MOST_SEQUENCES, max(100, MOST_COUNTS // len(context[kept].unique())))
    if len(kept) > most:
        kept = kept[torch.randperm(len(kept), generator=generator)[:most]].sort().values
    counted = count_sequences(context[kept], query[kept], data.next_id[kept], max(data.vocab_size, 2))
    K = len(counted.next_ids)
    if K < 2:
        return f"needs at least two next tokens after the same query, got one in {len(kept)} sequences"
    found = SequenceClasses(counted.conditional(), torch.zeros(K, dtype=torch.long), counted.vocab_size, counted.shares())
    return Subject(counted, found, data.ids.shape[1] - 1, len(asked) / len(data), len(data))


@dataclass(frozen=True, eq=False)
class Groups:
    """Which tokens count as distinct and which as common, ``[S]`` each, and the rule in words."""

    distinct: Bool[Tensor, " S"]
    common: Bool[Tensor, " S"]
    rule: str


def groups(distinctness: Float[Tensor, " S"]) -> Groups:
    """Distinct: the likeliest class outweighs all others together. If that leaves a group empty: the most and least distinct quarter."""
    distinct = distinctness > DISTINCT
    if bool(distinct.any()) and not bool(distinct.all()):
        return Groups(distinct, ~distinct, "distinct: more likely in one class than in all others together; common: the rest")
    rank = distinctness.argsort(stable=True).argsort(stable=True)
    S, size = len(rank), max(1, len(rank) // 4)
    return Groups(rank >= S - size, rank < size, "distinct: the quarter of the tokens that is most distinct; common: the least")


def agreement(a: Float[Tensor, " S"], b: Float[Tensor, "*runs S"]) -> Float[Tensor, "*runs"]:
    """Goodman and Kruskal's rank correlation: concordant minus discordant pairs, as a share of both; ties do not count.

    Returns:
        A number in [-1, 1] a run; NaN if every pair is tied.
    """
    order = torch.sign(a[:, None] - a) * torch.sign(b[..., :, None] - b[..., None, :])
    return order.sum((-1, -2)) / order.abs().sum((-1, -2))


def chance(a: Float[Tensor, " S"], b: Float[Tensor, " S"], generator: torch.Generator) -> float:
    """The agreement that 95 % of random orders stay below (200 permutations); NaN if every pair is tied."""
    permuted = torch.stack([b[torch.randperm(len(b), generator=generator)] for _ in range(200)])
    values = agreement(a, permuted)
    return float(values.quantile(0.95)) if bool(torch.isfinite(values).all()) else math.nan
