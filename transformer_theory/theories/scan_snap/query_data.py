r"""The part of a data set that the theory covers: the sequences of one query whose next tokens follow it at least twice.

The theory treats one query at a time. The most frequent next tokens become classes, and at most 2000 sequences are used. A next token that
follows only once is omitted: it cannot be held out, and shuffling cannot change it. Of each class nearly a third of the sequences is held
out; :math:`P(l | n)` is counted on the rest.

The *distinctness* of a token is :math:`\max_n P(l|n) / \sum_n P(l|n)`: 1 if it occurs in one class only, 1/K if it is equally likely in
all. :cite:t:`tian2023scan` defines these two ends. They are rare in real data, so a token counts as distinct if it is nearer to the first
end than to the second.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.theory import Unsupported
from ...core.validation import converted
from .problem import CountedSequences, SequenceClasses, count_sequences

MAX_SEQUENCES, MAX_CLASSES, MAX_COUNTS = 2000, 20, 4_000_000
MIN_SEQUENCES = 100  # used even if their counts exceed MAX_COUNTS
MIN_PER_CLASS = 2
HELD_OUT_SHARE = 0.3  # of each class, rounded down


@converted(float64=("conditional",))
def distinctness(conditional: Float[Tensor, "K S"]) -> Float[Tensor, " S"]:
    """Share of the likeliest class in each token, between 1/K and 1.

    Args:
        conditional: P(l | n), ``[K, S]``; every token occurs in some class.
    """
    return conditional.max(0).values / conditional.sum(0)


@dataclass(frozen=True, eq=False)
class TokenGroups:
    """Distinct and common tokens, ``[S]`` each, and the rule that separates them."""

    distinct: Bool[Tensor, " S"]
    common: Bool[Tensor, " S"]
    rule: str


def token_groups(values: Float[Tensor, " S"], classes: int) -> TokenGroups:
    """Distinct tokens are nearer to 1 than to 1/K. If that leaves a group empty: the most and the least distinct quarter.

    Args:
        values: distinctness of each token, ``[S]``.
        classes: K.
    """
    distinct = values > (1 + 1 / classes) / 2
    if bool(distinct.any()) and not bool(distinct.all()):
        return TokenGroups(
            distinct, ~distinct, "distinct: nearer to occurring in one class only than to equal probabilities; common: the rest"
        )
    rank = values.argsort(stable=True).argsort(stable=True)
    S, size = len(rank), max(1, len(rank) // 4)
    return TokenGroups(
        rank >= S - size, rank < size, "distinct: the most distinct quarter of the tokens; common: the least distinct quarter"
    )


@dataclass(frozen=True, eq=False)
class QueryData:
    """The sequences of one query.

    Attributes:
        query_id: id of the query in the vocabulary.
        counted: training sequences as counts.
        held_out: held-out sequences of the same classes, as counts of the training tokens (other tokens are omitted); None if there are
            none.
        classes: P(l | n) estimated from ``counted``, one query.
        context: contextual tokens per sequence.
        asked: sequences with this query, before rare next tokens and surplus sequences are omitted.
        total: number of all sequences.
    """

    query_id: int
    counted: CountedSequences
    held_out: CountedSequences | None
    classes: SequenceClasses
    context: int
    asked: int
    total: int

    @property
    def share(self) -> float:
        """Share of the sequences with this query among all."""
        return self.asked / self.total

    @property
    def used(self) -> int:
        """Sequences that are used, held-out ones included."""
        return len(self.counted.target) + (0 if self.held_out is None else len(self.held_out.target))

    @property
    def distinctness(self) -> Float[Tensor, " S"]:
        """Share of the likeliest class in each token, between 1/K and 1."""
        return distinctness(self.classes.conditional)

    @property
    def frequency(self) -> Float[Tensor, " S"]:
        """Share of each token among the contextual tokens."""
        return self.classes.weights @ self.classes.conditional


def select_query(
    ids: Int[Tensor, "n context"],
    query_ids: Int[Tensor, " n"],
    next_ids: Int[Tensor, " n"],
    *,
    query_id: int,
    vocab_size: int,
    max_classes: int,
    generator: torch.Generator,
) -> QueryData | Unsupported:
    """The sequences of a query that the theory covers, or the reason why it covers none.

    Args:
        ids, query_ids, next_ids: checked ids, see :func:`~.on_data.analyse`.
        query_id: the query.
        vocab_size: M.
        max_classes: largest number of classes.
        generator: draws the held-out sequences and, of more than fit, those that are used.
    """
    asked = (query_ids == query_id).nonzero()[:, 0]
    if len(asked) == 1:
        return Unsupported("one sequence only: there is nothing to discriminate")
    if ids.shape[1] < 2 or len(ids[asked].unique()) < 2:
        return Unsupported("one contextual token only: attention has nothing to choose from")
    used = _with_frequent_classes(asked, next_ids, max_classes)
    if len(next_ids[asked].unique()) == len(asked):
        return Unsupported("every sequence has its own next token, so shuffling them changes nothing")
    if len(used):
        # the dense counts [sequences, tokens] must fit into memory
        limit = min(MAX_SEQUENCES, max(MIN_SEQUENCES, MAX_COUNTS // len(ids[used].unique())))
        if len(used) > limit:
            used = used[torch.randperm(len(used), generator=generator)[:limit]].sort().values
            used = _with_frequent_classes(used, next_ids, max_classes)
    classes_found = len(next_ids[used].unique())
    if classes_found < 2:
        count = f"got {('none', 'one')[classes_found]} in {len(asked)} sequences"
        return Unsupported(f"needs at least two next tokens that follow the query {MIN_PER_CLASS} times or more, {count}")
    held = _held_out(next_ids[used], generator)
    counted = count_sequences(ids[used[~held]], query_ids[used[~held]], next_ids[used[~held]], vocab_size)
    K = len(counted.next_ids)
    classes = SequenceClasses(counted.conditional(), torch.zeros(K, dtype=torch.long), vocab_size, counted.shares())
    held_out = _count_known_tokens(counted, ids[used[held]], next_ids[used[held]])
    return QueryData(query_id, counted, held_out, classes, ids.shape[1], len(asked), len(ids))


def _with_frequent_classes(chosen: Int[Tensor, " m"], next_ids: Int[Tensor, " n"], max_classes: int) -> Int[Tensor, " less"]:
    """The sequences whose next token is among the most frequent ones and follows often enough."""
    classes, counts = next_ids[chosen].unique(return_counts=True)
    frequent = counts.argsort(descending=True, stable=True)[:max_classes]
    return chosen[torch.isin(next_ids[chosen], classes[frequent[counts[frequent] >= MIN_PER_CLASS]])]


def _held_out(target: Int[Tensor, " n"], generator: torch.Generator) -> Bool[Tensor, " n"]:
    """A random share of each class, rounded down, so that every class keeps a sequence to learn from."""
    order = torch.randperm(len(target), generator=generator)
    order = order[target[order].argsort(stable=True)]
    # the rank of each sequence within its class, in random order; the first of each class are held out
    _, member, counts = target[order].unique(return_inverse=True, return_counts=True)
    rank = torch.arange(len(target)) - (counts.cumsum(0) - counts)[member]
    held = torch.zeros(len(target), dtype=torch.bool)
    held[order] = rank < (HELD_OUT_SHARE * counts).floor()[member]
    return held


def _count_known_tokens(counted: CountedSequences, ids: Int[Tensor, "n context"], next_ids: Int[Tensor, " n"]) -> CountedSequences | None:
    """Further sequences in the numbering of the counted ones; None if none of them has a known token."""
    place = torch.searchsorted(counted.token_ids, ids).clamp(max=len(counted.token_ids) - 1)
    known = counted.token_ids[place] == ids
    counts = torch.zeros(len(ids), len(counted.token_ids), dtype=torch.float64).scatter_add_(1, place, known.double())
    has_known = known.any(1)
    if not bool(has_known.any()):
        return None
    target = torch.searchsorted(counted.next_ids, next_ids[has_known])
    query = torch.zeros_like(target)
    return CountedSequences(counts[has_known], query, target, counted.token_ids, counted.query_ids, counted.next_ids, counted.vocab_size)
