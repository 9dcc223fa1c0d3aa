r"""What the theory of CRATE reads in any trained network: does attention compress towards its own subspaces, and are the tokens sparse?

Z is the residual stream before the attention of a block, Z+ after it. With each token centred and scaled to norm one (a layer norm without
parameters, for networks read their stream through one),

    compression = 1 - R^c(Z+; U_[K]) / R^c(Z; U_[K]),

U_k an orthonormal basis of the columns of the block's matrices (``subspaces()``); for attention with separate matrices, of its key
projections. Scaling removes what a mere change of length does to a rate. Null: the same with random orthonormal U_k, for averaging tokens
makes them alike in *any* subspace. The change of R^c without scaling is given as well: its sign is the subject of :cite:t:`hu2024indepth`.

Source: :cite:t:`yu2023white` (both curves, layer by layer).
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.measurement import Row
from ...metrics.coding import subspace_coding_rate, unit_norm
from ...probes import Observation
from .problem import nonzeros, random_subspaces

EPS = 0.5  # as in the unrolled model; at the released measurements' .1 the logarithm hides most of a change
SEQUENCES = 16  # of a forward pass, evenly spaced: enough for a mean over sequences
COMPRESSION = "compression by attention"
BEFORE, AFTER, GROWTH, NONZEROS = (
    "R^c before attention",
    "R^c after attention",
    "growth of R^c in attention, scale kept",
    "share of non-zeros",
)


class Compression:
    """Reducer: R^c(Z; U_[K]) before and after every attention block, with random subspaces as null. Rows a layer, means over sequences.

    Of each forward pass at most :data:`SEQUENCES` are read, evenly spaced, so several batches give more of them than one batch of all.
    Sequences that are not finite are left out. In a block that attends more than once, the first attention is read.
    Blocks whose subspaces are unknown (neither ``subspaces()`` nor ``bilinear()``) are skipped. Source: :cite:t:`yu2023white`.
    """

    def __init__(self):
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        # by layer: sequences, then R^c (before, after, both without scaling) summed, in U and in random subspaces
        self.sums: dict[int, Tensor] = {}
        # by layer: subspaces of the attention last seen there, and where they come from
        self.bases: dict[int, tuple[Tensor, str]] = {}

    def update(self, seen: Observation, labels: Int[Tensor, " batch"] | None) -> None:
        """Keeps the subspaces of an attention block; adds the streams before and after it when its layer is seen."""
        if seen.kind == "attention" and not seen.first_head and (found := own_subspaces(seen)) is not None:
            self.bases[seen.layer] = found
        elif seen.kind == "features" and seen.attended is not None and seen.layer in self.bases:
            self._add(seen.layer, seen.tokens, seen.attended)

    def _add(self, layer: int, before: Tensor, after: Tensor) -> None:
        bases = self.bases[layer][0]
        if before.shape != after.shape or before.shape[-1] != bases.shape[1]:
            return
        chosen = torch.linspace(0, len(before) - 1, min(SEQUENCES, len(before))).round().long()
        raw = torch.stack([before[chosen], after[chosen]]).double()
        finite = torch.isfinite(raw).all(-1).all(-1).all(0)
        if not bool(finite.all()):
            chosen, raw = chosen[finite.cpu()], raw[:, finite]
        if not len(chosen):
            return
        states = torch.cat([unit_norm(raw - raw.mean(-1, keepdim=True)), raw])
        other = _null(*bases.shape).to(bases.device)
        rates = [subspace_coding_rate(states, frames, eps=EPS).sum(-1).cpu() for frames in (bases, other)]
        sums = torch.cat([torch.tensor([float(len(chosen))], dtype=torch.float64), *rates])
        self.sums[layer] = self.sums.get(layer, torch.zeros(9, dtype=torch.float64)) + sums

    def compute(self) -> Sequence[Row]:
        """Four rows a layer: R^c before and after (nats, centred tokens of norm one), compression, and growth with the scale kept."""
        rows: list[Row] = []
        for layer, sums in sorted(self.sums.items()):
            (before, after, raw, raw_after), null = (sums[1:5] / sums[0]).tolist(), (sums[5:] / sums[0]).tolist()
            of = f"{sums[0]:.0f} sequences, at most {SEQUENCES} a pass"
            note = f"in the subspaces of {self.bases[layer][1]}; null: random subspaces; {of}"
            for quantity, value, nothing in (
                (COMPRESSION, _drop(before, after), _drop(null[0], null[1])),
                (BEFORE, before, null[0]),
                (AFTER, after, null[1]),
                (GROWTH, -_drop(raw, raw_after), -_drop(null[2], null[3])),
            ):
                rows.append(Row(theory="crate", quantity=quantity, value=value, null=nothing, layer=layer, note=note))
        return rows

    def merge(self, other: "Compression") -> None:
        """Adds what another reducer saw."""
        self.bases |= other.bases
        for layer, sums in other.sums.items():
            self.sums[layer] = self.sums.get(layer, torch.zeros(9, dtype=torch.float64)) + sums


class Sparsity:
    """Reducer: share of exactly non-zero entries of what each block of the network hands on. One row a layer.

    Source: :cite:t:`yu2023white`.
    """

    kinds = ("features",)

    def __init__(self):
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self.sums: dict[int, tuple[int, float]] = {}  # layer -> sequences, sum of shares

    def update(self, seen: Observation, labels: Int[Tensor, " batch"] | None) -> None:
        """Adds the output of one block of one forward pass."""
        if seen.kind == "features":
            self._add(seen.layer, len(seen.output), float(nonzeros(seen.output).sum()))

    def compute(self) -> Sequence[Row]:
        """The share of non-zeros of each layer, in [0, 1]."""
        return [
            Row(
                theory="crate",
                quantity=NONZEROS,
                value=total / count if count else None,
                layer=layer,
                note="exact zeros of the block's output; deeper should be sparser",
            )
            for layer, (count, total) in sorted(self.sums.items())
        ]

    def merge(self, other: "Sparsity") -> None:
        """Adds what another reducer saw."""
        for layer, (count, total) in other.sums.items():
            self._add(layer, count, total)

    def _add(self, layer: int, count: int, total: float) -> None:
        before = self.sums.get(layer, (0, 0.0))
        self.sums[layer] = (before[0] + count, before[1] + total)


def reducers() -> tuple[Compression, Sparsity]:
    """Fresh reducers of the room."""
    return Compression(), Sparsity()


def own_subspaces(seen: Observation) -> tuple[Float[Tensor, "K d p"], str] | None:
    """Orthonormal bases [K, d, p] of the subspaces of an attention block, and where they come from; None if they are unknown.

    From ``subspaces()`` of the block, else from its key projections. Source: :cite:t:`yu2023white`.
    """
    own = getattr(seen.parent, "subspaces", None)
    if callable(own):
        U = own()
        assert isinstance(U, Tensor)
        U, source = U.detach().double(), "the block itself (U)"
    elif seen.bilinear is not None and seen.key is not None:
        W = seen.bilinear.detach().double()  # K Q^T: K spans what W makes of p random vectors, without a decomposition of W
        U, source = W @ _null(1, W.shape[-1], min(seen.key.shape[-1], W.shape[-1])).to(W.device), "the key projections"
    else:
        return None
    return (torch.linalg.qr(U)[0], source) if bool(torch.isfinite(U).all()) else None


@lru_cache(maxsize=8)
def _null(K: int, d: int, p: int) -> Float[Tensor, "K d p"]:
    """The same random subspaces at each reading."""
    return random_subspaces(K, d, p, generator=torch.Generator().manual_seed(0))


def _drop(before: float, after: float) -> float:
    """1 - after / before; 0 where there was nothing."""
    return 1 - after / before if before > 0 else 0.0
