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

from ...citations import Source
from ...metrics.attention import sharpness
from ...probes import Observation
from ...rows import Row

SHARPNESS = "sharpness"
OVERLAP = "overlap with the previous reading"
SOURCE = Source("tian2023scan")


class ScanAndSnap:
    """Streams the sharpness of every head and its mean attention map; the map of the previous reading outlives :meth:`reset`.

    Rows a layer and head: "sharpness" and, from the second reading on, "overlap with the previous reading" (not for a map that is uniform,
    whose direction is not defined).
    """

    def __init__(self):
        self.previous: dict[int, Float[Tensor, "heads q k"]] = {}
        self.maps: dict[int, Float[Tensor, "heads q k"]] = {}
        self.sharp: dict[int, Float[Tensor, " heads"]] = {}
        self.counts: dict[int, int] = {}

    def update(self, seen: Observation, labels: Int[Tensor, " batch"] | None) -> None:
        """Adds the attention weights of one module; other observations are not counted."""
        if seen.weights is None or not len(seen.weights):
            return
        weights = seen.weights.detach()
        layer, total = seen.layer, weights.sum(0).double()
        if layer in self.maps and self.maps[layer].shape != total.shape:
            raise ValueError(
                f"attention maps of layer {layer} must keep their shape within a reading, got {list(total.shape)} after "
                f"{list(self.maps[layer].shape)}; pad the sequences, or read each length apart"
            )
        self.maps[layer] = self.maps.get(layer, 0) + total
        self.sharp[layer] = self.sharp.get(layer, 0) + sharpness(weights).mean(-1).sum(0).double()
        self.counts[layer] = self.counts.get(layer, 0) + len(weights)

    def compute(self) -> Sequence[Row]:
        """One or two rows a layer and head; none if no attention was seen."""
        rows: list[Row] = []
        for layer, count in sorted(self.counts.items()):
            for head, value in enumerate((self.sharp[layer] / count).tolist()):
                rows.append(Row(theory="scan_snap", quantity=SHARPNESS, value=value, layer=layer, head=head, source=str(SOURCE)))
            for head, (value, null) in self._overlaps(layer).items():
                row = Row(theory="scan_snap", quantity=OVERLAP, value=value, layer=layer, head=head, source=str(SOURCE))
                if null is not None:
                    row["null"] = null
                rows.append(row)
        return rows

    def _overlaps(self, layer: int) -> dict[int, tuple[float, float | None]]:
        """Cosine with the head's own previous map, and the mean with those of other heads, where they are defined."""
        before = self.previous.get(layer)
        if before is None or before.shape != self.maps[layer].shape:
            return {}
        now, then = _directions(self.maps[layer] / self.counts[layer]), _directions(before)
        found = {}
        for head, own in now.items():
            if head in then:
                others = [float((own * other).sum()) for k, other in then.items() if k != head]
                found[head] = (float((own * then[head]).sum()), sum(others) / len(others) if others else None)
        return found

    def reset(self) -> None:
        """Starts a new reading; the maps of the last one become the previous ones."""
        self.previous |= {layer: total / self.counts[layer] for layer, total in self.maps.items()}
        self.maps, self.sharp, self.counts = {}, {}, {}

    def merge(self, other: "ScanAndSnap") -> None:
        """Adds another reducer's state of the same reading."""
        for layer, count in other.counts.items():
            self.maps[layer] = self.maps.get(layer, 0) + other.maps[layer]
            self.sharp[layer] = self.sharp.get(layer, 0) + other.sharp[layer]
            self.counts[layer] = self.counts.get(layer, 0) + count


def _directions(maps: Float[Tensor, "heads q k"]) -> dict[int, Tensor]:
    """Each head's map minus uniform attention, with Frobenius norm one; heads with uniform attention are left out."""
    excess = maps - maps.mean(-1, keepdim=True)
    norms = torch.linalg.matrix_norm(excess).tolist()
    return {head: one / norm for head, (one, norm) in enumerate(zip(excess, norms)) if norm > 1e-6}


def reducers() -> tuple[ScanAndSnap, ...]:
    """The order parameters of this room."""
    return (ScanAndSnap(),)
