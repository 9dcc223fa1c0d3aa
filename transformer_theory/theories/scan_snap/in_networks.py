r"""The quantities of scan-and-snap in a trained network: how sharp each head's attention is, and whether it
still moves.

*Sharpness* is :math:`1 - H(a) / \log T`, a mean over queries and sequences. It grows during the scanning
stage. Its null distribution comes from untrained networks. The *overlap with the previous map* is the cosine
between the head's mean attention map and its mean map in the previous measurement, both minus uniform
attention to the allowed keys: otherwise the shape of a causal mask would make all heads alike. It approaches
1 when attention has snapped. Its null is the cosine with the previous maps of the layer's other heads.
Source: :cite:t:`tian2023scan`.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.measurement import CORRELATION, Measurement, Null
from ...core.metric import Activations, PerModule, Place
from ...core.sources import Source
from ...core.theory import InNetworks
from ...metrics.attention import sharpness
from ...metrics.networks import weight_rows

SHARPNESS = "sharpness"
OVERLAP = "overlap with the previous map"
NAME, SOURCE = "scan_snap", Source("tian2023scan")
# Frobenius norm of a map minus uniform attention below which its direction is undefined
DIRECTION_ATOL = 1e-6
ENTRIES = 40_000  # entries of a head's map up to which it is kept in the first measurement: 200 tokens


class ScanAndSnap(PerModule):
    """Sharpness of every head, and the overlap of its mean attention map with its map in the previous
    measurement.

    Queries whose weights are not a distribution over allowed keys (no allowed key, or not finite) are
    omitted. With a mask, T in the sharpness is the number of allowed keys. :meth:`reset` keeps the previous
    map.

    Rows per layer and head: "sharpness", and from the second measurement on "overlap with the previous map",
    unless a map is uniform. The first measurement keeps no maps of more than :data:`ENTRIES` entries, because
    most networks are measured once; their overlap begins with the third.

    Attributes:
        sums: tensors ``[heads, q, 2 + k]`` per place: the number of sequences in which each query was
            counted, the sum of each query's sharpness, and the sum of the attention maps minus uniform
            attention to the allowed keys. Shorter maps are padded with zeros. Where no map is kept, ``[heads,
            q, 2]``, and the place ends with 0.
        again: whether a measurement came before.
        previous: mean maps of the previous measurement, minus uniform attention, ``[heads, q, k]`` per place.
    """

    kinds = ("attention",)
    null_source = "networks"
    pads = True
    theory, quantity, side, source = NAME, SHARPNESS, ">=", SOURCE
    bounds = (0.0, 1.0)

    def __init__(self):
        super().__init__()
        self.previous: dict[Place, Float[Tensor, "heads q k"]] = {}
        self.again = False

    def place(self, activations: Activations, statistics: Tensor) -> Place:
        """Returns layer and first head, and 0 if the map is not kept."""
        place = super().place(activations, statistics)
        return place if statistics.shape[-1] > 2 else (*place, 0)

    def statistics(self, activations: Activations) -> Float[Tensor, "heads q columns"] | None:
        """Returns the sums of one module; None if it has no known weights."""
        rows, mask = activations.shared(weight_rows), activations.mask
        if rows is None or not len(rows.weights):
            return None
        if mask is not None and rows.valid is not None:
            # the first key, on which these rows have their weight, may be masked
            mask = mask | ~rows.valid[..., None]
        sharp = sharpness(rows.weights, allowed=mask, entropies=rows.entropy)
        counts = rows.counted(torch.ones_like(sharp)).sum(0).double()
        total = torch.stack([counts, rows.counted(sharp).sum(0).double()], -1)
        if not self.again and math.prod(rows.weights.shape[-2:]) > ENTRIES:
            return total
        allowed = torch.ones_like(rows.weights[:1], dtype=torch.bool) if mask is None else mask
        uniform = allowed.to(rows.weights.dtype) / allowed.sum(-1, keepdim=True).clamp(min=1)
        return torch.cat([total, rows.counted(rows.weights - uniform).sum(0).double()], dim=-1)

    def rows(
        self,
        place: Place,
        *sums: Float[Tensor, "heads _ _"],
        draws: int,
        generator: torch.Generator | None,
    ) -> Iterator[Measurement]:
        """Yields one or two rows per head, without a value if no query was counted. If any ``draws`` are
        asked for, the overlap has its null, one draw per other head of the layer.
        """
        counts, totals = torch.stack([each[..., :2].sum(1) for each in sums]).sum(0).T.tolist()
        for head, (total, count) in enumerate(zip(totals, counts)):
            reason = "no query has attention weights that form a distribution"
            yield self.row(total / count if count else None, reason=reason, head=head)
        for head, (value, null) in self._overlaps(place).items():
            nulls = (null if draws else None,)
            yield self.other_row(OVERLAP, value, side=">=", bounds=CORRELATION, nulls=nulls, head=head)

    def _mean(self, place: Place) -> Float[Tensor, "heads q k"]:
        """Returns the mean of map minus uniform attention over the counted sequences; zeros for a query
        without such sequences.
        """
        return self.sums[place][..., 2:] / self.sums[place][..., :1].clamp(min=1)

    def _overlaps(self, place: Place) -> dict[int, tuple[float, Null | None]]:
        """Returns, per head, the cosine with its previous map, and as null the cosines with the previous maps
        of the other heads.

        Heads with uniform attention in either measurement are omitted.
        """
        previous = self.previous.get(place)
        if (
            previous is None
            or place not in self.sums
            or previous.shape != (current := self._mean(place)).shape
        ):
            return {}
        now, then = _directions(current), _directions(previous.to(current.device))
        overlaps = {}
        for head, direction in now.items():
            if head in then:
                others = tuple(float((direction * other).sum()) for k, other in then.items() if k != head)
                null = Null("previous maps of the other heads", others) if others else None
                overlaps[head] = (float((direction * then[head]).sum()), null)
        return overlaps

    def reset(self) -> None:
        """Starts a new measurement; the current maps become the previous ones."""
        if self.sums:
            self.previous, self.again = self.persistent_state(), True
        super().reset()

    def persistent_state(self) -> dict[Any, Tensor]:
        """Returns the maps minus uniform attention for comparison with the next measurement, ``[heads, q,
        k]`` per place.
        """
        return self.previous | {place: self._mean(place) for place in self.sums if len(place) == 2}

    def load_persistent_state(self, state: dict[Any, Tensor]) -> None:
        """Restores the maps that :meth:`persistent_state` returned."""
        self.previous, self.again = dict(state), bool(state)


def _directions(maps: Float[Tensor, "heads q k"]) -> dict[int, Tensor]:
    """Scales each head's map minus uniform attention to Frobenius norm one; heads with uniform attention are
    omitted.
    """
    norms = torch.linalg.matrix_norm(maps).tolist()
    return {head: map_ / norm for head, (map_, norm) in enumerate(zip(maps, norms)) if norm > DIRECTION_ATOL}


def metrics() -> tuple[ScanAndSnap, ...]:
    """Returns the metrics of this theory."""
    return (ScanAndSnap(),)


IN_NETWORKS = InNetworks(
    metrics=metrics,
    headline=SHARPNESS,
    side=">=",
    meaning="1 less the entropy of a row of attention over that of uniform attention; 0: uniform, 1: all "
    "weight on one key",
)
