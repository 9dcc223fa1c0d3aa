r"""Which heads of a network do induction, whether they copy, and how much of attention is positional.

*In any network with attention*, from its own inputs: the **positional share** of the scores. Let S be the
scores of a head, centred over the keys of each query, since softmax ignores the mean. The share of their
variance that all sequences have in common is

.. math:: \frac{E_{a \ne b} \langle S^a, S^b \rangle}{E_a \|S^a\|^2},

over pairs of sequences: 1 if attention depends on positions only, 0 in expectation if sequences have nothing
in common. For tokens e + p of independent Gaussian vectors with variances :math:`\sigma_e^2, \sigma_p^2` it
is :math:`(\sigma_p^2 / (\sigma_e^2 + \sigma_p^2))^2`: scores are quadratic. Untrained networks are its null.

*In networks of ids*: the scores of :mod:`.scores` on blocks that occur twice; the *copying score* of each
head (:mod:`.circuits`), whose matrices are found by comparing values with the module's projections, whatever
the layout; and the loss of each block. Norms between embedding, head and unembedding are left out of the
copying score. Sources: :cite:t:`elhage2021mathematical`, :cite:t:`olsson2022incontext`; the positional share
is our own.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from ...core.measurement import CORRELATION, Measurement
from ...core.metric import SHARED, ActivationKind, Activations, PerHead, PerModule, Place
from ...core.sources import Source
from ...core.statistics import RANGE_DRAWS, fixed_generator
from ...core.theory import InNetworks, Response
from ...maths.linalg import orthonormalise
from ...metrics.responses import PositionLoss
from .circuits import eigenvalue_share
from .matrices import embedding_product, value_and_output
from .scores import NAME, UNRELATED, InductionScores, block_length, draw_blocks

POSITIONAL, COPYING = "positional share of the scores", "copying score"
ROTATED = "random rotations of the head's values"
OWN, ELHAGE = Source("olsson2022incontext", status="own"), Source("elhage2021mathematical")
ENTRIES = 40_000  # scores of a sequence that are measured; all of those of up to 200 tokens
PART = 2**17  # scores that are summed at a time
SEQUENCES, LOSS_SHARE = 60, 10  # blocks by default; the loss is measured on a tenth of them


class PositionalShare(PerHead):
    """The positional share of the scores of each head, see the module's docstring.

    Sequences of different lengths have their positions in common, counted from the start. A score counts
    where at least two sequences have its query and its key. Of long sequences, random queries are measured,
    as many as give :data:`ENTRIES` scores.

    Attributes:
        sums: for each query and key the sum of the scores over sequences, the sum of their squares, and the
            number of sequences, ``[heads, q, k, 3]``. Shorter sequences are padded with zeros; long ones, of
            which some queries are measured, have the number of their tokens as a further part of their place.
    """

    theory, quantity, unit, source = NAME, POSITIONAL, "share", OWN
    null_source: ClassVar = "networks"
    pads = True

    def place(self, activations: Activations, statistics: Tensor) -> Place:
        """Returns layer and first head, and the number of keys if some queries are measured."""
        q, k = statistics.shape[1:3]
        place = super().place(activations, statistics)
        return place if activations.weights is None or q == activations.weights.shape[2] else (*place, k)

    def statistics(self, activations: Activations) -> Float[Tensor, "heads q k 3"] | None:
        """Returns the sums of one module; None if it has no known weights."""
        if (weights := activations.weights) is None or not len(weights):
            return None
        q, k = weights.shape[2:]
        if q * k > ENTRIES:
            # the same queries in all heads, layers and networks
            order = torch.randperm(q, generator=torch.Generator().manual_seed(q))
            weights = weights[:, :, order[: max(1, ENTRIES // k)].sort().values.to(weights.device)]
        smallest, total = torch.stack([weights.amin().float(), weights.sum(dtype=torch.float32)]).tolist()
        if not math.isfinite(total):
            weights = weights[weights.sum((1, 2, 3)).isfinite()]
            smallest = 0.0
        # Logarithms of the weights are the scores up to a constant per query, with any scale and bias; a
        # weight that underflows is cut off.
        S = (
            weights.to(torch.promote_types(weights.dtype, torch.float32))
            .clamp_min(torch.finfo(torch.float32).tiny)
            .log_()
        )
        if smallest > 0:
            S -= S.mean(-1, keepdim=True)
        else:
            allowed = weights > 0
            S *= allowed
            S -= S.sum(-1, keepdim=True) / allowed.sum(-1, keepdim=True).clamp(min=1)
            S *= allowed
        # Sums over sequences of centred scores cancel, so they are taken in double precision. Those of few
        # sequences at a time stay in the cache.
        total = torch.zeros(S.shape[1:], dtype=torch.float64, device=S.device)
        squares = torch.zeros_like(total)
        several = PART // total.numel()
        for part in S.split(several) if several > 1 else S:
            part = part.double()
            total += part.sum(0) if several > 1 else part
            squares += part.square_().sum(0) if several > 1 else part.square_()
        return torch.stack([total, squares, torch.full_like(total, float(len(S)))], -1).cpu()

    def rows_of_head(self, *sums: Float[Tensor, "q k 3"], draws: int) -> Iterator[Measurement]:
        """Yields the share of one head."""
        common = own = count = 0.0
        for total, squares, n in (each.unbind(-1) for each in sums):
            # Pairs of different sequences: |sum|^2 - sum of squares = sum over a != b of S_a S_b.
            several = n > 1
            common += float(((total.square() - squares) / (n - 1).clamp(min=1))[several].sum())
            own += float(squares[several].sum())
            count += float(n.max())
        value = None if own <= 1e-12 * count else common / own
        yield self.row(value, reason="all scores of a query are equal, or one sequence", n=int(count))


class CopyingScore(PerModule):
    """The copying score of each head, from the weights alone; inputs serve to find the matrices.

    In the null the values of each head are rotated at random before W_O, which keeps all singular values.

    Attributes:
        sums: W_V and W_O^T of each attention, ``[heads, 2, dim, p]``, by layer and first head; W_U W_E at
            place -1, ``[dim, dim]``. Empty tensors where a matrix was not found.
    """

    kinds: ClassVar[tuple[ActivationKind, ...]] = ("attention", "outputs")
    theory, quantity, side, source, null_kind = NAME, COPYING, ">=", ELHAGE, ROTATED
    bounds = CORRELATION

    def add(self, place: Place, sums: Tensor) -> None:
        """Stores a matrix; later batches have the same ones."""
        self.sums.setdefault(place, sums)

    def update(self, activations: Activations) -> None:
        """Stores the matrices of one module, or those of the embedding and unembedding."""
        if not isinstance(activations.module, nn.Module):
            return
        if activations.kind == "outputs":
            self.add(SHARED, embedding_product(activations.module))
        elif (place := (activations.layer, activations.first_head)) not in self.sums:
            self.add(place, value_and_output(activations))

    def compute(self, *, draws: int = 0, generator: Generator | None = None) -> Sequence[Measurement]:
        """Returns one row per layer and head. The modules share one stream of random numbers."""
        return super().compute(draws=draws, generator=fixed_generator() if generator is None else generator)

    def rows(
        self, place: Place, sums: Tensor, *, draws: int, generator: Generator | None
    ) -> Iterator[Measurement]:
        """Yields one row per head; a module whose matrices were not found has a row with the reason."""
        product = self.sums.get(SHARED, torch.empty(0, 0))
        known = sums.numel() and product.shape == (sums.shape[2],) * 2
        # W_O W_U W_E W_V of each head, [heads, p, p]
        core = sums[:, 1].mT @ product @ sums[:, 0] if known else sums
        if not known or not bool((core.abs().sum((1, 2)) > 0).all()) or not bool(core.isfinite().all()):
            reason = "is zero or not finite" if known else "was not found"
            yield self.row(None, reason=f"W_V, W_O, W_E or W_U {reason}")
            return
        normal = torch.randn(draws, *core.shape, generator=generator, dtype=torch.float64)
        chance = eigenvalue_share(orthonormalise(normal) @ core)
        for head, share in enumerate(eigenvalue_share(core).tolist()):
            yield self.row(share, draws=chance[:, head].tolist(), head=head)


class SecondBlockLoss(PositionLoss):
    """Mean loss of the ids of the second block, in nats; see :class:`.PositionLoss`."""

    def __init__(self):
        super().__init__(blocks=2)

    def compute(self, *, draws: int = 0, generator: Generator | None = None) -> Sequence[Measurement]:
        """Returns one row, that of the second block."""
        return [row for row in super().compute(draws=draws, generator=generator) if row.at["block"] == 1]


def limits_of(data: Tensor, limits: Mapping[str, int]) -> dict[str, int]:
    """Returns the limits "vocabulary", "length" and "sequences"; those that are missing come from the ids
    ``[n, seq]``.

    Raises:
        ValueError: the data are not ids.
    """
    if data.is_floating_point() or data.ndim != 2:
        raise ValueError(
            f"data must be ids [n, seq], got {data.dtype} {list(data.shape)}; this test needs a model that "
            "takes ids"
        )
    return {"vocabulary": int(data.max()) + 1, "length": data.shape[1], "sequences": SEQUENCES, **limits}


def repeated_blocks(data: Tensor, limits: Mapping[str, int], generator: Generator) -> dict[str, Any]:
    """Returns a set of blocks that occur twice, ``[n, 2P]``, and :data:`.RANGE_DRAWS` such sets of unrelated
    blocks.

    The limit "sequences" is that of all sets together. All have the same size, so that a head to which both
    kinds of blocks are alike exceeds the range of the null in one of twenty cases.
    """
    sizes = limits_of(data, limits)
    P, count = block_length(sizes), -(-sizes["sequences"] // (1 + RANGE_DRAWS))
    value, _ = draw_blocks(count, length=P, vocabulary=sizes["vocabulary"], generator=generator)
    _, null = draw_blocks(RANGE_DRAWS * count, length=P, vocabulary=sizes["vocabulary"], generator=generator)
    return {"value": value, "null": null.split(count)}


def next_token_blocks(data: Tensor, limits: Mapping[str, int], generator: Generator) -> dict[str, Any]:
    """Returns blocks that occur twice, ``[n, 2P]``, with their next ids as targets; in the null the first
    block is another one.
    """
    sizes = limits_of(data, limits)
    P = block_length(sizes)
    n = -(-sizes["sequences"] // LOSS_SHARE)
    value, null = draw_blocks(n, length=P, vocabulary=sizes["vocabulary"], generator=generator)
    unknown = torch.full((len(value), P), -1)  # negative ids are left out of the loss
    targets = torch.cat([unknown, value[:, P + 1 :], unknown[:, :1]], 1)
    return {"value": value, "null": [null], "targets": targets}


def sample_blocks(data: Tensor, limits: Mapping[str, int], generator: Generator) -> dict[str, Any]:
    """Returns four blocks that occur twice, ``[4, 2P]``, for metrics of weights."""
    sizes = limits_of(data, limits)
    return {
        "value": draw_blocks(
            4, length=block_length(sizes), vocabulary=sizes["vocabulary"], generator=generator
        )[0]
    }


RESPONSES = (
    Response(
        "repeated blocks", repeated_blocks, lambda: (InductionScores(),), null_kind=UNRELATED, reads="ids"
    ),
    Response("weights", sample_blocks, lambda: (CopyingScore(),), reads="ids"),
    Response(
        "continued blocks",
        next_token_blocks,
        lambda: (SecondBlockLoss(),),
        null_kind="another first block",
        reads="ids",
    ),
)
IN_NETWORKS = InNetworks(
    metrics=lambda: (PositionalShare(),),
    headline=POSITIONAL,
    side=None,
    responses=RESPONSES,
    meaning="share of the variance of the scores that all sequences have in common; 1: attention depends on "
    "positions only",
)
