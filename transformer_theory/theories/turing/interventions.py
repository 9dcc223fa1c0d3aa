r"""Predictions of finite precision for a network: rounding can exchange the two largest scores only where
they are close.

A query is a *close call* if its two largest scores differ by less than the distance of neighbouring bfloat16
numbers (:func:`.resolution`). There the weights of these two keys are exchanged, as rounding may do. The
control exchanges the two largest weights of as many other queries of the same head and sequence. A network
that chooses one key per query breaks at close calls, as a compiled machine does; with soft weights that are
nearly equal it loses nothing.

The literal change beside it: all scaled products s of queries and keys are rounded to bfloat16, and the
weights become

.. math:: A'_{ij} \propto A_{ij} \exp(\operatorname{round}(s_{ij}) - s_{ij}),

whatever bias was added to the scores. Rounding keeps the order of scores or makes them equal. The control
changes every score by as much, with a random sign, which exchanges scores that are close.
Source: :cite:t:`perez2021attention`.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...core.intervention import Attended, Control, Intervention
from ...core.sources import Source
from .in_networks import resolution


def close_calls(attended: Attended) -> Bool[Tensor, "windows heads q"]:
    """Finds the queries whose two largest scores rounding to bfloat16 can exchange. A second weight that
    underflows is none: weights do not show which key has it.

    Raises:
        ValueError: the scale of the scores is not known, so that their size is not.
    """
    if attended.weights.shape[-1] < 2:
        return torch.zeros(attended.weights.shape[:-1], dtype=torch.bool, device=attended.weights.device)
    # differences of logarithms are those of the scores, whatever bias was added to them
    two = attended.scores.topk(2)
    known = two.values[..., 1] > math.log(torch.finfo(attended.weights.dtype).tiny)
    size = _products(attended).gather(-1, two.indices).abs().amax(-1)
    return (two.values[..., 0] - two.values[..., 1] < resolution(size)) & known


def exchanged(attended: Attended) -> Attended:
    """Exchanges the two largest weights of close calls."""
    return attended.with_weights(_exchanged(attended.weights, close_calls(attended)))


def exchanged_elsewhere(attended: Attended) -> Attended:
    """Exchanges the two largest weights of as many other queries of each head and sequence; of fewer, if
    there are no more.
    """
    close = close_calls(attended)
    several = attended.mask.sum(-1) > 1
    numbers = torch.rand(close.shape, generator=attended.generator, device=close.device)
    rank = numbers.masked_fill(close | ~several, 2.0).argsort(-1).argsort(-1)
    drawn = (rank < close.sum(-1, keepdim=True)) & ~close & several
    return attended.with_weights(_exchanged(attended.weights, drawn))


def rounded(attended: Attended) -> Attended:
    """Rounds the scores to bfloat16.

    Raises:
        ValueError: the scale of the scores is not known, so that their size is not.
    """
    return _with_added(attended, _rounding(attended))


def changed_at_random(attended: Attended) -> Attended:
    """Changes every score by as much as :func:`rounded` does, up or down at random."""
    added = _rounding(attended)
    up = torch.rand(added.shape, generator=attended.generator, device=added.device) < 0.5
    return _with_added(attended, torch.where(up, added, -added))


def _products(attended: Attended) -> Float[Tensor, "windows heads q k"]:
    """Returns the scaled products of queries and keys.

    Raises:
        ValueError: the scale is not known.
    """
    if attended.scale is None:
        raise ValueError("the rounding of scores depends on their scale, which is not known")
    dtype = attended.weights.dtype  # a product of bfloat16 vectors would be rounded already
    return attended.query.to(dtype) @ attended.key.to(dtype).mT * attended.scale


def _rounding(attended: Attended) -> Float[Tensor, "windows heads q k"]:
    """Returns what rounding to bfloat16 adds to the scores of allowed keys; ties go to even numbers."""
    products = _products(attended)
    return (products.bfloat16().to(products.dtype) - products) * attended.mask


def _with_added(attended: Attended, added: Float[Tensor, "windows heads q k"]) -> Attended:
    """Returns the attention whose scores are larger by ``added``; rows without a change stay."""
    # Weights and not scores: a weight of zero stays zero, since its score is not known. A row without an
    # allowed key would be NaN.
    new = (attended.weights.log() + added).softmax(-1).nan_to_num()
    # logarithm and softmax would change the last bits of all rows
    changed = (added != 0).any(-1, keepdim=True)
    return attended.with_weights(torch.where(changed, new, attended.weights))


def _exchanged(
    weights: Float[Tensor, "windows heads q k"], where: Bool[Tensor, "windows heads q"]
) -> Float[Tensor, "windows heads q k"]:
    if weights.shape[-1] < 2:
        return weights
    two = weights.topk(2)
    swapped = weights.scatter(-1, two.indices, two.values.flip(-1))
    return torch.where(where[..., None], swapped, weights)


INTERVENTIONS = (
    Intervention(
        name="two largest scores exchanged at close calls",
        change=exchanged,
        predicts="kept",
        controls=(Control("exchanged for as many other queries", exchanged_elsewhere),),
        source=Source("perez2021attention", status="own"),
    ),
    Intervention(
        name="scores rounded to bfloat16",
        change=rounded,
        predicts="kept",
        controls=(Control("as large a change of every score, up or down at random", changed_at_random),),
        source=Source("perez2021attention", status="own"),
    ),
)
