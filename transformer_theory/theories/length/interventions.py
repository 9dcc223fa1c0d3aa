r"""What dispersion says of a network: twice as many keys dilute the weights, a logarithm repairs it.

Each query sees the keys and values of the next sequence of the batch beside its own, at the same places and
with the scores that it gives them. The largest weights fall; this should break more than the same weight
moved to random own keys, if the head holds on to few keys. The scores are then multiplied by

.. math:: \frac{\log 2n}{\log n},

with its n own keys: a weight that stands out keeps its size, and the task should lose less than by as large a
change of the scores at permuted keys. A head that averages many keys is not repaired.

A *sink* is the key of a head that receives most weight in a sequence. It takes the weight that a head does
not need, and its value says little: with a value of zero the task should lose less than by as much weight
taken from other keys at random. Without its key the weight goes to the others: the task should lose more than
if as much weight of other keys went to the rest. Sources: :cite:t:`velickovic2025softmax`,
:cite:t:`chiang2022overcoming`, :cite:t:`xiao2024efficient`.
"""

from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...core.intervention import (
    Attended,
    Control,
    Intervention,
    in_every_row,
    normalised,
    taken_at_random,
    without,
)
from ...core.sources import Source


def doubled(attended: Attended, *, logarithmic: bool) -> Attended:
    """Adds the keys and values of the next sequence of the batch to those of each query.

    Args:
        attended: one attention.
        logarithmic: whether the scores are multiplied by log 2n / log n afterwards.
    Raises:
        ValueError: the batch has one sequence, or the scale of the scores is not known.
    """
    own, other = _both(attended)
    scores = torch.cat([own, other], -1)
    return _with_both(attended, scores * _factor(attended) if logarithmic else scores)


def moved(attended: Attended) -> Attended:
    """Moves as much weight as :func:`doubled` gives to the other keys to own keys: permutes a part of the
    weights of every row.
    """
    own, other = _both(attended)
    keys = own.shape[-1]
    lost = torch.cat([own, other], -1).softmax(-1).nan_to_num()[..., keys:].sum(-1, keepdim=True)
    weights = attended.weights
    return attended.with_weights((1 - lost) * weights + lost * in_every_row(attended, weights))


def changed_scores(attended: Attended) -> Attended:
    """Changes the scores of the doubled keys by as much as the logarithm does, at permuted keys.

    The keys of each half are permuted among themselves.
    """
    mask, factor = attended.mask, _factor(attended)

    def changed(scores: Float[Tensor, "windows heads q k"]) -> Float[Tensor, "windows heads q k"]:
        known = scores.masked_fill(~scores.isfinite(), 0.0)
        mean = known.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp_min(1)
        return scores + in_every_row(attended, (known - mean) * (factor - 1) * mask)

    return _with_both(attended, torch.cat([changed(scores) for scores in _both(attended)], -1))


def without_sink(attended: Attended) -> Attended:
    """Sets the value of the sink of each head and sequence to zero."""
    return attended.with_weights(attended.weights * ~_sink(attended))


def without_others(attended: Attended) -> Attended:
    """Takes as much weight of each query as :func:`without_sink` from other keys in a random order; all of
    theirs, if they have less.
    """
    sink, weights = _sink(attended), attended.weights
    lost = (weights * sink).sum(-1, keepdim=True)
    others = replace(attended, mask=attended.mask & ~sink)
    return attended.with_weights(weights - taken_at_random(others, lost))


def removed_sink(attended: Attended) -> Attended:
    """Removes the key of the sink from each query that gives weight to another key."""
    return without(attended, _removed(attended))


def removed_others(attended: Attended) -> Attended:
    """Removes as much weight of each query as :func:`removed_sink` from other keys in a random order, and
    divides the rest by its sum.
    """
    removed, weights = _removed(attended), attended.weights
    lost = (weights * removed).sum(-1, keepdim=True)
    others = replace(attended, mask=attended.mask & ~_sink(attended))
    left = normalised(weights - taken_at_random(others, lost))
    return attended.with_weights(torch.where(removed.any(-1, keepdim=True), left, weights))


def _removed(attended: Attended) -> Bool[Tensor, "windows heads q k"]:
    """True for the sink of the queries that give weight to another key."""
    sink, weights = _sink(attended), attended.weights
    return sink & ((weights * ~sink).sum(-1, keepdim=True) > 0)


def _sink(attended: Attended) -> Bool[Tensor, "windows heads 1 k"]:
    """True for the key of each head and sequence that receives most weight."""
    received = attended.weights.sum(-2, keepdim=True)
    return torch.zeros_like(received, dtype=torch.bool).scatter(-1, received.argmax(-1, keepdim=True), True)


def _both(
    attended: Attended,
) -> tuple[Float[Tensor, "windows heads q k"], Float[Tensor, "windows heads q k"]]:
    """Returns the scores of the own keys and those of the next sequence. Positions and biases stay: only the
    product of query and key is another one.
    """
    if attended.sequences < 2:
        raise ValueError("keys of another sequence need a batch of at least two, got one")
    if attended.scale is None:
        raise ValueError("keys of another sequence need the scale of the scores, which is not known")
    own, dtype = attended.scores, attended.weights.dtype
    difference = attended.of_next(attended.key) - attended.key
    other = own + (attended.query.to(dtype) * attended.scale) @ difference.to(dtype).mT
    return own, other.masked_fill(~attended.of_next(attended.mask), -torch.inf)


def _with_both(attended: Attended, scores: Float[Tensor, "windows heads q both"]) -> Attended:
    """Returns the attention to own keys and those of the next sequence with these scores."""
    values = torch.cat([attended.value, attended.of_next(attended.value)], 2)
    return replace(attended, weights=scores.softmax(-1).nan_to_num(), value=values)


def _factor(attended: Attended) -> Float[Tensor, "windows heads q 1"]:
    """Returns log 2n / log n for the n keys of each query; 1 for a query with one key."""
    n = attended.mask.sum(-1, keepdim=True).to(attended.weights.dtype)
    return torch.where(n > 1, (2 * n).log() / n.clamp_min(2).log(), 1.0)


INTERVENTIONS = (
    Intervention(
        name="keys of another sequence in addition",
        change=partial(doubled, logarithmic=False),
        predicts="broken",
        controls=(Control("as much weight moved to random own keys", moved),),
        source=Source("velickovic2025softmax", status="own"),
    ),
    Intervention(
        name="keys of another sequence with scores times log 2n over log n",
        change=partial(doubled, logarithmic=True),
        predicts="kept",
        controls=(Control("as large a change of the scores at permuted keys", changed_scores),),
        source=Source("chiang2022overcoming", status="own"),
    ),
    Intervention(
        name="value of the sink set to zero",
        change=without_sink,
        predicts="kept",
        controls=(Control("as much weight taken from other keys", without_others),),
        source=Source("xiao2024efficient", status="own"),
    ),
    Intervention(
        name="key of the sink removed",
        change=removed_sink,
        predicts="broken",
        controls=(Control("as much weight of other keys removed", removed_others),),
        source=Source("xiao2024efficient", status="own"),
    ),
)
