r"""Which part of given sequences of discrete tokens the theory can read: contexts of the most frequent query, and those of the others.

The theory is about one query whose samples alone train the MLP. So the sequences of the most frequent query are one subject; together with
those of other queries they are a second one, which breaks that assumption. Source: :cite:t:`tian2024joma`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from .problem import Contexts

MOST_SEQUENCES, MOST_CLASSES, MOST_TOKENS, MOST_QUERIES = 300, 20, 100, 5


@dataclass(frozen=True, eq=False)
class Subject:
    """What is read of the data. Source: :cite:t:`tian2024joma`.

    Attributes:
        own: contexts of the most frequent query, shares of tokens.
        all: these and contexts of other queries (at most four of them); query 0 is the most frequent one. None if there is no other.
        share: of all sequences, those that ask with the most frequent query.
        total: number of all sequences.
        classes: K, next tokens.
        token_ids: the id of each column; if there are more than 100, the last column is all rarer tokens together and has id -1.
    """

    own: Contexts
    all: Contexts | None
    share: float
    total: int
    classes: int
    token_ids: Int[Tensor, " M"]


def subject(
    ids: Int[Tensor, "n context"], query_ids: Int[Tensor, " n"], next_ids: Int[Tensor, " n"], generator: torch.Generator
) -> Subject | str:
    """The part of the sequences that the theory can read, or the reason why there is none.

    Args:
        ids: contextual tokens, ``[n, context]``.
        query_ids, next_ids: the tokens that ask and that follow, ``[n]``.
        generator: draws the sequences that are kept if there are more than 300.
    Source: :cite:t:`tian2024joma`.
    """
    asking = _most_frequent(query_ids, MOST_QUERIES)
    targets = _most_frequent(next_ids[query_ids == asking[0]], MOST_CLASSES)
    if len(targets) < 2:
        return f"needs at least two next tokens after the same query, got one in {int((query_ids == asking[0]).sum())} sequences"
    known = torch.isin(next_ids, targets)
    own, other = (query_ids == asking[0]) & known, torch.isin(query_ids, asking[1:]) & known
    picked = [_some(part.nonzero()[:, 0], generator) for part in (own, other)]
    words = _most_frequent(ids[picked[0]].flatten(), MOST_TOKENS)
    if len(words) < 2:
        return "needs at least two different contextual tokens, got one"
    rows = torch.cat(picked)
    counts = (ids[rows][:, :, None] == words).double().mean(1)
    rest = (1 - counts.sum(1, keepdim=True)).clamp(min=0)
    if float(rest.sum()) > 1e-9:
        counts, words = torch.cat([counts, rest], dim=1), torch.cat([words, torch.tensor([-1])])
    kinds = (query_ids[rows][:, None] == asking).long().argmax(1)
    nexts = (next_ids[rows][:, None] == targets).long().argmax(1)
    n = len(picked[0])
    whole = Contexts(counts, kinds, nexts) if len(rows) > n else None
    share = float((query_ids == asking[0]).double().mean())
    return Subject(Contexts(counts[:n], kinds[:n], nexts[:n]), whole, share, len(ids), len(targets), words)


def _most_frequent(ids: Int[Tensor, " n"], most: int) -> Int[Tensor, " k"]:
    values, counts = ids.unique(return_counts=True)
    return values[counts.argsort(descending=True, stable=True)[:most]]


def _some(rows: Int[Tensor, " n"], generator: torch.Generator) -> Int[Tensor, " k"]:
    return rows if len(rows) <= MOST_SEQUENCES else rows[torch.randperm(len(rows), generator=generator)[:MOST_SEQUENCES]].sort().values
