r"""Which part of given sequences the theory can read: those of one query, with next tokens that follow it more than once.

The theory treats one query at a time. Of its sequences the most frequent next tokens are kept as classes (20 if no other number is given),
and at most 2000 sequences. A next token that follows once is left out: it could be neither held out nor told from a shuffled one. Of each
class nearly a third of the sequences is held out; :math:`P(l | n)` is counted on the others.

Source: :cite:t:`tian2023scan`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .orders import distinctness
from .problem import CountedSequences, SequenceClasses, count_sequences

MOST_SEQUENCES, MOST_CLASSES, MOST_COUNTS = 2000, 20, 4_000_000
LEAST = 2  # sequences of a class
HELD_OUT = 0.3  # share of each class, rounded down


@dataclass(frozen=True, eq=False)
class Subject:
    """The sequences of one query.

    Attributes:
        query_id: its number in the vocabulary.
        counted: the sequences to learn from, as counts.
        held_out: others of the same classes, counts of the same tokens (tokens that were not learnt from are left out); None if there are
            too few.
        classes: P(l | n) estimated from ``counted``, one query.
        context: contextual tokens a sequence.
        asked: sequences that ask with this query, before rare next tokens and surplus sequences are left out.
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
        """Of all sequences, those that ask with this query."""
        return self.asked / self.total

    @property
    def kept(self) -> int:
        """Sequences that are read, held-out ones included."""
        return len(self.counted.target) + (0 if self.held_out is None else len(self.held_out.target))

    @property
    def distinctness(self) -> Float[Tensor, " S"]:
        """Share of the likeliest class in each token: between 1/K and 1."""
        return distinctness(self.classes.conditional)

    @property
    def frequency(self) -> Float[Tensor, " S"]:
        """Share of each token among the contextual tokens."""
        return self.classes.weights @ self.classes.conditional


@dataclass(frozen=True)
class Unread:
    """A query that the theory has nothing to say about, and why."""

    query_id: int
    asked: int
    reason: str


def subject(
    ids: Int[Tensor, "n context"],
    query_ids: Int[Tensor, " n"],
    next_ids: Int[Tensor, " n"],
    *,
    query_id: int,
    vocab_size: int,
    most: int,
    generator: torch.Generator,
) -> Subject | Unread:
    """The sequences of a query that the theory can read, or the reason why there are none.

    Args:
        ids, query_ids, next_ids: as :func:`~.analysis.analyse` has checked them.
        query_id: the query.
        vocab_size: M.
        most: classes.
        generator: draws what is held out and, of many sequences, which are kept.

    Source: :cite:t:`tian2023scan`.
    """
    asked = (query_ids == query_id).nonzero()[:, 0]
    if len(asked) == 1:
        return Unread(query_id, 1, "one sequence only: there is nothing to tell apart")
    if ids.shape[1] < 2 or len(ids[asked].unique()) < 2:
        return Unread(query_id, len(asked), "one contextual token only: attention has nothing to choose from")
    kept = _repeated(asked, next_ids, most)
    if len(next_ids[asked].unique()) == len(asked):
        return Unread(query_id, len(asked), "every sequence has a next token of its own, so shuffling them changes nothing")
    if len(kept):
        room = min(MOST_SEQUENCES, max(100, MOST_COUNTS // len(ids[kept].unique())))
        if len(kept) > room:
            kept = kept[torch.randperm(len(kept), generator=generator)[:room]].sort().values
            kept = _repeated(kept, next_ids, most)
    found = len(next_ids[kept].unique())
    if found < 2:
        came = f"got {('none', 'one')[found]} in {len(asked)} sequences"
        return Unread(query_id, len(asked), f"needs at least two next tokens that follow the query {LEAST} times or more, {came}")
    held = _held_out(next_ids[kept], generator)
    counted = count_sequences(ids[kept[~held]], query_ids[kept[~held]], next_ids[kept[~held]], vocab_size)
    K = len(counted.next_ids)
    classes = SequenceClasses(counted.conditional(), torch.zeros(K, dtype=torch.long), vocab_size, counted.shares())
    others = _like(counted, ids[kept[held]], next_ids[kept[held]])
    return Subject(query_id, counted, others, classes, ids.shape[1], len(asked), len(ids))


def _repeated(chosen: Int[Tensor, " m"], next_ids: Int[Tensor, " n"], most: int) -> Int[Tensor, " less"]:
    """Those whose next token is among the most frequent ones and follows often enough."""
    classes, counts = next_ids[chosen].unique(return_counts=True)
    frequent = counts.argsort(descending=True, stable=True)[:most]
    return chosen[torch.isin(next_ids[chosen], classes[frequent[counts[frequent] >= LEAST]])]


def _held_out(target: Int[Tensor, " n"], generator: torch.Generator) -> Tensor:
    """A random share of each class, rounded down, so that every class keeps a sequence to learn from; bool ``[n]``."""
    order = torch.randperm(len(target), generator=generator)
    order = order[target[order].argsort(stable=True)]
    _, member, counts = target[order].unique(return_inverse=True, return_counts=True)
    rank = torch.arange(len(target)) - (counts.cumsum(0) - counts)[member]
    held = torch.zeros(len(target), dtype=torch.bool)
    held[order] = rank < (HELD_OUT * counts).floor()[member]
    return held


def _like(counted: CountedSequences, ids: Int[Tensor, "n context"], next_ids: Int[Tensor, " n"]) -> CountedSequences | None:
    """Further sequences in the numbering of those counted; None if none of them has a known token."""
    place = torch.searchsorted(counted.token_ids, ids).clamp(max=len(counted.token_ids) - 1)
    known = counted.token_ids[place] == ids
    counts = torch.zeros(len(ids), len(counted.token_ids), dtype=torch.float64).scatter_add_(1, place, known.double())
    some = known.any(1)
    if not bool(some.any()):
        return None
    target = torch.searchsorted(counted.next_ids, next_ids[some])
    query = torch.zeros_like(target)
    return CountedSequences(counts[some], query, target, counted.token_ids, counted.query_ids, counted.next_ids, counted.vocab_size)
