r"""What counting says of a text: :math:`P(l \mid m, n)`, how often word l stands before a query word m that is followed by n.

Scan-and-snap speaks of one query m at a time, of its classes n and of the words l that distinguish them. Of a real text the most frequent
pairs (m, n) are counted, with the words of the window before the query. The *distinctness* of word l for query m is
:math:`\max_n P(l \mid m, n) / \sum_n P(l \mid m, n)`: one if it stands before one continuation only, 1/K if before all K alike. (Rare
words have one by chance; so it is compared over the same words.)

Source: :cite:t:`tian2023scan`.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

PAIRS, LEAST = 300, 10


@dataclass(frozen=True, eq=False)
class Continuations:
    """The counted pairs of a text.

    Attributes:
        keys: m V + n of each pair, rising, ``[pairs]``.
        conditional: P(l | m, n), rows sum to one, float64, ``[pairs, V]``.
        distinctness: of each word for the pair's query, NaN where it never occurs or the query has one pair only, ``[pairs, V]``.
        frequency: P(l) in the whole text, ``[V]``.
    """

    keys: Int[Tensor, " pairs"]
    conditional: Float[Tensor, "pairs V"]
    distinctness: Float[Tensor, "pairs V"]
    frequency: Float[Tensor, " V"]

    def find(self, query: Int[Tensor, "*n"], following: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """Number of the pair (query, following); -1 if it was not counted."""
        wanted = query * len(self.frequency) + following
        place = torch.searchsorted(self.keys, wanted).clamp(max=len(self.keys) - 1)
        return torch.where(self.keys[place] == wanted, place, -1)


def count_continuations(ids: Int[Tensor, " n"], *, vocab_size: int, context: int, pairs: int = PAIRS, least: int = LEAST) -> Continuations:
    """Counts the ``pairs`` most frequent pairs that occur ``least`` times or more behind a whole window.

    Args:
        ids: the text, in ``[0, vocab_size)``.
        vocab_size: V.
        context: words of a window, the query included; at least 2.
        pairs: how many, the most frequent first.
        least: occurrences below which a pair is not counted.
    Raises:
        ValueError: no pair occurs so often, or the window has no word before the query. Source: :cite:t:`tian2023scan`.
    """
    if context < 2:
        raise ValueError(f"context must be at least 2, a query and a word before it, got {context}")
    at = torch.arange(context - 1, max(len(ids) - 1, context - 1))
    key = ids[at] * vocab_size + ids[at + 1]
    found, member, counts = key.unique(return_inverse=True, return_counts=True)
    often = counts.argsort(descending=True, stable=True)[:pairs]
    kept = often[counts[often] >= least].sort().values
    if not len(kept):
        most = int(counts.max()) if len(counts) else 0
        raise ValueError(f"a pair of words must occur at least {least} times to be counted, got {most}; lower least, or take more text")
    number = torch.full((len(found),), -1)
    number[kept] = torch.arange(len(kept))
    rows = number[member]
    at, rows = at[rows >= 0], rows[rows >= 0]
    before = ids[at[:, None] - torch.arange(1, context)]
    table = torch.bincount((rows[:, None] * vocab_size + before).flatten(), minlength=len(kept) * vocab_size)
    conditional = table.view(len(kept), vocab_size).double()
    conditional = conditional / conditional.sum(1, keepdim=True)
    _, query = (found[kept] // vocab_size).unique(return_inverse=True)
    distinctness = torch.full_like(conditional, torch.nan)
    for number in range(int(query.max()) + 1):
        own = conditional[query == number]
        if len(own) > 1:
            distinctness[query == number] = own.amax(0) / own.sum(0)  # 0 / 0 where the word never stands before this query
    frequency = torch.bincount(ids, minlength=vocab_size).double() / len(ids)
    return Continuations(found[kept], conditional, distinctness, frequency)
