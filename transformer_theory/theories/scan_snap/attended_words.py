r"""Which words attention goes to in a language model, beside what counting a text says of them.

For every query position whose pair (m, n) of word and next word was counted (:mod:`.continuations`) the weights of the words before it,
scaled to one, are compared with :math:`P(l \mid m, n)` and with P(l) (Pearson's correlation over positions; shuffled words read 0), and
their mean distinctness is compared with that of the same words attended uniformly. Beside it: the weight on the query's own position, and
the stable rank of W_QK. Means over queries.

Source: :cite:t:`tian2023scan`.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.measurement import Row
from ...core.sources import Source
from ...metrics.attention import diagonal_mass
from ...probes import Observation
from ...probes.reducers import rank_of
from .continuations import Continuations

CONDITIONAL = "correlation of attention and P(l | m, n)"
MARGINAL = "correlation of attention and P(l)"
DISTINCT = "distinctness of attended words"
DIAGONAL = "diagonal mass"
RANK = "stable rank of W_QK"
FEWEST = 3  # words before a query from which on it counts
Place = tuple[int, int]  # layer, first head


class AttendedWords:
    """Streams attention of a language model on known sequences; the probe's labels are the numbers of the sequences.

    Args:
        seen: ids of the sequences and the word after each, ``[n, length + 1]``; the model reads all but the last column.
        counted: of the text that the model learns.
    Rows a layer and head: "diagonal mass", "stable rank of W_QK" (if the module tells it), and, if any pair was counted, "correlation of
    attention and P(l | m, n)" and "... P(l)" (null 0) and "distinctness of attended words" (null: uniform attention).
    Raises:
        ValueError: in ``update``, if labels that number the sequences were not set.
    """

    def __init__(self, seen: Int[Tensor, "n longer"], counted: Continuations):
        self.ids, self.counted = seen[:, :-1], counted
        self.pairs = counted.find(seen[:, :-1], seen[:, 1:])
        self.reset()

    def reset(self) -> None:
        """Forgets what was read, not the sequences."""
        self.sums: dict[Place, Float[Tensor, "what heads"]] = {}
        self.counts: dict[Place, Float[Tensor, "what heads"]] = {}
        self.ranks: dict[Place, list[float]] = {}

    def update(self, seen: Observation, labels: Int[Tensor, " batch"] | None) -> None:
        """Adds the attention weights of one module."""
        if seen.weights is None:
            return
        if labels is None:
            raise ValueError("labels must number the sequences that are read, got none; set p.labels before each pass")
        place, weights = (seen.layer, seen.first_head), seen.weights.double().cpu()
        if seen.bilinear is not None:
            self.ranks[place] = [rank_of(W) for W in seen.bilinear]
        values = _per_query(weights, self.ids[labels.cpu()], self.pairs[labels.cpu()], self.counted)
        diagonal = diagonal_mass(weights)  # [batch, heads]
        sums = [diagonal.sum(0), *values.nan_to_num().sum(1)]
        counts = [torch.full_like(diagonal[0], len(diagonal)), *values.isfinite().double().sum(1)]
        self._add(place, torch.stack(sums), torch.stack(counts))

    def compute(self) -> Sequence[Row]:
        """Up to five rows a layer and head."""
        rows: list[Row] = []
        for place, sums in sorted(self.sums.items()):
            means = (sums / self.counts[place]).T.tolist()  # 0 / 0 where nothing was counted
            for number, (diagonal, conditional, marginal, distinct, uniform) in enumerate(means):
                found = [
                    (DIAGONAL, diagonal, None),
                    (CONDITIONAL, conditional, 0.0),
                    (MARGINAL, marginal, 0.0),
                    (DISTINCT, distinct, uniform),
                ]
                if place in self.ranks:
                    found.append((RANK, self.ranks[place][number], None))
                for quantity, value, null in found:
                    if math.isfinite(value):
                        where = {"layer": place[0], "head": place[1] + number, "source": str(Source("tian2023scan"))}
                        null = {} if null is None else {"null": null}
                        rows.append(Row(theory="scan_snap", quantity=quantity, value=value, **where, **null))
        return rows

    def merge(self, other: "AttendedWords") -> None:
        """Adds what another reducer of the same sequences saw."""
        self.ranks = {**other.ranks, **self.ranks}
        for place, sums in other.sums.items():
            self._add(place, sums, other.counts[place])

    def _add(self, place: Place, sums: Tensor, counts: Tensor) -> None:
        self.sums[place] = self.sums[place] + sums if place in self.sums else sums
        self.counts[place] = self.counts[place] + counts if place in self.counts else counts


def _per_query(
    weights: Float[Tensor, "batch heads q k"], ids: Int[Tensor, "batch q"], pairs: Int[Tensor, "batch q"], counted: Continuations
) -> Float[Tensor, "what rows heads"]:
    """Two correlations and two means of distinctness of each query whose pair was counted; NaN where they are not defined."""
    batch, query = ((pairs >= 0) & (torch.arange(pairs.shape[1]) >= FEWEST)).nonzero().T
    pair, words = pairs[batch, query], ids[batch]  # [rows], [rows, k]
    before = (torch.arange(ids.shape[1]) < query[:, None])[:, None]  # [rows, 1, k]
    attention = weights[batch, :, query]  # [rows, heads, k]
    conditional = counted.conditional[pair[:, None], words][:, None]
    marginal = counted.frequency[words][:, None]
    distinct = counted.distinctness[pair[:, None], words][:, None]
    known = before & distinct.isfinite()
    uniform = _mean(distinct, known.double(), known).expand(-1, weights.shape[1])
    return torch.stack(
        [
            _correlation(attention, conditional, before),
            _correlation(attention, marginal, before),
            _mean(distinct, attention, known),
            uniform,
        ]
    )


def _mean(values: Tensor, weights: Tensor, mask: Bool[Tensor, "rows 1 k"]) -> Float[Tensor, "rows heads"]:
    """Weighted mean over the masked keys; NaN without weight on any."""
    weights = torch.where(mask, weights, 0.0)
    return (torch.where(mask, values, 0.0) * weights).sum(-1) / weights.sum(-1)


def _correlation(a: Tensor, b: Tensor, mask: Bool[Tensor, "rows 1 k"]) -> Float[Tensor, "rows heads"]:
    """Pearson's correlation over the masked keys; NaN where one side is constant (to rounding)."""
    n = mask.double().sum(-1, keepdim=True)
    a, b = (torch.where(mask, x, 0.0) for x in (a, b))
    a, b = (torch.where(mask, x - x.sum(-1, keepdim=True) / n, 0.0) for x in (a, b))
    size = a.norm(dim=-1) * b.norm(dim=-1)
    return torch.where(size > 1e-12, (a * b).sum(-1) / size, torch.nan)
