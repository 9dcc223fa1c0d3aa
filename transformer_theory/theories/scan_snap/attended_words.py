r"""The words that a language model attends to, compared with counts of the text.

For a query word m that is followed by n, :math:`P(l \mid m, n)` is the probability of word l in the window
before m, counted for the most frequent pairs (m, n) of a text (:func:`count_continuations`). The
*distinctness* of word l for query m is
:math:`\max_n P(l \mid m, n) / \sum_n P(l \mid m, n)`: one if it occurs before one continuation only, 1/K if
it is equally likely before all K continuations. Rare words are distinct by chance, so the null is uniform
attention to the same words.

For every query position whose pair was counted, the weights of the preceding words, scaled to sum one, are
correlated with :math:`P(l \mid m, n)` and with P(l) (Pearson's correlation over positions), and their mean
distinctness is compared with that of uniform attention to the same words. Also measured: the weight on the
query's own position, and the stable rank of W_QK. Source: :cite:t:`tian2023scan`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.measurement import CORRELATION, Measurement, Null
from ...core.metric import Activations, PerModule, Place
from ...core.sources import Source
from ...metrics.attention import diagonal_mass
from ...metrics.networks import rank_of

CONDITIONAL = "correlation of attention and P(l | m, n)"
MARGINAL = "correlation of attention and P(l)"
DISTINCT = "distinctness of attended words"
DIAGONAL = "diagonal mass"
RANK = "stable rank of W_QK"
SOURCE = Source("tian2023scan")
MAX_PAIRS, MIN_OCCURRENCES = 300, 10
MIN_WORDS = 3  # smallest number of words before a counted query
NORM_ATOL = 1e-12  # product of norms below which a correlation is undefined


@dataclass(frozen=True, eq=False)
class Continuations:
    """The counted pairs of a text.

    Attributes:
        keys: m V + n of each pair (m, n), increasing, ``[pairs]``.
        conditional: P(l | m, n), rows sum to one, float64, ``[pairs, V]``.
        distinctness: distinctness of each word for the pair's query, ``[pairs, V]``; NaN for absent words and
            for queries with one pair.
        frequency: P(l) in the whole text, ``[V]``.
    """

    keys: Int[Tensor, " pairs"]
    conditional: Float[Tensor, "pairs V"]
    distinctness: Float[Tensor, "pairs V"]
    frequency: Float[Tensor, " V"]

    def find(self, query: Int[Tensor, "*n"], following: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
        """Returns the number of the pair (query, following), or -1 if it was not counted."""
        key = query * len(self.frequency) + following
        place = torch.searchsorted(self.keys, key).clamp(max=len(self.keys) - 1)
        return torch.where(self.keys[place] == key, place, -1)


def count_continuations(
    ids: Int[Tensor, " n"],
    *,
    vocab_size: int,
    context: int,
    max_pairs: int = MAX_PAIRS,
    min_occurrences: int = MIN_OCCURRENCES,
) -> Continuations:
    """Counts the words before the most frequent pairs (m, n) of a text. Only pairs that end a whole window
    count.

    Args:
        ids: ids of the words of the text, in ``[0, vocab_size)``, ``[n]``.
        vocab_size: V.
        context: words per window, the query included; at least 2.
        max_pairs: largest number of pairs; the most frequent ones are counted.
        min_occurrences: smallest number of occurrences of a counted pair.
    Raises:
        ValueError: no pair occurs often enough, or the window has no word before the query.
    """
    if context < 2:
        raise ValueError(f"context must be at least 2, a query and a word before it, got {context}")
    # queries with a whole window before and a word after them
    positions = torch.arange(context - 1, max(len(ids) - 1, context - 1))
    keys, member, counts = (ids[positions] * vocab_size + ids[positions + 1]).unique(
        return_inverse=True, return_counts=True
    )
    frequent = counts.argsort(descending=True, stable=True)[:max_pairs]
    selected = frequent[counts[frequent] >= min_occurrences].sort().values
    if not len(selected):
        largest = int(counts.max()) if len(counts) else 0
        raise ValueError(
            f"a pair of words must occur at least {min_occurrences} times to be counted, got {largest}; use "
            "more text"
        )
    # Renumber the selected pairs from zero and drop the positions of all other pairs.
    number = torch.full((len(keys),), -1)
    number[selected] = torch.arange(len(selected))
    rows = number[member]
    positions, rows = positions[rows >= 0], rows[rows >= 0]
    before = ids[positions[:, None] - torch.arange(1, context)]
    # Count over the flat index (pair, word) in one pass.
    table = torch.bincount(
        (rows[:, None] * vocab_size + before).flatten(), minlength=len(selected) * vocab_size
    )
    conditional = table.view(len(selected), vocab_size).double()
    conditional = conditional / conditional.sum(1, keepdim=True)
    _, query = (keys[selected] // vocab_size).unique(return_inverse=True)
    distinctness = torch.full_like(conditional, torch.nan)
    for q in range(int(query.max()) + 1):
        pairs = conditional[query == q]
        if len(pairs) > 1:
            # 0 / 0 = NaN where the word never precedes this query
            distinctness[query == q] = pairs.amax(0) / pairs.sum(0)
    frequency = torch.bincount(ids, minlength=vocab_size).double() / len(ids)
    return Continuations(keys[selected], conditional, distinctness, frequency)


class AttendedWords(PerModule):
    """Attention of a language model on given windows, compared with the counts of a text. The labels must
    number the windows.

    Rows per layer and head: "diagonal mass", and "stable rank of W_QK" if the bilinear form is known. If any
    pair was counted, also "correlation of attention and P(l | m, n)" and "... P(l)" (null: 0, for shuffled
    words), and "distinctness of attended words" (null: uniform attention). All values except the rank are
    means over queries.

    Args:
        windows: ids of each window and of the next word, ``[n, length + 1]``; the model's input omits the
            last column.
        counted: counted pairs of the training text.

    Attributes:
        sums: sums and numbers of terms, ``[2, 5, heads]``, by layer and first head. The five quantities are
            the diagonal mass, the two correlations, the distinctness, and the distinctness under uniform
            attention. By layer, first head and 1, the stable rank of W_QK, ``[heads]``.

    Raises:
        ValueError: no labels were set before ``update``.
    """

    kinds = ("attention",)
    theory, source = "scan_snap", SOURCE

    def __init__(self, windows: Int[Tensor, "n longer"], counted: Continuations):
        self.ids, self.counted = windows[:, :-1], counted
        self.pairs = counted.find(windows[:, :-1], windows[:, 1:])
        super().__init__()

    def add(self, place: Place, sums: Tensor) -> None:
        """Adds sums; the ranks are the same in every batch."""
        if len(place) == 3:
            self.sums[place] = sums
        else:
            super().add(place, sums)

    def statistics(self, activations: Activations) -> Float[Tensor, "2 5 heads"] | None:
        """Returns the sums of one module, and stores the ranks of its W_QK; None without weights."""
        if activations.weights is None:
            return None
        if activations.labels is None:
            raise ValueError("labels must number the windows, got none; set p.labels before each pass")
        known = activations.labels.cpu() >= 0
        weights, labels = activations.weights.double().cpu()[known], activations.labels.cpu()[known]
        if activations.bilinear is not None:
            ranks = torch.tensor([rank_of(W) for W in activations.bilinear], dtype=torch.float64)
            self.add((activations.layer, activations.first_head, 1), ranks)
        values = _per_query(weights, self.ids[labels], self.pairs[labels], self.counted)
        diagonal = diagonal_mass(weights)  # [batch, heads]
        sums = [diagonal.sum(0), *values.nan_to_num().sum(1)]
        counts = [torch.full_like(diagonal[0], len(diagonal)), *values.isfinite().double().sum(1)]
        return torch.stack([torch.stack(sums), torch.stack(counts)])

    def rows(
        self, place: Place, sums: Tensor, *ranks: Tensor, draws: int, generator: torch.Generator | None
    ) -> Iterator[Measurement]:
        """Yields up to five rows per head. If any ``draws`` are asked for, each null is its expected value,
        the only draw.
        """
        means = (sums[0] / sums[1]).T.tolist()  # 0 / 0 = NaN where no query was counted
        for head, (diagonal, conditional, marginal, distinct, uniform) in enumerate(means):
            zero, same = Null("shuffled words", (0.0,)), Null("uniform attention", (uniform,))
            found = [
                self.other_row(DIAGONAL, diagonal, unit="share"),
                self.other_row(CONDITIONAL, conditional, side=">=", nulls=(zero,), bounds=CORRELATION),
                self.other_row(MARGINAL, marginal, nulls=(zero,), bounds=CORRELATION),
                self.other_row(DISTINCT, distinct, side=">=", nulls=(same,), bounds=(0.0, 1.0)),
                *(self.other_row(RANK, float(each[head])) for each in ranks),
            ]
            for row in found:
                if row.value is not None:
                    yield replace(row, head=head, nulls=row.nulls if draws else ())


def _per_query(
    weights: Float[Tensor, "batch heads q k"],
    ids: Int[Tensor, "batch q"],
    pairs: Int[Tensor, "batch q"],
    counted: Continuations,
) -> Float[Tensor, "quantities rows heads"]:
    """Returns two correlations and two mean distinctnesses of each query whose pair was counted; NaN where
    they are undefined.
    """
    # One row per counted query of the batch; the keys after a query are masked below.
    batch, query = ((pairs >= 0) & (torch.arange(pairs.shape[1]) >= MIN_WORDS)).nonzero().T
    pair, words = pairs[batch, query], ids[batch]  # [rows], [rows, k]
    before = (torch.arange(ids.shape[1]) < query[:, None])[:, None]  # [rows, 1, k]
    attention = weights[batch, :, query]  # [rows, heads, k]
    conditional = counted.conditional[pair[:, None], words][:, None]
    marginal = counted.frequency[words][:, None]
    distinct = counted.distinctness[pair[:, None], words][:, None]
    known = before & distinct.isfinite()
    uniform = _mean(distinct, known.double(), known).expand(-1, weights.shape[1])
    correlations = [_correlation(attention, conditional, before), _correlation(attention, marginal, before)]
    return torch.stack([*correlations, _mean(distinct, attention, known), uniform])


def _mean(values: Tensor, weights: Tensor, mask: Bool[Tensor, "rows 1 k"]) -> Float[Tensor, "rows heads"]:
    """Returns the weighted mean over the masked keys; NaN if they have no weight."""
    weights = torch.where(mask, weights, 0.0)
    return (torch.where(mask, values, 0.0) * weights).sum(-1) / weights.sum(-1)


def _correlation(a: Tensor, b: Tensor, mask: Bool[Tensor, "rows 1 k"]) -> Float[Tensor, "rows heads"]:
    """Returns Pearson's correlation over the masked keys; NaN where one side is constant (to rounding)."""
    n = mask.double().sum(-1, keepdim=True)
    a, b = (torch.where(mask, x, 0.0) for x in (a, b))
    a, b = (torch.where(mask, x - x.sum(-1, keepdim=True) / n, 0.0) for x in (a, b))
    size = a.norm(dim=-1) * b.norm(dim=-1)
    return torch.where(size > NORM_ATOL, (a * b).sum(-1) / size, torch.nan)
