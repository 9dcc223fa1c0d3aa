r"""The part of a data set that the theory covers: the sequences of one query whose next tokens follow it at
least twice.

The theory treats one query at a time. The most frequent next tokens become classes, and at most 2000
sequences are used. Next tokens that follow only once are omitted. Of each class 30 % of the sequences,
rounded down, but at least one, are held out, and :math:`P(l | n)` is counted on the rest.

The *distinctness* of a token is :math:`\max_n P(l|n) / \sum_n P(l|n)`: 1 if it occurs in one class only, 1/K
if it is equally likely in all. :cite:t:`tian2023scan` defines these two extremes. They are rare in real data,
so a token counts as distinct if its distinctness is nearer to 1 than to 1/K.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.theory import Unsupported
from ...core.validation import converted
from ...data.queries import most_frequent, subsample
from .problem import CountedSequences, SequenceClasses, count_sequences

MAX_SEQUENCES, MAX_CLASSES = 2000, 20
MAX_COUNTS = 4_000_000  # entries of the dense counts [sequences, tokens]
MIN_SEQUENCES = 100  # number of sequences that are used even if their counts exceed MAX_COUNTS
MIN_PER_CLASS = 2  # smallest number of sequences of a class
HELD_OUT_SHARE = 0.3  # share of each class; the number of sequences is rounded down, but at least one


@converted(float64=("conditional",))
def distinctness(conditional: Float[Tensor, "K S"]) -> Float[Tensor, " S"]:
    """Returns max_n P(l | n) / sum_n P(l | n) of each token, between 1/K and 1.

    Args:
        conditional: P(l | n), ``[K, S]``; every token occurs in some class.
    """
    return conditional.max(0).values / conditional.sum(0)


@dataclass(frozen=True, eq=False)
class TokenGroups:
    """Masks of the distinct and the common tokens, ``[S]`` each, and a description of the rule that separates
    them.
    """

    distinct: Bool[Tensor, " S"]
    common: Bool[Tensor, " S"]
    rule: str


def token_groups(values: Float[Tensor, " S"], classes: int) -> TokenGroups:
    """Divides the tokens into distinct ones, whose distinctness is nearer to 1 than to 1/K, and common ones.

    If one group is empty, the groups are the most and the least distinct quarter of the tokens.

    Args:
        values: distinctness of each token, ``[S]``.
        classes: K.
    """
    distinct = values > (1 + 1 / classes) / 2
    if bool(distinct.any()) and not bool(distinct.all()):
        return TokenGroups(
            distinct,
            ~distinct,
            "distinct: nearer to occurring in one class only than to equal probabilities; common: the rest",
        )
    rank = values.argsort(stable=True).argsort(stable=True)
    S, size = len(rank), max(1, len(rank) // 4)
    return TokenGroups(
        rank >= S - size,
        rank < size,
        "distinct: the most distinct quarter of the tokens; common: the least distinct quarter",
    )


@dataclass(frozen=True, eq=False)
class QueryData:
    """The sequences of one query.

    Attributes:
        query_id: id of the query in the vocabulary.
        counted: training sequences as counts.
        held_out: held-out sequences of the same classes, as counts of the tokens that occur in training.
            None: no such sequence.
        classes: P(l | n) estimated from ``counted``, with a single query.
        context: contextual tokens per sequence.
        matching: number of sequences with this query, before rare next tokens and surplus sequences are
            omitted.
        total: number of all sequences.
    """

    query_id: int
    counted: CountedSequences
    held_out: CountedSequences | None
    classes: SequenceClasses
    context: int
    matching: int
    total: int

    @property
    def share(self) -> float:
        """Share of the sequences that have this query."""
        return self.matching / self.total

    @property
    def used(self) -> int:
        """Number of sequences that are used, training and held-out."""
        return len(self.counted.target) + (0 if self.held_out is None else len(self.held_out.target))

    @property
    def distinctness(self) -> Float[Tensor, " S"]:
        """Distinctness of each token, between 1/K and 1."""
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
    """Selects the sequences of a query that the theory covers, or returns the reason why it covers none.

    Args:
        ids, query_ids, next_ids: checked ids, see :func:`~.on_data.analyse`.
        query_id: id of the query.
        vocab_size: M.
        max_classes: largest number of classes.
        generator: draws the held-out sequences, and a subset if there are too many sequences.
    """
    matching = (query_ids == query_id).nonzero()[:, 0]
    if len(matching) == 1:
        return Unsupported("one sequence only: there is nothing to discriminate")
    if ids.shape[1] < 2 or len(ids[matching].unique()) < 2:
        return Unsupported("one contextual token only: attention has nothing to choose from")
    used = _with_frequent_classes(matching, next_ids, max_classes)
    if len(next_ids[matching].unique()) == len(matching):
        return Unsupported("every sequence has its own next token, so shuffling them changes nothing")
    if len(used):
        # The dense counts [sequences, tokens] must fit into memory.
        limit = min(MAX_SEQUENCES, max(MIN_SEQUENCES, MAX_COUNTS // len(ids[used].unique())))
        # A subset can leave a class with a single sequence, so select the classes again.
        used = _with_frequent_classes(subsample(used, limit, generator), next_ids, max_classes)
    class_count = len(next_ids[used].unique())
    if class_count < 2:
        count = f"got {('none', 'one')[class_count]} in {len(matching)} sequences"
        return Unsupported(
            f"needs at least two next tokens that follow the query {MIN_PER_CLASS} times or more, {count}"
        )
    held_out_mask = _held_out(next_ids[used], generator)
    training, held_out_rows = used[~held_out_mask], used[held_out_mask]
    counted = count_sequences(ids[training], query_ids[training], next_ids[training], vocab_size)
    K = len(counted.next_ids)
    classes = SequenceClasses(
        counted.conditional(), torch.zeros(K, dtype=torch.long), vocab_size, counted.shares()
    )
    held_out = _count_known_tokens(counted, ids[held_out_rows], next_ids[held_out_rows])
    return QueryData(query_id, counted, held_out, classes, ids.shape[1], len(matching), len(ids))


def _with_frequent_classes(
    rows: Int[Tensor, " m"], next_ids: Int[Tensor, " n"], max_classes: int
) -> Int[Tensor, " selected"]:
    """Returns the rows whose next token is among the most frequent ones of these rows and follows at least
    twice.
    """
    return rows[
        torch.isin(next_ids[rows], most_frequent(next_ids[rows], max_classes, min_count=MIN_PER_CLASS))
    ]


def _held_out(target: Int[Tensor, " n"], generator: torch.Generator) -> Bool[Tensor, " n"]:
    """Marks a random share of each class, rounded down, but at least one sequence; every class keeps one or
    more to learn from.
    """
    # Sort a random order by class, stably: the result is grouped by class and random within each class.
    order = torch.randperm(len(target), generator=generator)
    order = order[target[order].argsort(stable=True)]
    # Rank of each sequence within its class: its position minus the first position of the class. The lowest
    # ranks are held out.
    _, member, counts = target[order].unique(return_inverse=True, return_counts=True)
    rank = torch.arange(len(target)) - (counts.cumsum(0) - counts)[member]
    mask = torch.zeros(len(target), dtype=torch.bool)
    mask[order] = rank < (HELD_OUT_SHARE * counts).floor().clamp(min=1)[member]
    return mask


def _count_known_tokens(
    counted: CountedSequences, ids: Int[Tensor, "n context"], next_ids: Int[Tensor, " n"]
) -> CountedSequences | None:
    """Counts further sequences in the numbering of the counted ones; returns None if none of them has a known
    token.
    """
    # searchsorted gives the only number that an id can have. If another id is stored there, the id is unknown
    # and counts zero.
    place = torch.searchsorted(counted.token_ids, ids).clamp(max=len(counted.token_ids) - 1)
    known = counted.token_ids[place] == ids
    counts = torch.zeros(len(ids), len(counted.token_ids), dtype=torch.float64).scatter_add_(
        1, place, known.double()
    )
    has_known = known.any(1)
    if not bool(has_known.any()):
        return None
    target = torch.searchsorted(counted.next_ids, next_ids[has_known])
    query = torch.zeros_like(target)
    return CountedSequences(
        counts[has_known],
        query,
        target,
        counted.token_ids,
        counted.query_ids,
        counted.next_ids,
        counted.vocab_size,
    )
