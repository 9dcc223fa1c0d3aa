r"""The quantities of scan-and-snap in a trained network: how sharp each head's attention is, and whether it still moves.

*Sharpness* is :math:`1 - H(a) / \log T`, a mean over queries and sequences. It grows while attention is scanned. Its null is untrained
networks. The *overlap with the previous map* is the cosine between the head's mean attention map and its mean map in the previous
measurement, both minus uniform attention. It approaches 1 when attention has snapped. Its null is the cosine with the previous maps of the
layer's other heads. Source: :cite:t:`tian2023scan`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.measurement import Measurement, Null
from ...core.metric import Activations, Metric, Place
from ...core.sources import Source
from ...core.theory import InNetworks
from ...metrics.attention import sharpness

SHARPNESS = "sharpness"
OVERLAP = "overlap with the previous map"
NAME, SOURCE = "scan_snap", Source("tian2023scan")
MIN_ROW_SUM = 0.5  # a row of weights with a smaller sum is not a distribution
DIRECTION_ATOL = 1e-6  # Frobenius norm of a map minus uniform attention below which its direction is undefined


class ScanAndSnap(Metric):
    """Sharpness of every head, and the overlap of its mean attention map with its map in the previous measurement.

    Queries whose weights are not a distribution over allowed keys (no allowed key, or not finite) are omitted. With a mask, T in the
    sharpness is the number of allowed keys. :meth:`reset` keeps the previous map.

    Rows per layer and head: "sharpness", and from the second measurement on "overlap with the previous map", unless a map is uniform.

    Attributes:
        sums: tensors ``[heads, q, k + 2]`` per place: the sum of the attention maps, the number of sequences in which each query was
            counted, and the sum of each query's sharpness.
        previous: mean maps of the previous measurement, ``[heads, q, k]`` per place.
    """

    kinds = ("attention",)
    null_source = "untrained"

    def __init__(self):
        super().__init__()
        self.previous: dict[Place, Float[Tensor, "heads q k"]] = {}

    def update(self, activations: Activations) -> None:
        """Adds the attention weights of one module."""
        if activations.weights is None or not len(activations.weights):
            return
        weights, mask = activations.weights.detach(), activations.mask
        total = weights.sum(-1, keepdim=True)
        valid = torch.isfinite(total) & (total > MIN_ROW_SUM)
        if not bool(valid.all()):
            # `sharpness` refuses rows that are not distributions. Put their weight on one allowed key here; `counted` removes them below.
            placeholder = torch.zeros_like(weights)
            placeholder[..., 0] = 1.0
            weights = torch.where(valid, weights, placeholder)
            mask = None if mask is None else mask | ~valid
        counted = valid[..., 0].to(weights.dtype)
        sharp = sharpness(weights, allowed=mask) * counted
        maps = weights * counted[..., None]
        parts = (maps.sum(0), counted.sum(0)[..., None], sharp.sum(0)[..., None])
        self.add((activations.layer, activations.first_head), torch.cat([part.double() for part in parts], dim=-1))

    def add(self, place: Place, sums: Tensor) -> None:
        """Adds the sums of a place.

        Raises:
            ValueError: the shape differs from the shape of the earlier sums.
        """
        if place in self.sums and self.sums[place].shape != sums.shape:
            before, after = ([*shape[:-1], shape[-1] - 2] for shape in (self.sums[place].shape, sums.shape))
            raise ValueError(
                f"attention maps of layer {place[0]} must keep their shape [heads, q, k] within a measurement, got {after} after {before}; "
                "pad the sequences, or measure each length separately"
            )
        super().add(place, sums)

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns one or two rows per layer and head, without a value if no query was counted."""
        rows: list[Measurement] = []
        for (layer, first), sums in sorted(self.sums.items(), key=lambda item: item[0]):
            counts, totals = sums[..., -2].sum(-1).tolist(), sums[..., -1].sum(-1).tolist()
            for head, (total, count) in enumerate(zip(totals, counts), start=first):
                value = total / count if count else None
                reason = "" if count else "no query has a distribution of attention"
                rows.append(_row(SHARPNESS, value, layer, head, reason=reason, side=">="))
            for head, (value, null) in self._overlaps((layer, first)).items():
                rows.append(_row(OVERLAP, value, layer, first + head, null=null, side=">="))
        return rows

    def _mean(self, place: Place) -> Float[Tensor, "heads q k"]:
        """Returns the mean map over the counted sequences; a query without any gets a map of zeros, which has no direction."""
        return self.sums[place][..., :-2] / self.sums[place][..., -2:-1].clamp(min=1)

    def _overlaps(self, place: Place) -> dict[int, tuple[float, Null | None]]:
        """Returns each head's cosine with its previous map and with those of the other heads, where they are defined."""
        previous = self.previous.get(place)
        if previous is None or previous.shape != (current := self._mean(place)).shape:
            return {}
        now, then = _directions(current), _directions(previous)
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
            self.previous = self.memory()
        super().reset()

    def memory(self) -> dict[Any, Tensor]:
        """Returns the maps for comparison with the next measurement, ``[heads, q, k]`` per place."""
        return self.previous | {place: self._mean(place) for place in self.sums}

    def remember(self, memory: dict[Any, Tensor]) -> None:
        """Restores a :meth:`memory`."""
        self.previous = dict(memory)


def _row(quantity: str, value: float | None, layer: int, head: int, **columns: Any) -> Measurement:
    return Measurement(NAME, "in network", quantity, value, layer=layer, head=head, source=SOURCE, **columns)


def _directions(maps: Float[Tensor, "heads q k"]) -> dict[int, Tensor]:
    """Returns each head's map minus uniform attention, with Frobenius norm one; heads with uniform attention are omitted."""
    excess = maps - maps.mean(-1, keepdim=True)
    norms = torch.linalg.matrix_norm(excess).tolist()
    return {head: map_ / norm for head, (map_, norm) in enumerate(zip(excess, norms)) if norm > DIRECTION_ATOL}


def metrics() -> tuple[ScanAndSnap, ...]:
    """Returns the metrics of this theory."""
    return (ScanAndSnap(),)


IN_NETWORKS = InNetworks(metrics=metrics, headline=SHARPNESS, side=">=")
