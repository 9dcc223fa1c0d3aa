r"""The order parameters of scan-and-snap in a trained network: how sharp each head's attention is, and whether it still moves.

*Sharpness* is :math:`1 - H(a) / \log T`, the mean over queries and sequences: it grows while attention is scanned. *Overlap with the
previous reading* is the cosine of the head's mean attention map with that of the reading before, both minus uniform attention: it comes
close to 1 when attention has snapped. Its null is the mean such cosine with the previous maps of the layer's other heads, which says how
alike unrelated maps are. Sharpness has no null of its own: compare with untrained networks.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.measurement import Row
from ...core.sources import Source
from ...metrics.attention import sharpness
from ...probes import Observation

SHARPNESS = "sharpness"
OVERLAP = "overlap with the previous reading"
SOURCE = Source("tian2023scan")
Place = tuple[int, int]  # layer, first head


class ScanAndSnap:
    """Streams the sharpness of every head and its mean attention map; the map of the previous reading outlives :meth:`reset`.

    State is kept by (layer, first head), for a block may attend more than once. Queries whose weights are no distribution over allowed keys
    (nothing allowed, or not finite) are left out; with a mask, sharpness counts the allowed keys.

    Rows a layer and head: "sharpness" and, from the second reading on, "overlap with the previous reading" (not for a map that is uniform,
    whose direction is not defined).
    """

    def __init__(self):
        self.previous: dict[Place, Float[Tensor, "heads q k"]] = {}
        self.maps: dict[Place, Float[Tensor, "heads q k"]] = {}  # sums over sequences
        self.sharp: dict[Place, Float[Tensor, " heads"]] = {}  # sums over sequences and queries
        self.counts: dict[Place, Float[Tensor, "heads q"]] = {}  # sequences that each query was counted in

    def update(self, seen: Observation, labels: Int[Tensor, " batch"] | None) -> None:
        """Adds the attention weights of one module; other observations are not counted."""
        if seen.weights is None or not len(seen.weights):
            return
        weights, allowed = seen.weights.detach(), seen.allowed
        total = weights.sum(-1, keepdim=True)
        good = torch.isfinite(total) & (total > 0.5)
        if not bool(good.all()):  # all weight on one allowed key, taken off again below
            first = torch.zeros_like(weights)
            first[..., 0] = 1.0
            weights = torch.where(good, weights, first)
            allowed = None if allowed is None else allowed | ~good
        counted = good[..., 0].to(weights.dtype)
        sharp = sharpness(weights, allowed=allowed) * counted
        self._add(
            (seen.layer, seen.first_head),
            (weights * counted[..., None]).sum(0).double(),
            sharp.sum((0, 2)).double(),
            counted.sum(0).double(),
        )

    def _add(self, place: Place, maps: Tensor, sharp: Tensor, counts: Tensor) -> None:
        if place not in self.maps:
            self.maps[place], self.sharp[place], self.counts[place] = maps, sharp, counts
            return
        old = self.maps[place]
        if old.shape != maps.shape:
            raise ValueError(
                f"attention maps of layer {place[0]} must keep their shape within a reading, got {list(maps.shape)} after "
                f"{list(old.shape)}; pad the sequences, or read each length apart"
            )
        self.maps[place] = old + maps.to(old.device)
        self.sharp[place] = self.sharp[place] + sharp.to(old.device)
        self.counts[place] = self.counts[place] + counts.to(old.device)

    def compute(self) -> Sequence[Row]:
        """One or two rows a layer and head; the value is None if no query could be counted. None at all if no attention was seen."""
        rows: list[Row] = []
        for (layer, first), counts in sorted(self.counts.items(), key=lambda item: item[0]):
            queries = counts.sum(-1).tolist()
            for head, (total, count) in enumerate(zip(self.sharp[layer, first].tolist(), queries), start=first):
                value = total / count if count else None
                rows.append(Row(theory="scan_snap", quantity=SHARPNESS, value=value, layer=layer, head=head, source=str(SOURCE)))
            for head, (value, null) in self._overlaps((layer, first)).items():
                row = Row(theory="scan_snap", quantity=OVERLAP, value=value, layer=layer, head=first + head, source=str(SOURCE))
                if null is not None:
                    row["null"] = null
                rows.append(row)
        return rows

    def _mean(self, place: Place) -> Float[Tensor, "heads q k"]:
        """Mean map over the sequences counted; zero, which has no direction, for queries without any."""
        return self.maps[place] / self.counts[place].clamp(min=1)[..., None]

    def _overlaps(self, place: Place) -> dict[int, tuple[float, float | None]]:
        """Cosine with the head's own previous map, and the mean with those of other heads, where they are defined."""
        before = self.previous.get(place)
        if before is None or before.shape != self.maps[place].shape:
            return {}
        now, then = _directions(self._mean(place)), _directions(before)
        found = {}
        for head, own in now.items():
            if head in then:
                others = [float((own * other).sum()) for k, other in then.items() if k != head]
                found[head] = (float((own * then[head]).sum()), sum(others) / len(others) if others else None)
        return found

    def reset(self) -> None:
        """Starts a new reading; the maps of the last one become the previous ones."""
        self.previous = self.memory()
        self.maps, self.sharp, self.counts = {}, {}, {}

    def memory(self) -> dict[Place, Tensor]:
        """The maps that the next reading is compared with, ``[heads, q, k]`` each."""
        return self.previous | {place: self._mean(place) for place in self.maps}

    def remember(self, memory: dict[Place, Tensor]) -> None:
        """Takes up a :meth:`memory`."""
        self.previous = dict(memory)

    def merge(self, other: "ScanAndSnap") -> None:
        """Adds another reducer's state of the same reading."""
        for place, counts in other.counts.items():
            self._add(place, other.maps[place], other.sharp[place], counts)


def _directions(maps: Float[Tensor, "heads q k"]) -> dict[int, Tensor]:
    """Each head's map minus uniform attention, with Frobenius norm one; heads with uniform attention are left out."""
    excess = maps - maps.mean(-1, keepdim=True)
    norms = torch.linalg.matrix_norm(excess).tolist()
    return {head: one / norm for head, (one, norm) in enumerate(zip(excess, norms)) if norm > 1e-6}


def reducers() -> tuple[ScanAndSnap, ...]:
    """The order parameters of this room."""
    return (ScanAndSnap(),)
