r"""The quantities of the ladder, for one attention step Z -> Z+ and for the code after it.

With the tokens centred and scaled to norm one, as in :mod:`..in_networks`, and the step's own subspaces U_[K],

    compression(U) = 1 - R^c(Z+; U) / R^c(Z; U),      headline = compression(U) - median over rotations O of compression(O U).

Averaging makes tokens alike in any subspaces, and how much depends on the size of the step. The difference has the null median 0 on every
rung, so the rungs can be compared. Its null distribution consists of the compressions in the subspaces O U_k minus their median.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ....core.ladder import Ladder
from ....core.measurement import Measurement, Null, Table
from ....core.statistics import HEADLINE_DRAWS, over_heads
from ..in_networks import COMPRESSION, ROTATED, Compression
from ..problem import CURVES, PAPER, incoherence

BEYOND_ROTATED = "compression beyond rotated subspaces"
INCOHERENCE = "largest cosine between subspaces"
HEADLINE = Ladder(quantity=BEYOND_ROTATED, unit="", side=">=", null_kind=ROTATED)  # without its rungs


class CompressionInSubspaces(Compression):
    """Compression by attention with 199 rotations of the subspaces as the null, and the incoherence of the subspaces."""

    def __init__(self):
        super().__init__(rotations=HEADLINE_DRAWS)

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns the rows of :class:`~.in_networks.Compression` and one row of :data:`INCOHERENCE` per layer, in [0, 1]."""
        rows = super().compute(draws=draws)
        angles = [Measurement("crate", "rung", INCOHERENCE, incoherence(self.bases[layer][0]), layer=layer) for (layer,) in self.sums]
        return [*rows, *angles]


def compression_rows(rows: Table, **columns: Any) -> Iterator[Measurement]:
    """Yields the headline, the compression itself and the incoherence, each a mean over layers.

    Args:
        rows: rows of :class:`CompressionInSubspaces`.
        columns: further columns of the rows.
    """
    mean = over_heads(rows.select(quantity=COMPRESSION))
    assert mean.value is not None
    assert mean.null is not None
    median, draws = mean.null.median, mean.null.draws
    columns = {"n": mean.n, **columns}
    null, shifted = Null(ROTATED, draws), Null(ROTATED, tuple(draw - median for draw in draws))
    yield HEADLINE.row("crate", mean.value - median, null=shifted, source=CURVES, **columns)
    yield Measurement("crate", "rung", COMPRESSION, mean.value, null=null, side=">=", source=CURVES, **columns)
    angle = over_heads(rows.select(quantity=INCOHERENCE)).value
    yield Measurement("crate", "rung", INCOHERENCE, angle, source=PAPER, **columns)
