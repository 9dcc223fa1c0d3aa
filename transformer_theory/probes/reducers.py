"""Reducers that belong to no theory: statistics of attention weights, geometry of the features, and attention maps for pictures.

Each is a function and its accumulator: sums and counts over sequences, so that merging two states gives the state of the union.
Layers and heads count as in :class:`~transformer_theory.probes.Observation`.
Source: :cite:t:`zhai2023stabilizing` (entropy), :cite:t:`xiao2024efficient` (sinks), :cite:t:`dong2021attention` (rank collapse).
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core.measurement import Row
from ..metrics.attention import entropy, hard_max_gap
from .observation import Observation

ENTROPY, TOP1, SUPPORT, SINK = "attention entropy", "top-1 mass", "effective support", "sink mass"
GAP, DIAGONAL, EFFECTIVE_RANK = "gap of the scores", "weight on the token itself", "effective rank of the features"
RESIDUAL, FEATURE_RANK = "rank-collapse residual", "stable rank of the features"


class AttentionStatistics:
    """Entropy (nats), top-1 mass, effective support (keys) and sink mass of attention, a row each for every layer and head.

    Means over queries and sequences; the sink is the key position that gets most mass on average. Rows of weights without any
    allowed key, or that are not finite, are left out. Source: :cite:t:`zhai2023stabilizing`, :cite:t:`xiao2024efficient`.
    """

    def __init__(self):
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self.sums: dict[tuple[int, int], Tensor] = {}  # (layer, first head) -> [count, entropy, top-1, support] of each head, [4, heads]
        self.mass: dict[tuple[int, int], Tensor] = {}  # (layer, first head) -> summed mass of each key position, [heads, keys]

    def update(self, seen: Observation, labels: Int[Tensor, " batch"] | None) -> None:
        """Adds the attention weights of one module."""
        if seen.weights is None:
            return
        weights = seen.weights
        total = weights.sum(-1, keepdim=True)
        good = torch.isfinite(total) & (total > 0.5)
        if not bool(good.all()):  # rows that count nothing: all weight on the first key, taken off again below
            first = torch.zeros(weights.shape[-1], dtype=weights.dtype, device=weights.device)
            first[0] = 1.0
            weights = torch.where(good, weights, first)
        rows = good[..., 0].to(weights.dtype)
        H = entropy(weights)
        sums = torch.stack([(x * rows).sum((0, 2)) for x in (torch.ones_like(H), H, weights.amax(-1), H.exp())])
        self._add((seen.layer, seen.first_head), sums.double(), (weights * rows[..., None]).sum((0, 2)).double())

    def compute(self) -> Sequence[Row]:
        """Four rows a layer and head."""
        rows: list[Row] = []
        for (layer, first), sums in sorted(self.sums.items()):
            means = torch.cat([sums[1:] / sums[0], (self.mass[layer, first] / sums[0][:, None]).amax(1)[None]]).T.tolist()
            for head, values in enumerate(means, start=first):
                for quantity, value in zip((ENTROPY, TOP1, SUPPORT, SINK), values):
                    rows.append(Row(theory="network", quantity=quantity, value=_number(value), layer=layer, head=head))
        return rows

    def merge(self, other: "AttentionStatistics") -> None:
        """Adds what another reducer saw."""
        for place, sums in other.sums.items():
            self._add(place, sums, other.mass[place])

    def _add(self, place: tuple[int, int], sums: Tensor, mass: Tensor) -> None:
        if place in self.sums:
            old = self.mass[place]
            longest = max(old.shape[1], mass.shape[1])  # sequences of other lengths: positions are counted from the start
            old, mass = (nn.functional.pad(m.to(old.device), (0, longest - m.shape[1])) for m in (old, mass))
            sums, mass = self.sums[place] + sums.to(old.device), old + mass
        self.sums[place], self.mass[place] = sums, mass


class AttentionSelection:
    """How far attention is from choosing one key, and whether that is the token itself: two rows for every layer and head.

    The gap is the largest score minus the second largest, in nats, a mean over queries with two allowed keys or more; 0 for uniform
    attention. Weights that vanish in their type count as its smallest number. The weight on the token itself is read where queries and keys
    are as many; its null is uniform attention over the allowed keys. Source: :cite:t:`xiao2024efficient` (where attention goes).
    """

    def __init__(self):
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self.sums: dict[tuple[int, int], Tensor] = {}  # (layer, first head) -> gaps, their sum, tokens, own weight, its null, [5, heads]

    def update(self, seen: Observation, labels: Int[Tensor, " batch"] | None) -> None:
        """Adds the attention weights of one module; rows that are no distribution are left out."""
        if seen.weights is None:
            return
        weights, T = seen.weights, seen.weights.shape[-1]
        total = weights.sum(-1)
        rows = torch.isfinite(total) & (total > 0.5)
        allowed = torch.ones_like(weights, dtype=torch.bool) if seen.allowed is None else seen.allowed.expand_as(weights)
        scores = weights.clamp(min=torch.finfo(weights.dtype).tiny).log().masked_fill(~rows[..., None], 0.0)
        gaps = hard_max_gap(scores, allowed=allowed | ~rows[..., None])
        counted = rows & torch.isfinite(gaps)
        sums = [counted.sum((0, 2)), gaps.masked_fill(~counted, 0.0).sum((0, 2))]
        if weights.shape[-2] == T:
            own = torch.where(rows, weights.diagonal(dim1=-2, dim2=-1), 0.0).sum((0, 2))
            uniform = allowed.diagonal(dim1=-2, dim2=-1).double() / allowed.sum(-1).clamp(min=1)
            sums += [rows.sum((0, 2)), own, torch.where(rows, uniform, 0.0).sum((0, 2))]
        else:
            sums += [torch.zeros_like(sums[0])] * 3
        self._add((seen.layer, seen.first_head), torch.stack([x.double() for x in sums]))

    def compute(self) -> Sequence[Row]:
        """Up to two rows a layer and head."""
        rows: list[Row] = []
        for (layer, first), sums in sorted(self.sums.items(), key=lambda item: item[0]):
            for head, (gaps, gap, tokens, own, null) in enumerate(sums.T.tolist(), start=first):
                rows.append(Row(theory="network", quantity=GAP, value=gap / gaps if gaps else None, layer=layer, head=head))
                if tokens:
                    weight, uniform = own / tokens, null / tokens
                    rows.append(Row(theory="network", quantity=DIAGONAL, value=weight, null=uniform, layer=layer, head=head))
        return rows

    def merge(self, other: "AttentionSelection") -> None:
        """Adds what another reducer saw."""
        for place, sums in other.sums.items():
            self._add(place, sums)

    def _add(self, place: tuple[int, int], sums: Tensor) -> None:
        self.sums[place] = self.sums[place] + sums.to(self.sums[place].device) if place in self.sums else sums


class Geometry:
    """What each block does to the features: rank-collapse residual, stable and effective rank of the features.

    A row each a layer, no unit. The residual is relative, averaged over the sequences of the block's output; the features are all
    output tokens, uncentred. (The stable rank of the matrix after the attention is read by the theory that speaks of it, JoMA.)
    Source: :cite:t:`dong2021attention`, :cite:t:`rudelson2007sampling`, :cite:t:`roy2007effective`.
    """

    kinds = ("features",)

    def __init__(self):
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self.residuals: dict[int, tuple[int, float]] = {}  # layer -> sequences, sum of residuals
        self.moments: dict[int, Tensor] = {}  # layer -> sum of outer products of tokens, [dim, dim]

    def update(self, seen: Observation, labels: Int[Tensor, " batch"] | None) -> None:
        """Adds the output of one block."""
        if seen.kind != "features":
            return
        tokens = seen.output
        size = torch.linalg.matrix_norm(tokens)
        good = torch.isfinite(size) & (size > 0)
        if not bool(good.all()):
            tokens, size = tokens[good], size[good]
        residual = torch.linalg.matrix_norm(tokens - tokens.mean(-2, keepdim=True)) / size
        flat = tokens.flatten(0, 1).double()
        self._add(seen.layer, (len(tokens), float(residual.sum())), flat.mT @ flat)

    def compute(self) -> Sequence[Row]:
        """Three rows a layer."""
        rows: list[Row] = []
        for layer, (count, total) in sorted(self.residuals.items()):
            stable, effective = _ranks(self.moments[layer])
            found = {RESIDUAL: total / count if count else float("nan"), FEATURE_RANK: stable, EFFECTIVE_RANK: effective}
            for quantity, value in found.items():
                rows.append(Row(theory="network", quantity=quantity, value=_number(value), layer=layer))
        return rows

    def merge(self, other: "Geometry") -> None:
        """Adds what another reducer saw."""
        for layer, residual in other.residuals.items():
            self._add(layer, residual, other.moments[layer])

    def _add(self, layer: int, residual: tuple[int, float], moments: Tensor) -> None:
        if layer in self.moments:
            count, total = self.residuals[layer]
            residual = count + residual[0], total + residual[1]
            moments = self.moments[layer] + moments.to(self.moments[layer].device)
        self.residuals[layer], self.moments[layer] = residual, moments


class AttentionMaps:
    """Keeps the attention maps of the first few sequences, for pictures: no rows, arrays ``attention/<layer>`` [sequences, heads, q, k].

    A second attention of a block is ``attention/<layer>.<number of its first head>``.

    Args:
        keep: sequences of each reading.
    Raises:
        ValueError: ``keep`` is less than 1. Source: :cite:t:`vaswani2017attention`.
    """

    def __init__(self, keep: int = 4):
        if keep < 1:
            raise ValueError(f"keep must be at least 1 sequence, got {keep}")
        self.keep = keep
        self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self.maps: dict[str, Tensor] = {}

    def update(self, seen: Observation, labels: Int[Tensor, " batch"] | None) -> None:
        """Keeps maps as long as there are fewer than ``keep``."""
        if seen.weights is not None:
            self._add(f"attention/{seen.layer:02d}" + (f".{seen.first_head}" if seen.first_head else ""), seen.weights)

    def compute(self) -> Sequence[Row]:
        """No rows."""
        return []

    def arrays(self) -> dict[str, np.ndarray]:
        """The maps, ``[sequences, heads, queries, keys]``."""
        return {name: maps.cpu().numpy() for name, maps in self.maps.items()}

    def merge(self, other: "AttentionMaps") -> None:
        """Adds maps of another reducer as long as there are fewer than ``keep``."""
        for name, maps in other.maps.items():
            self._add(name, maps)

    def _add(self, name: str, maps: Tensor) -> None:
        kept = self.maps.get(name)
        if kept is None:
            self.maps[name] = maps[: self.keep].clone()
        elif len(kept) < self.keep and kept.shape[1:] == maps.shape[1:]:
            self.maps[name] = torch.cat([kept, maps[: self.keep - len(kept)].to(kept)])


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _ranks(gram: Tensor) -> tuple[float, float]:
    """||A||_F^2 / ||A||_2^2 and exp H(singular values / their sum) from A^T A; NaN for a zero or infinite matrix."""
    if not bool(torch.isfinite(gram).all()) or not float(gram.trace()) > 0:
        return float("nan"), float("nan")
    squares = torch.linalg.eigvalsh(gram).clamp(min=0)
    shares = squares.sqrt() / squares.sqrt().sum()
    return float(gram.trace() / squares[-1]), float(torch.special.entr(shares).sum().exp())


def rank_of(matrix: Float[Tensor, "m n"]) -> float:
    """Stable rank ||A||_F^2 / ||A||_2^2 of a weight, by its smaller Gram matrix; NaN for a zero or infinite one.

    Source: :cite:t:`rudelson2007sampling`.
    """
    short = matrix.double() if matrix.shape[0] >= matrix.shape[1] else matrix.double().mT
    return _ranks(short.mT @ short)[0]


def matrix_after(seen: Observation, attention: str | None) -> Float[Tensor, "m n"] | None:
    """The first two-dimensional weight of the block that is registered after the attention (and outside it): the MLP's lower layer.

    Args:
        seen: a block.
        attention: name of its attention module, as observed before it.
    """
    block = seen.parent
    if not isinstance(block, nn.Module) or attention is None or not attention.startswith(f"{seen.module}." if seen.module else ""):
        return None
    inside = attention[len(seen.module) + 1 if seen.module else 0 :].split(".")[0]
    names = [name for name, _ in block.named_children()]
    later = names[names.index(inside) + 1 :] if inside in names else []
    for name in later:
        for module in block.get_submodule(name).modules():
            weight = getattr(module, "weight", None)
            if isinstance(weight, Tensor) and weight.ndim == 2:
                return weight.detach()
    return None
