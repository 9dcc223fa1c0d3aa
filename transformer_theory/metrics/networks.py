"""Metrics of transformers that belong to no theory: statistics of attention weights, geometry of the
features, attention maps.

The state of a metric consists of sums and counts over sequences, so merging two metrics gives the state for
the union of their sequences. Layers and heads are numbered as in
:class:`~transformer_theory.core.metric.Activations`. Source: :cite:t:`zhai2023stabilizing` (entropy),
:cite:t:`xiao2024efficient` (sinks), :cite:t:`dong2021attention` (rank collapse),
:cite:t:`rudelson2007sampling` (stable rank), :cite:t:`roy2007effective` (effective rank).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..core.intervention import BlockPass, Projected
from ..core.measurement import Measurement, Null, Unit
from ..core.metric import ActivationKind, Activations, Metric, Place
from ..core.threads import single_threaded
from ..maths.linalg import binary_scale, smaller_gram, vector_norm
from .attention import entropy, hard_max_gap

ENTROPY, TOP1, SUPPORT, SINK = "attention entropy", "top-1 mass", "effective support", "sink mass"
GAP, DIAGONAL = "gap of the scores", "weight on the token itself"
RESIDUAL, FEATURE_RANK, EFFECTIVE_RANK = (
    "rank-collapse residual",
    "stable rank of the features",
    "effective rank of the features",
)
UNIFORM = "uniform attention over the allowed keys"
LANCZOS_SIZE = 100  # of a Gram matrix whose largest eigenvalue is computed alone
MIN_ROW_SUM = 0.5  # a row of weights with a smaller sum is not a distribution
STATISTICS: tuple[tuple[str, Unit], ...] = (
    (ENTROPY, "nats"),
    (TOP1, "share"),
    (SUPPORT, ""),
    (SINK, "share"),
)


def network_row(quantity: str, value: float, unit: Unit, *, reason: str, **columns: Any) -> Measurement:
    """Builds a measurement that belongs to no theory. ``reason`` is used only if the value is not finite."""
    finite = math.isfinite(value)
    return Measurement(
        "network",
        "network",
        quantity,
        value if finite else None,
        unit=unit,
        reason="" if finite else reason,
        scope="training",
        **columns,
    )


@dataclass(frozen=True)
class WeightRows:
    """Attention weights whose rows all are distributions, because other rows are replaced.

    Attributes:
        weights: ``[batch, heads, q, k]``; a row that is no distribution (no allowed key, or not finite) has
            all weight on the first key.
        valid: mask of the rows that were distributions, ``[batch, heads, q]``; None if all were.
        entropy: of each row, nats, ``[batch, heads, q]``.
    """

    weights: Float[Tensor, "batch heads q k"]
    valid: Bool[Tensor, "batch heads q"] | None
    entropy: Float[Tensor, "batch heads q"]

    @cached_property
    def received(self) -> Float[Tensor, "batch heads k"]:
        """The weight that each key gets, summed over the queries whose rows were distributions."""
        return self.counted(self.weights).sum(2)

    def counted(self, values: Tensor) -> Tensor:
        """Returns values of the rows, ``[batch, heads, q, ...]``, with zeros for the rows that were no
        distributions.
        """
        return (
            values
            if self.valid is None
            else values * self.valid.view(*self.valid.shape, *[1] * (values.ndim - 3)).to(values.dtype)
        )


def weight_rows(activations: Activations) -> WeightRows | None:
    """Returns the attention weights of a module with the entropies of their rows; None if it has
    no weights.
    """
    weights = activations.weights
    if weights is None:
        return None
    total = weights.sum(-1)
    valid = torch.isfinite(total) & (total > MIN_ROW_SUM)
    if bool(valid.all()):
        return WeightRows(weights, None, entropy(weights))
    first = torch.zeros(weights.shape[-1], dtype=weights.dtype, device=weights.device)
    first[0] = 1.0
    weights = torch.where(valid[..., None], weights, first)
    return WeightRows(weights, valid, entropy(weights))


class AttentionStatistics(Metric):
    """Entropy (nats), top-1 mass, effective support (keys) and sink mass of each layer and head.

    All four are means over queries and sequences. The sink is the key position with the largest mean weight.
    Rows without an allowed key and rows with values that are not finite are left out.

    Attributes:
        sums: sums by layer and first head, ``[4 + keys, heads]``: number of rows, entropy, top-1 mass,
            effective support, weight per key.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)
    null_source = "networks"
    pads = True

    def update(self, activations: Activations) -> None:
        """Adds the attention weights of one module."""
        if (sums := activations.shared(weight_sums)) is not None:
            self.add((activations.layer, activations.first_head), sums)

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns four rows per layer and head."""
        rows: list[Measurement] = []
        for (layer, first), sums in sorted(self.sums.items(), key=lambda item: item[0]):
            means = torch.cat([sums[1:4] / sums[0], (sums[4:] / sums[0]).amax(0)[None]])
            for head, values in enumerate(means.T.tolist(), start=first):
                for (quantity, unit), value in zip(STATISTICS, values):
                    rows.append(
                        network_row(
                            quantity,
                            value,
                            unit,
                            layer=layer,
                            head=head,
                            reason="no row of weights is finite",
                        )
                    )
        return rows


def weight_sums(activations: Activations) -> Float[Tensor, "sums heads"] | None:
    """Returns the sums of :class:`AttentionStatistics` for one module; None if it has no weights."""
    if (rows := activations.shared(weight_rows)) is None:
        return None
    H = rows.entropy
    sums = torch.stack(
        [rows.counted(x).sum((0, 2)) for x in (torch.ones_like(H), H, rows.weights.amax(-1), H.exp())]
    )
    return torch.cat([sums.double(), rows.received.double().sum(0).mT])


class AttentionSelection(Metric):
    """Gap of the scores (how clearly attention selects one key), and weight of each token on itself.

    The gap is the largest score minus the second largest, in nats, averaged over the queries with at least
    two allowed keys; it is 0 for uniform attention. Weights that underflow are replaced by the smallest
    normal number of their dtype. The weight of a token on itself is measured if there are as many queries as
    keys; its null is one draw, uniform attention over the allowed keys.

    Attributes:
        sums: sums by layer and first head, ``[5, heads]``: number of gaps, gap, number of tokens, weight on
            the token itself, chance level of that weight.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)

    def update(self, activations: Activations) -> None:
        """Adds the attention weights of one module; rows that are not distributions are left out."""
        if activations.weights is None:
            return
        weights, T = activations.weights, activations.weights.shape[-1]
        total = weights.sum(-1)
        rows = torch.isfinite(total) & (total > 0.5)
        allowed = (
            torch.ones_like(weights, dtype=torch.bool)
            if activations.mask is None
            else activations.mask.expand_as(weights)
        )
        # Log-weights differ from scores by a constant per row, which cancels in the gap. Excluded rows become
        # ties with all keys allowed, so that hard_max_gap accepts them; they are not counted.
        scores = weights.clamp(min=torch.finfo(weights.dtype).tiny).log().masked_fill(~rows[..., None], 0.0)
        gaps = hard_max_gap(scores, allowed=allowed | ~rows[..., None])
        counted = rows & torch.isfinite(gaps)
        sums = [counted.sum((0, 2)), gaps.masked_fill(~counted, 0.0).sum((0, 2))]
        if weights.shape[-2] == T:
            self_weight = torch.where(rows, weights.diagonal(dim1=-2, dim2=-1), 0.0).sum((0, 2))
            uniform = allowed.diagonal(dim1=-2, dim2=-1).double() / allowed.sum(-1).clamp(min=1)
            sums += [rows.sum((0, 2)), self_weight, torch.where(rows, uniform, 0.0).sum((0, 2))]
        else:
            sums += [torch.zeros_like(sums[0])] * 3
        self.add((activations.layer, activations.first_head), torch.stack([x.double() for x in sums]))

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns up to two rows per layer and head."""
        rows: list[Measurement] = []
        for (layer, first), sums in sorted(self.sums.items(), key=lambda item: item[0]):
            for head, (count, gap, tokens, weight, chance) in enumerate(sums.T.tolist(), start=first):
                place = {"layer": layer, "head": head}
                mean = gap / count if count else math.nan
                rows.append(
                    network_row(
                        GAP, mean, "nats", reason="no query has two allowed keys and finite weights", **place
                    )
                )
                if tokens:
                    uniform = Null(UNIFORM, (chance / tokens,)) if draws else None
                    rows.append(
                        network_row(
                            DIAGONAL,
                            weight / tokens,
                            "share",
                            nulls=(uniform,),
                            reason="a weight is not finite",
                            **place,
                        )
                    )
        return rows


class Geometry(Metric):
    """Rank-collapse residual, stable rank and effective rank of the features after each block.

    The residual is relative, and averaged over the sequences of the block's output. The ranks are those of
    all output tokens, uncentred.

    Attributes:
        sums: sums by layer. ``(layer, 0)``: number of sequences and sum of their residuals, ``[2]``.
            ``(layer, 1)``: sum of the outer products of the tokens, ``[dim, dim]``.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("features",)
    null_source = "networks"

    def update(self, activations: Activations) -> None:
        """Adds the output of one block."""
        if activations.kind != "features":
            return
        tokens = activations.output.to(torch.promote_types(activations.output.dtype, torch.float32))
        scale = binary_scale(tokens, (-2, -1))  # squares of scaled tokens are in range
        size = torch.linalg.matrix_norm(tokens / scale)
        valid = torch.isfinite(size) & (size > 0)
        if not bool(valid.all()):
            tokens, size, scale = tokens[valid], size[valid], scale[valid]
        scaled = tokens / scale
        residual = (vector_norm(scaled - scaled.mean(-2, keepdim=True), (-2, -1)) / size).sum().double()
        flat = tokens.flatten(0, 1).double()
        self.add((activations.layer, 0), torch.stack([torch.full_like(residual, len(tokens)), residual]))
        self.add((activations.layer, 1), flat.mT @ flat)

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns three rows per layer."""
        rows: list[Measurement] = []
        for layer in sorted({place[0] for place in self.sums}):
            count, total = self.sums[layer, 0].tolist()
            stable, effective = _ranks(self.sums[layer, 1])
            values = {
                RESIDUAL: total / count if count else math.nan,
                FEATURE_RANK: stable,
                EFFECTIVE_RANK: effective,
            }
            rows += [
                network_row(quantity, x, "", layer=layer, reason="no sequence is finite")
                for quantity, x in values.items()
            ]
        return rows


class AttentionMaps(Metric):
    """Stores the attention maps of the first sequences for figures, as arrays ``attention/<layer>``
    [sequences, heads, q, k]. Has no rows.

    The array of a second attention module in a block is ``attention/<layer>.<index of its first head>``.

    Args:
        keep: number of sequences to store.
    Raises:
        ValueError: ``keep`` is less than 1.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention",)
    takes_padding = True

    def __init__(self, keep: int = 4):
        if keep < 1:
            raise ValueError(f"keep must be at least 1 sequence, got {keep}")
        self.keep = keep
        super().__init__()

    def update(self, activations: Activations) -> None:
        """Adds maps until ``keep`` sequences are stored."""
        if activations.weights is not None:
            self.add((activations.layer, activations.first_head), activations.weights)

    def compute(self, *, draws: int = 0, generator: torch.Generator | None = None) -> Sequence[Measurement]:
        """Returns no rows."""
        return []

    def add(self, place: Place, sums: Tensor) -> None:
        """Appends maps ``[sequences, heads, queries, keys]`` of one layer and first head, up to ``keep``
        sequences.
        """
        before = self.sums.get(place)
        if before is None:
            self.sums[place] = sums[: self.keep].clone()
        elif len(before) < self.keep and before.shape[1:] == sums.shape[1:]:
            self.sums[place] = torch.cat([before, sums[: self.keep - len(before)].to(before)])

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the maps by name, ``[sequences, heads, queries, keys]``."""
        return {
            f"attention/{layer:02d}" + (f".{first}" if first else ""): maps.cpu().numpy()
            for (layer, first), maps in self.sums.items()
        }


@single_threaded
def _ranks(gram: Float[Tensor, "n n"]) -> tuple[float, float]:
    """Computes stable and effective rank of A from its Gram matrix A^T A; NaN for a zero or
    infinite matrix.
    """
    if not bool(torch.isfinite(gram).all()) or not float(gram.trace()) > 0:
        return math.nan, math.nan
    # squared singular values of A, ascending; rounding may make zeros negative
    squares = torch.linalg.eigvalsh(gram).clamp(min=0)
    shares = squares.sqrt() / squares.sqrt().sum()
    return float(gram.trace() / squares[-1]), float(torch.special.entr(shares).sum().exp())


@single_threaded
def rank_of(matrix: Float[Tensor, "m n"]) -> float:
    """Computes the stable rank ||A||_F^2 / ||A||_2^2 of a weight; NaN for a zero or infinite matrix."""
    # The stable rank is well conditioned, so float32 suffices for a float32 matrix.
    gram = smaller_gram(matrix.to(torch.promote_types(matrix.dtype, torch.float32)))
    if len(gram) < LANCZOS_SIZE or not bool(torch.isfinite(gram).all()) or not float(gram.trace()) > 0:
        return _ranks(gram)[0]
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    # Of all eigenvalues only the largest is needed: eight times as fast at 768. The first vector is random,
    # since one of ones is orthogonal to the largest eigenvector of a matrix whose rows sum to zero.
    first = np.random.default_rng(0).standard_normal(len(gram))
    try:
        found = eigsh(gram.cpu().numpy(), k=1, which="LA", v0=first, return_eigenvectors=False)
    except ArpackNoConvergence:
        return _ranks(gram)[0]
    return float(gram.trace()) / float(found[0])


def matrix_after(
    block: Activations | BlockPass | Projected, attention: str | None
) -> Float[Tensor, "m n"] | None:
    """Finds the first two-dimensional weight of a block that is registered after its attention module: the
    first layer of the MLP.

    Args:
        block: activations of kind "features", or one pass of a block or of its attention.
        attention: name of the block's attention module.
    Returns:
        The weight, detached; None if the block has no such weight or does not contain the attention module.
    """
    module, prefix = block.module, f"{block.name}." if block.name else ""
    if not isinstance(module, nn.Module) or attention is None or attention[: len(prefix)] != prefix:
        return None
    attention_child = attention[len(prefix) :].split(".")[0]
    names = [name for name, _ in module.named_children()]
    later = names[names.index(attention_child) + 1 :] if attention_child in names else []
    for name in later:
        for child in module.get_submodule(name).modules():
            weight = getattr(child, "weight", None)
            if isinstance(weight, Tensor) and weight.ndim == 2:
                return weight.detach()
    return None
