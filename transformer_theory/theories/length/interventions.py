r"""Predictions of dispersion for a network: twice as many keys dilute the weights, a logarithm repairs it.

Each query sees the keys and values of the next sequence of the batch beside its own, at the same places and
with the scores that it gives them. The largest weights fall; this should break more than the same weight
moved to random own keys, if the head holds on to few keys. The scores are then multiplied by

.. math:: \frac{\log 2n}{\log n},

with its n own keys: a weight that stands out keeps its size, and the task should lose less than by as large a
change of the scores at permuted keys. A head that averages many keys is not repaired.

A *sink* is the key of a head that receives most weight in a sequence. It takes the weight that a head does
not need, and its value says little: with a value of zero the task should lose less than by as much weight
taken from other keys at random. If its weight goes to the other keys, as if it had no key, the task should
lose more than if as much weight of other keys went to the rest. Where the sink holds more than half of a row,
the others have less than it: then only as much of its weight as they have is moved. Sources:
:cite:t:`velickovic2025softmax`, :cite:t:`chiang2022overcoming`, :cite:t:`xiao2024efficient`.
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
    given_to_others,
    in_every_row,
    taken_at_random,
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


def moved_sink(attended: Attended) -> Attended:
    """Moves weight of each query from the sink to the other keys, in proportion to their weights: all of it,
    as if the sink had no key, or as much as the others have, if they have less.
    """
    return attended.with_weights(given_to_others(attended, _smaller(attended) * _sink(attended)))


def moved_others(attended: Attended) -> Attended:
    """Moves as much weight of each query as :func:`moved_sink` from other keys in a random order to the rest,
    in proportion to their weights. The total variation of a row from the original one is the same.
    """
    others = replace(attended, mask=attended.mask & ~_sink(attended))
    return attended.with_weights(given_to_others(attended, taken_at_random(others, _smaller(attended))))


def _smaller(attended: Attended) -> Float[Tensor, "windows heads q 1"]:
    """Returns the weight of the sink or that of all other keys, whichever is smaller."""
    sink, weights = _sink(attended), attended.weights
    own, others = ((weights * part).sum(-1, keepdim=True) for part in (sink, ~sink))
    return torch.minimum(own, others)


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
        name="weight of the sink moved to other keys",
        change=moved_sink,
        predicts="broken",
        controls=(Control("as much weight of other keys moved", moved_others),),
        source=Source("xiao2024efficient", status="own"),
    ),
)
