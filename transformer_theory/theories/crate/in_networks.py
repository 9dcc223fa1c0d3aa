r"""Compression and sparsity in trained networks.

Z is the residual stream before the attention of a block, Z+ after it, and U_k an orthonormal basis of the
columns of the block's matrices (``subspaces()``), or of its key projections if its matrices are separate.
With coordinates W_k(Z) (a :data:`Scaling`),

    R^c(Z) = 1/2 sum_k logdet(I + p/(n eps^2) W_k^T W_k),      compression = 1 - R^c(Z+) / R^c(Z).

A change of the tokens' lengths alone changes a rate. Therefore the default scaling centres each token and
scales it to norm one, as a layer norm without parameters does. Averaging makes tokens more alike in *any*
subspaces. Therefore the chance level is the same quantity in the subspaces O U_k, where O is a random
rotation of the whole space, the same for all k. Without rescaling, the growth R^c(Z+) / R^c(Z) - 1 is the
subject of :cite:t:`hu2024indepth`.

:func:`head_rate` and :class:`Compression` are the only implementation of R^c in networks.
:mod:`.layer_curves` uses them with the scaling and the distortion of the released code.

Source: :cite:t:`yu2023white` (both curves, layer by layer).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.measurement import Measurement, Null
from ...core.metric import ActivationKind, Activations, Metric, PerModule, Place
from ...core.statistics import RANGE_DRAWS, fixed_generator
from ...core.theory import InNetworks
from ...core.validation import positive
from ...maths.linalg import orthonormalise
from ...metrics.coding import coding_rate
from ...metrics.coding.rates import coordinates, normalised
from ...models.crate.compression import Bases
from .problem import CURVES, SIGN, nonzeros, random_subspaces

Stream = Float[Tensor, "batch n d"]
Heads = Float[Tensor, "*batch K n p"]

# as in the unrolled model; with .1, the value of the released code, the logarithm hides most changes
EPS = 0.5
MAX_SEQUENCES = 16  # sequences per forward pass, evenly spaced in the batch
MAX_DRAWN = 2  # sequences in rotated subspaces; a rotation is the same for all of them
COMPRESSION, GROWTH = "compression by attention", "growth of R^c in attention"
BEFORE, AFTER = "R^c before attention", "R^c after attention"
NONZEROS = "share of non-zeros"
RANDOM_SUBSPACES = "random subspaces"
ROTATED = "randomly rotated subspaces"
# far from the seeds of data, so that no random subspace equals one from which synthetic data were drawn
NULL_SEED = 1_000_003


@dataclass(frozen=True)
class CentredCoordinates:
    r"""Coordinates of centred tokens in K subspaces, from which every scaling follows without another product
    with the bases.

    Attributes:
        coords: coordinates :math:`(z - \bar z 1)^\top U_k` of every token z, with the mean :math:`\bar z` of
            its entries.
        means: mean :math:`\bar z` of the entries of each token.
        norms: norm of each centred token.
        ones: coordinates :math:`1^\top U_k` of the vector of ones.
    """

    coords: Heads
    means: Float[Tensor, "*batch n"]
    norms: Float[Tensor, "*batch n"]
    ones: Float[Tensor, "K p"]


Scaling = Callable[[CentredCoordinates], Heads]
"""Function that returns the coordinates W_k from which the rate is computed."""


def unit_tokens(centred: CentredCoordinates) -> Heads:
    """Returns the coordinates of the tokens after centring and scaling to norm one."""
    norms = centred.norms[..., None, :, None]
    return centred.coords / torch.where(norms > 0, norms, 1)


def unit_coordinates(centred: CentredCoordinates) -> Heads:
    """Returns the coordinates of layer-normalised tokens, scaled to norm one in every head, as in the
    released measurement.
    """
    return normalised(centred.coords)  # the layer norm's division by the standard deviation cancels


def lengths_kept(centred: CentredCoordinates) -> Heads:
    """Returns the coordinates of the tokens without rescaling."""
    return centred.coords + centred.means[..., None, :, None] * centred.ones[:, None]


def head_rate(coords: Heads, *, eps: float) -> Float[Tensor, "*batch"]:
    r"""Computes R^c from coordinates: :math:`\tfrac12\sum_k\log\det(I + \tfrac{p}{n\varepsilon^2} W_k^\top
    W_k)`, nats, [*batch].

    Args:
        coords: W_k of every head, [*batch, K, n, p].
        eps: distortion (squared inside).
    Raises:
        ValueError: coordinates are not finite, or ``eps`` is not positive and finite.
    """
    return coding_rate(coords, eps=eps).sum(-1)


class Compression(PerModule):
    """R^c before and after every attention block and its relative fall, with rotated subspaces as the null;
    means over sequences.

    Rotations keep the angles between the subspaces of a block. This matters for trained subspaces, which
    share directions: subspaces drawn mutually orthogonal have a distribution several times narrower.

    Sequences with values that are not finite are skipped, and so are blocks whose subspaces are unknown
    (neither ``subspaces()`` nor ``bilinear()``). If a block has several attention modules, the first one is
    measured.

    Args:
        eps: distortion (squared inside).
        scaling: function that computes the coordinates: :func:`unit_tokens`, :func:`unit_coordinates` or
            :func:`lengths_kept`.
        max_sequences: largest number of sequences per forward pass, evenly spaced in the batch; None: all.
        rotations: largest number of rotations, the draws of the null.
        max_drawn: largest number of sequences of a measurement that are measured in rotated subspaces too,
            evenly spaced in the first passes, since each costs as much as all else; None: all.

    Attributes:
        sums: by layer and 0, [3 + 1 + 2 (1 + rotations)]: number of sequences and the sums of R^c before and
            after in U; then the same of the sequences with rotations, in U and in each rotation of U.
        bases: by layer, the subspaces of its attention and a description of their origin.

    Raises:
        ValueError: ``eps`` is not positive and finite.
    """

    theory, quantity, side, source, null_kind = "crate", COMPRESSION, ">=", CURVES, ROTATED

    def __init__(
        self,
        *,
        eps: float = EPS,
        scaling: Scaling = unit_tokens,
        max_sequences: int | None = MAX_SEQUENCES,
        rotations: int = RANGE_DRAWS,
        max_drawn: int | None = MAX_DRAWN,
    ):
        positive(eps=eps)
        self.eps, self.scaling, self.max_sequences, self.rotations = (eps, scaling, max_sequences, rotations)
        self.max_drawn = max_drawn
        super().__init__()

    def reset(self) -> None:
        super().reset()
        self.bases: dict[int, tuple[Tensor, str]] = {}
        self.sets = min(self.rotations, self.draws)  # rotations in this measurement

    def statistics(self, activations: Activations) -> Float[Tensor, " rates"] | None:
        """Stores the subspaces of an attention block; when the features of its layer arrive, returns the
        rates of the streams before and after it.
        """
        layer = activations.layer
        if (
            activations.kind == "attention"
            and not activations.first_head
            and (bases := activations.shared(attention_subspaces)) is not None
        ):
            self.bases[layer] = bases
        elif (
            activations.kind == "features" and activations.after_attention is not None and layer in self.bases
        ):
            found = self._rates(activations, self.max_sequences, 0)
            if found is None or not self.sets:
                return found if found is None else torch.cat([found, found])
            drawn = float(self.sums[layer, 0][3]) if (layer, 0) in self.sums else 0.0
            left = None if self.max_drawn is None else self.max_drawn - int(drawn)
            limits = (limit for limit in (left, self.max_sequences) if limit is not None)
            most = min(limits, default=None)
            rotated = None if most == 0 else self._rates(activations, most, self.sets)
            return torch.cat(
                [found, found.new_zeros(1 + 2 * (1 + self.sets)) if rotated is None else rotated]
            )
        return None

    def _rates(
        self, activations: Activations, sequences: int | None, sets: int
    ) -> Float[Tensor, " rates"] | None:
        """Returns the number of sequences and the sums of R^c before and after, in U and in rotations of U;
        None if no sequence can be measured.
        """
        bases, _ = self.bases[activations.layer]
        centred = activations.shared(coordinates_around_attention, bases, sequences, sets)
        if centred is None or not (count := len(centred.coords) // 2):
            return None
        coords = self.scaling(centred).unflatten(1, (1 + sets, -1))
        rates = head_rate(coords, eps=self.eps).unflatten(0, (2, count)).double().sum(1).cpu()
        return torch.cat([rates.new_tensor([float(count)]), rates.mT.flatten()])

    def rows(
        self, place: Place, sums: Float[Tensor, " rates"], *, draws: int, generator: torch.Generator | None
    ) -> Iterator[Measurement]:
        """Yields three rows: :data:`COMPRESSION`, :data:`BEFORE` and :data:`AFTER` (nats)."""
        rates, columns = (sums[1:3] / sums[0]).tolist(), self._columns(place, sums)
        yield self.row(_fall(*rates), nulls=self._null(sums, draws, _fall), **columns)
        for number, quantity in enumerate((BEFORE, AFTER)):
            null = self._null(sums, draws, lambda *pair, number=number: pair[number])
            yield self.other_row(quantity, rates[number], nulls=null, unit="nats", **columns)

    def _null(
        self, sums: Float[Tensor, " rates"], draws: int, quantity: Callable[[float, float], float]
    ) -> tuple[Null, ...]:
        """Returns the null of a quantity of R^c before and after, with its value on the sequences with
        rotations if there are others.
        """
        if not draws or not float(sums[3]):
            return ()
        own, rotated = mean_rates(sums[3:], draws)
        value = None if sums[3] == sums[0] else quantity(*own)
        return (Null(self.null_kind, tuple(quantity(*pair) for pair in rotated), value),) if rotated else ()

    def _columns(self, place: Place, sums: Tensor) -> dict[str, Any]:
        """Returns the number of sequences of a layer, and the origin of its subspaces."""
        origin = self.bases[place[0]][1] if place[0] in self.bases else ""
        return {"n": int(sums[0]), "note": f"in the subspaces of {origin}" if origin else ""}

    def merge(self, other: Any) -> None:
        self.bases |= other.bases
        super().merge(other)


class Growth(Compression):
    """Growth of R^c in attention without rescaling of the tokens, R^c(Z+) / R^c(Z) - 1; arguments as in
    :class:`Compression`.
    """

    quantity, side, source = GROWTH, None, SIGN

    def __init__(
        self, *, eps: float = EPS, max_sequences: int | None = MAX_SEQUENCES, rotations: int = RANGE_DRAWS
    ):
        super().__init__(eps=eps, scaling=lengths_kept, max_sequences=max_sequences, rotations=rotations)

    def rows(
        self, place: Place, sums: Float[Tensor, " rates"], *, draws: int, generator: torch.Generator | None
    ) -> Iterator[Measurement]:
        """Yields one row."""
        rates = (sums[1:3] / sums[0]).tolist()
        null = self._null(sums, draws, lambda *pair: -_fall(*pair))
        yield self.row(-_fall(*rates), nulls=null, **self._columns(place, sums))


def mean_rates(sums: Float[Tensor, " rates"], draws: int) -> tuple[list[float], list[list[float]]]:
    """Returns the mean R^c (before, after) in the subspaces U, and the same pair in up to ``draws`` rotations
    of them, from the sums of the sequences with rotations, see :class:`Compression`.
    """
    in_bases, *in_rotated = (sums[1:] / sums[0]).unflatten(0, (-1, 2)).tolist()
    return in_bases, in_rotated[:draws]


class Sparsity(PerModule):
    """Share of exactly non-zero entries in the output of each block; one row per layer.

    Attributes:
        sums: by layer and 0, [2]: number of sequences, sum of their shares.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("features",)
    null_source = "networks"
    theory, quantity, unit, side, source = "crate", NONZEROS, "share", "<=", CURVES

    def statistics(self, activations: Activations) -> Float[Tensor, "2"]:
        """Returns the shares of one block's output."""
        output = activations.output
        finite = output.sum((1, 2), dtype=torch.float64).isfinite()
        output = output if bool(finite.all()) else output[finite]
        total = float(nonzeros(output).double().sum()) if len(output) else 0.0
        return torch.tensor([len(output), total], dtype=torch.float64)

    def rows(
        self, place: Place, sums: Float[Tensor, "2"], *, draws: int, generator: torch.Generator | None
    ) -> Iterator[Measurement]:
        """Yields one row, in [0, 1]."""
        count, total = sums.tolist()
        note = "exact zeros of the output of a block; deeper blocks should be sparser"
        value = total / count if count else None
        yield self.row(value, reason="no sequence is finite", n=int(count), note=note)


def streams_around_attention(
    activations: Activations, bases: Bases, max_sequences: int | None
) -> Float[Tensor, "before_and_after m n d"] | None:
    """Returns the residual stream before and after the attention of a block, of its finite sequences, at
    least in float32.

    Args:
        activations, bases, max_sequences: as in :func:`coordinates_around_attention`.
    Returns:
        Both streams; None if they are not known or do not fit.
    """
    before, after = activations.tokens, activations.after_attention
    if after is None or before.shape != after.shape or before.shape[-1] != bases.shape[1]:
        return None
    limit = len(before) if max_sequences is None else min(max_sequences, len(before))
    indices = torch.linspace(0, len(before) - 1, limit).round().long()
    streams = torch.stack([before[indices], after[indices]])
    streams = streams.to(torch.promote_types(streams.dtype, torch.float32))
    finite = torch.isfinite(streams.sum((0, 2, 3), dtype=torch.float64))  # cheaper than a test of every entry
    return streams if bool(finite.all()) else streams[:, finite]


def coordinates_around_attention(
    activations: Activations, bases: Bases, max_sequences: int | None, rotations: int
) -> CentredCoordinates | None:
    """Computes the coordinates of the residual stream before and after the attention of a block, of its
    finite sequences.

    The precision is that of the stream, at least float32. A rate has then a relative error of about 1e-7,
    because :func:`.logdet_identity_plus` continues in float64 where the condition number is large.

    Args:
        activations: features of a block.
        bases: orthonormal bases of the block's subspaces.
        max_sequences: largest number of sequences, evenly spaced in the batch; None: all.
        rotations: number of rotations of the subspaces; see :func:`random_rotations`.
    Returns:
        Coordinates of all sequences before attention, then after it, in the bases and then in each rotation
        of them; None if the two streams are not known or do not fit.
    """
    streams = streams_around_attention(activations, bases, max_sequences)
    if streams is None:
        return None
    tokens = streams.flatten(0, 1)
    means = tokens.mean(-1)
    tokens = tokens - means[..., None]
    d = bases.shape[1]
    bases = bases.to(tokens.dtype)
    # one product of [rotations d, d] and [d, K p], since a product of every pair would copy both
    rotated = random_rotations(d, rotations).to(bases).flatten(0, 1) @ bases.transpose(0, 1).flatten(1)
    rotated = rotated.view(rotations, d, *bases.shape[::2]).transpose(1, 2)
    frames = torch.cat([bases, rotated.flatten(0, 1)])
    return CentredCoordinates(
        coordinates(tokens, frames), means, torch.linalg.vector_norm(tokens, dim=-1), frames.sum(1)
    )


def attention_subspaces(activations: Activations) -> tuple[Bases, str] | None:
    """Returns orthonormal bases [K, d, p] of the subspaces of an attention block, and a description of their
    origin; None if unknown.

    The subspaces come from ``subspaces()`` of the module if it exists, otherwise from its key projections.
    """
    subspaces = getattr(activations.module, "subspaces", None)
    if callable(subspaces):
        U = subspaces()
        assert isinstance(U, Tensor)
        W, U, origin = U, U.detach().double(), "the block itself (U)"
    elif activations.key_map is not None:
        W = activations.key_map
        U, origin = W.detach().double().mT, "the key projections"
    elif activations.bilinear is not None and activations.key is not None:
        # W = K Q^T maps p random vectors to a basis of the span of K (almost surely), so a singular value
        # decomposition of every W, which costs far more, is not necessary. Directions of K whose singular
        # values are near the rounding of W are lost.
        W = activations.bilinear
        p, d = min(activations.key.shape[-1], W.shape[-1]), W.shape[-1]
        U, origin = W.detach().double() @ null_subspaces(1, d, p, seed=0).to(W.device), "the key projections"
    else:
        return None
    if not bool(torch.isfinite(U).all()):
        return None
    return torch.linalg.qr(U)[0].to(torch.promote_types(W.dtype, torch.float32)), origin


@lru_cache(maxsize=256)
def null_subspaces(K: int, d: int, p: int, *, seed: int) -> Bases:
    """Returns random subspaces [K, d, p], the same for every call with this seed."""
    return random_subspaces(K, d, p, generator=torch.Generator().manual_seed(NULL_SEED + seed))


@lru_cache(maxsize=4)
def random_rotations(d: int, draws: int) -> Float[Tensor, "draws d d"]:
    """Returns uniformly distributed orthogonal matrices, float64; matrix i is the same in every call with
    this d.
    """
    generator = fixed_generator()
    drawn = [
        orthonormalise(torch.randn(d, d, generator=generator, dtype=torch.float64)) for _ in range(draws)
    ]
    return torch.stack(drawn) if drawn else torch.empty(0, d, d, dtype=torch.float64)


def _fall(before: float, after: float) -> float:
    """Returns 1 - after / before; 0 if the rate before is 0."""
    return 1 - after / before if before > 0 else 0.0


def metrics() -> tuple[Metric, ...]:
    """Returns new metrics of the theory."""
    return Compression(), Growth(), Sparsity()


IN_NETWORKS = InNetworks(
    metrics=metrics,
    headline=COMPRESSION,
    side=">=",
    meaning="share by which attention lowers the coding rate of the tokens in the subspaces of its heads",
    below_zero="which is an expansion",
)
