r"""Predictions of JoMA for a trained network: attention follows from the MLP, whose lower layer has learnt
few components.

If attention and MLP learn together with exponential attention, :math:`z_c = \frac12 \sum_k v_{kc}^2 + const`:
the logit of a key is half the squared response of the lower layer to it. In a network the lower layer W of a
block receives the value :math:`v^h_c` of key c through the output matrix :math:`W_h` of head h, so the
prediction is

.. math:: A^h_{ic} \propto e^{\tau_h s^h_c}, \qquad s^h_c = \tfrac12 \|W W_h v^h_c\|^2

over the keys that query i may see. It does not depend on the query. The scale :math:`\tau_h` is the one
number that the true weights determine: for each head and sequence the predicted rows have the mean entropy of
the true ones. The control has the predicted weights at permuted keys. If all queries see the same keys, the
predicted rows of a head and sequence are equal, and so are the permuted ones; otherwise every row has a
permutation of its own. Uniform weights are the baseline: the share of their loss that the prediction avoids
is 1 if it does as well as true attention.

The lower layer of every block is also cut to its :math:`\lceil \|W\|_F^2 / \|W\|_2^2 \rceil` leading singular
directions, its stable rank; it needs no others. The control keeps as many singular directions, drawn at
random. Source: :cite:t:`tian2024joma`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ...core.intervention import (
    Attended,
    BlockPass,
    Control,
    Intervention,
    Projected,
    in_every_row,
    normalised,
)
from ...core.sources import Source
from ...metrics.networks import matrix_after
from ...probes.modules import check_whole
from .in_networks import NO_MATRIX

HALVINGS = 40  # of the interval of the scale
ENTROPY_ATOL = 1e-12  # nats; with it the scale of uniform weights is zero

# attention


def predicted(attention: Projected) -> Projected:
    """Replaces the weights by those that follow from the lower layer.

    Raises:
        ValueError: the block has no lower layer, or one that does not fit the output of its attention.
    """
    return replace(attention, weights=predicted_weights(attention))


def permuted(attention: Projected) -> Projected:
    """Permutes the predicted weights among the keys: with one permutation for each head and sequence where
    all queries see the same keys, so that the rows stay equal, and with one for each row elsewhere.
    """
    weights = predicted_weights(attention)
    if not _same_keys(attention):
        return replace(attention, weights=in_every_row(attention, weights))
    first = weights[:, :, :1]
    of_first = replace(
        attention,
        query=attention.query[:, :, :1],
        weights=first,
        mask=attention.mask[:, :, :1],
        added=attention.added[:, :1],
    )
    return replace(attention, weights=in_every_row(of_first, first).expand_as(weights))


def uniform(attended: Attended) -> Attended:
    """Gives equal weight to all keys that a query may see."""
    return attended.with_weights(normalised(attended.mask.to(attended.weights.dtype)))


def predicted_weights(attention: Projected) -> Float[Tensor, "windows heads q k"]:
    """Returns the weights that follow from the lower layer, in rows of the true mean entropy.

    Raises:
        ValueError: as for :func:`predicted`.
    """
    weights, mask = attention.weights, attention.mask
    scores = responses(attention)
    low, high = scores.amin(-1, keepdim=True), scores.amax(-1, keepdim=True)
    # between -1 and 0, so that the interval of the scale suits all heads
    scores = ((scores - high) / (high - low).clamp_min(1e-30))[:, :, None]
    # If all queries see the same keys, their predicted rows are the same.
    rows = mask[:, :, :1] if _same_keys(attention) else mask
    # Near uniform weights the entropy differs from its maximum by a square of the scale, so single precision
    # would not tell a small scale from none.
    target = _mean_entropy(normalised(weights.double()))

    def of_scale(x: Float[Tensor, "windows heads"], dtype: torch.dtype) -> Float[Tensor, "windows heads _ k"]:
        scale = (x / (1 - x))[..., None, None].to(dtype)
        # the softmax of a row without an allowed key is NaN
        return (scale * scores.to(dtype)).masked_fill(~rows, -torch.inf).softmax(-1).nan_to_num()

    # The entropy falls with the scale, which x = scale / (1 + scale) brings into [0, 1).
    lower, upper = torch.zeros_like(target), torch.ones_like(target)
    for _ in range(HALVINGS):
        middle = (lower + upper) / 2
        broad = _mean_entropy(of_scale(middle, torch.float64)) > target + ENTROPY_ATOL
        lower, upper = torch.where(broad, middle, lower), torch.where(broad, upper, middle)
    return of_scale(lower, weights.dtype).expand_as(weights)


def responses(attention: Projected) -> Float[Tensor, "windows heads k"]:
    r"""Returns half the squared response of the lower layer to each value, :math:`\frac12 \|W W_h v\|^2`.

    Raises:
        ValueError: as for :func:`predicted`.
    """
    W, dtype = matrix_after(attention, attention.attention), attention.weights.dtype
    if W is None:
        raise ValueError(NO_MATRIX)
    dim = attention.matrix.shape[1]
    if dim not in W.shape:
        raise ValueError(
            f"the lower layer must take the {dim} dimensions that attention adds to, got a matrix of shape "
            f"{list(W.shape)}"
        )
    # some models store the transposed matrix
    lower = (W if W.shape[1] == dim else W.mT).to(dtype) @ attention.matrix.to(dtype)
    values = attention.value.to(dtype)
    return (values @ (lower.mT @ lower) * values).sum(-1) / 2


def _same_keys(attention: Projected) -> bool:
    """Whether all queries of each head and sequence may see the same keys."""
    return bool((attention.mask == attention.mask[:, :, :1]).all())


def _mean_entropy(weights: Float[Tensor, "windows heads rows k"]) -> Float[Tensor, "windows heads"]:
    return torch.special.entr(weights).sum(-1).mean(-1)


# the lower layer


@dataclass(frozen=True, eq=False)
class LowerLayer:
    """The lower layer of one block.

    Attributes:
        name: name of the parameter in the block.
        left, sizes, right: singular value decomposition ``left * sizes @ right``.
        kept: numbers of the singular directions that are kept.
    """

    name: str
    left: Float[Tensor, "m r"]
    sizes: Float[Tensor, " r"]
    right: Float[Tensor, "r n"]
    kept: Int[Tensor, " k"]

    @property
    def cut(self) -> Float[Tensor, "m n"]:
        """The matrix of the directions that are kept."""
        return self.left[:, self.kept] * self.sizes[self.kept] @ self.right[self.kept]


LowerLayers = dict[int, LowerLayer]
"""Lower layers by the number of the block."""


def leading_directions(read: Callable[[Callable[[BlockPass], None]], None]) -> LowerLayers:
    """Returns the lower layers with as many leading directions as their stable rank, rounded up.

    Raises:
        ValueError: a block has no lower layer that is a parameter, or it lies in parts on several processes.
    """
    found: LowerLayers = {}

    def add(block: BlockPass) -> None:
        if block.layer in found:
            return
        check_whole(block.module, block.name)
        W = matrix_after(block, block.attention)
        parameters = () if W is None else block.module.named_parameters()
        names = [name for name, x in parameters if W is not None and x.data_ptr() == W.data_ptr()]
        if W is None or not names:
            raise ValueError(NO_MATRIX)
        U, S, Vh = torch.linalg.svd(W.double(), full_matrices=False)
        # a rank that is a whole number up to rounding stays
        rank = math.ceil(float(S.square().sum() / S[0].square()) - 1e-9) if S[0] > 0 else len(S)
        found[block.layer] = LowerLayer(names[0], U, S, Vh, torch.arange(rank))

    read(add)
    return found


def random_directions(chosen: LowerLayers, generator: Generator) -> LowerLayers:
    """Draws as many singular directions of each layer."""
    return {
        layer: replace(each, kept=torch.randperm(len(each.sizes), generator=generator)[: len(each.kept)])
        for layer, each in chosen.items()
    }


def cut(block: BlockPass) -> BlockPass:
    """Runs the block with the directions of its lower layer that are kept."""
    layer: LowerLayer = block.structure[block.layer]
    return block.with_output(block.again(block.tokens, {layer.name: layer.cut.to(block.output.dtype)}))


INTERVENTIONS = (
    Intervention(
        name="attention that follows from the lower layer",
        change=predicted,
        predicts="kept",
        controls=(Control("the predicted weights at permuted keys", permuted),),
        source=Source("tian2024joma", status="own"),
        site="output",
        baseline=("uniform weights", uniform),
    ),
    Intervention(
        name="lower layer of the MLP cut to its stable rank",
        change=cut,
        predicts="kept",
        controls=(Control("as many singular directions at random", structure=random_directions),),
        source=Source("tian2024joma", status="own"),
        choose=leading_directions,
        site="block",
    ),
)
