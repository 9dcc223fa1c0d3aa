r"""The quantities of the ladder, for one attention step Z -> Z+ and for the code after it.

With the tokens centred and scaled to norm one, as in :mod:`..in_networks`, and the step's own subspaces
U_[K],

    c(U, Z+) = 1 - R^c(Z+; U) / R^c(Z; U),      headline T = c(U, Z+) - median over rotations O of c(O U, Z+).

Averaging makes tokens alike in any subspaces, and how much depends on the size of the step. T has the null
median 0 on every rung, so the rungs can be compared. Its first null consists of the compressions in the
subspaces O U_k minus their median.

The first null has a gap: subspaces that were fitted or trained hold more energy of the tokens than rotated
ones, and an update that ignores them returns this energy to the mean. R^c then falls more in U than in O U.
The second null therefore keeps Z and U and rotates the update (:mod:`.updates`): draw j is T of the rotated
update Z+_j,

    T_j = c(U, Z+_j) - median over i of c(O_i U, Z+_i).

T - T_j is the interaction of subspaces and update in a two-by-two design: own or rotated subspaces, own or
rotated update. Hence it contains neither what the update does in any subspaces (averaging) nor what any
update of this size does in U (energy that returns to the mean).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ....core.ladder import Ladder
from ....core.measurement import Measurement, Null
from ....core.metric import Activations
from ....core.statistics import LADDER_DRAWS, over_heads
from ....core.table import Table
from ..in_networks import COMPRESSION, ROTATED, Compression, mean_rates, streams_around_attention
from ..problem import CURVES, PAPER, incoherence
from .updates import rates_after_rotated_updates

INCOHERENCE = "largest cosine between subspaces"
ROTATED_UPDATES = "rotated updates"
BOTH_ROTATED = "rotated updates in rotated subspaces"
LADDER = Ladder(
    theory="crate",
    quantity="compression beyond rotated subspaces",
    side=">=",
    null=ROTATED,
    source=CURVES,
)


class CompressionInSubspaces(Compression):
    """Compression by attention with rotated subspaces and rotated updates as nulls, and the incoherence of
    the subspaces.

    Attributes:
        rotated: by layer, [2, draws]: sums of R^c after the rotated updates, in U and in the rotations of U.
    """

    def __init__(self):
        super().__init__(rotations=LADDER_DRAWS, max_drawn=None)

    def reset(self) -> None:
        super().reset()
        self.rotated: dict[int, Tensor] = {}

    def merge(self, other: Any) -> None:
        super().merge(other)
        for layer, rates in other.rotated.items():
            self.rotated[layer] = self.rotated.get(layer, 0) + rates

    def statistics(self, activations: Activations) -> Tensor | None:
        found, layer = super().statistics(activations), activations.layer
        if found is not None:
            bases = self.bases[layer][0]
            streams = streams_around_attention(activations, bases, self.max_sequences)
            assert streams is not None  # the base class has used them
            rates = rates_after_rotated_updates(streams[0], streams[1], bases, draws=self.sets, eps=self.eps)
            self.rotated[layer] = self.rotated.get(layer, 0) + rates.sum(-1).double().cpu()
        return found

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns the rows of :class:`~.in_networks.Compression`, and per layer one row of
        :data:`INCOHERENCE`, in [0, 1]. Compression has two further nulls: rotated updates in U
        (:data:`ROTATED_UPDATES`) and in rotations of U (:data:`BOTH_ROTATED`).
        """
        rows = []
        for row in super().compute(draws=draws):
            if row.quantity != COMPRESSION or row.layer is None:
                rows.append(row)
                continue
            sums = self.sums[row.layer, 0][3:]
            after = (self.rotated[row.layer] / sums[0])[:, :draws]
            (before, _), frames = mean_rates(sums, draws)
            in_own = 1 - after[0] / before
            in_rotated = 1 - after[1] / torch.tensor([pair[0] for pair in frames], dtype=after.dtype)
            further = (
                Null(kind, tuple(falls.tolist()))
                for kind, falls in ((ROTATED_UPDATES, in_own), (BOTH_ROTATED, in_rotated))
            )
            rows.append(replace(row, nulls=(*row.nulls, *further)))
        rows.extend(
            LADDER.other_row(INCOHERENCE, incoherence(self.bases[layer][0]), source=None, layer=layer)
            for layer, _ in sorted(self.sums)
        )
        return rows


def compression_rows(rows: Table, **columns: Any) -> Iterator[Measurement]:
    """Yields the headline and the compression itself, each with both nulls, and the incoherence, as means
    over layers.

    Args:
        rows: rows of :class:`CompressionInSubspaces`.
        columns: further columns of the rows.
    """
    found = over_heads(rows.select(quantity=COMPRESSION))
    own, updates, both = found.nulls
    assert found.value is not None
    columns = {"n": found.n, **columns}
    # The draws of the second null are the same statistic T of other updates, hence their own median.
    shifted = tuple(
        Null(null.kind, tuple(draw - median for draw in null.draws))
        for null, median in ((own, own.median), (updates, both.median))
    )
    yield LADDER.row(found.value - own.median, nulls=shifted, **columns)
    yield LADDER.other_row(COMPRESSION, found.value, nulls=(own, updates), side=">=", **columns)
    angle = over_heads(rows.select(quantity=INCOHERENCE)).value
    yield LADDER.other_row(INCOHERENCE, angle, bounds=(0.0, 1.0), **columns, source=PAPER)
