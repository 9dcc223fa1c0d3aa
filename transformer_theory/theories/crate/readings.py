r"""What the theory of CRATE reads in any trained network: does attention compress towards its own subspaces, and are the tokens sparse?

For a module in which attention was computed, Z is what it read and Z+ = Z + (what it returned): the block's own step. With tokens scaled
to norm one,

    compression = 1 - R^c(Z+; U_[K]) / R^c(Z; U_[K]),

U_k an orthonormal basis of the columns of the block's matrices (``subspaces()``); for attention with separate matrices, of its key
projections. Scaling removes what a mere change of length does to a rate. Null: the same with random orthonormal U_k, for averaging tokens
makes them alike in *any* subspace. The change of R^c without scaling is given as well: its sign is the subject of :cite:t:`hu2024indepth`.

Source: :cite:t:`yu2023white` (both curves, layer by layer). The rate uses eps^2 = .01, as the released measurements do.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...metrics.coding import subspace_coding_rate, unit_norm
from ...probes import Observation
from ...rows import Row
from .problem import nonzeros, random_subspaces

EPS = 0.1
SEQUENCES = 64  # of a forward pass, evenly spaced: enough for a mean over sequences
COMPRESSION = "compression by attention"
BEFORE, AFTER, GROWTH, NONZEROS = (
    "R^c before attention",
    "R^c after attention",
    "growth of R^c in attention, scale kept",
    "share of non-zeros",
)


class Compression:
    """Reducer: R^c(Z; U_[K]) before and after every attention block, with random subspaces as null. Rows a layer, means over sequences.

    Blocks whose subspaces are unknown (neither ``subspaces()`` nor ``bilinear()``) are skipped. Source: :cite:t:`yu2023white`.
    """

    def __init__(self):
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self.sums: dict[
            int, Tensor
        ] = {}  # layer -> sequences, then (before, after, before and after unscaled) in U and in random subspaces
        self.bases: dict[int, str] = {}  # layer -> where the subspaces come from

    def update(self, seen: Observation, labels: Int[Tensor, " batch"] | None) -> None:
        """Adds one attention block of one forward pass."""
        found = _subspaces(seen) if seen.kind == "attention" and seen.output.shape == seen.tokens.shape else None
        if found is None:
            return
        bases, origin = found
        chosen = torch.linspace(0, len(seen.tokens) - 1, min(SEQUENCES, len(seen.tokens))).round().long()
        tokens = seen.tokens[chosen].double()
        after = tokens + seen.output[chosen].double()
        if not bool(torch.isfinite(after).all()):
            return
        other = random_subspaces(*bases.shape, generator=torch.Generator().manual_seed(0)).to(bases.device)
        states = torch.stack([unit_norm(tokens), unit_norm(after), tokens, after])
        rates = [subspace_coding_rate(states, frames, eps=EPS).sum(-1).cpu() for frames in (bases, other)]
        sums = torch.cat([torch.tensor([float(len(tokens))], dtype=torch.float64), *rates])
        self.sums[seen.layer] = self.sums.get(seen.layer, torch.zeros(9, dtype=torch.float64)) + sums
        self.bases[seen.layer] = origin

    def compute(self) -> Sequence[Row]:
        """Four rows a layer: R^c before and after (nats, tokens of norm one), compression, and growth with the scale kept."""
        rows: list[Row] = []
        for layer, sums in sorted(self.sums.items()):
            (before, after, raw, raw_after), null = (sums[1:5] / sums[0]).tolist(), (sums[5:] / sums[0]).tolist()
            note = f"in the subspaces of {self.bases[layer]}; null: random subspaces"
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
        for layer, sums in other.sums.items():
            self.sums[layer] = self.sums.get(layer, torch.zeros(9, dtype=torch.float64)) + sums
            self.bases[layer] = other.bases[layer]


class Sparsity:
    """Reducer: share of exactly non-zero entries of what each block of the network hands on. One row a layer.

    Source: :cite:t:`yu2023white`.
    """

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
                value=total / count,
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


def _subspaces(seen: Observation) -> tuple[Float[Tensor, "K d p"], str] | None:
    """Orthonormal bases of the block's subspaces, and where they come from."""
    own = getattr(seen.parent, "subspaces", None)
    if callable(own):
        U = own()
        assert isinstance(U, Tensor)
        return torch.linalg.qr(U.detach().double())[0], "the block itself (U)"
    if seen.bilinear is None or seen.key is None:
        return None
    left = torch.linalg.svd(seen.bilinear.detach().double())[0]  # W = K Q^T: its left side is spanned by the key projection
    return left[..., : min(seen.key.shape[-1], left.shape[-1])].contiguous(), "the key projections"


def _drop(before: float, after: float) -> float:
    """1 - after / before; 0 where there was nothing."""
    return 1 - after / before if before > 0 else 0.0
