r"""Predictions of routing for a network: a query needs the keys to which it gives most weight.

The heaviest key of every query is removed, and the other weights are divided by their sum. The first control
removes another key of every query, drawn at random. It has less weight than the heaviest one, so a second
control takes as much weight from the other keys in a random order; all that they have, if they have less.

If several keys carry the same information, a network does not need each of them. In the *deletion curve*
every query loses the heaviest s of its keys, rounded down, where s is a tenth to nine tenths from sequence to
sequence (:func:`.tenths`). The effect is the area under the curve. The first control removes as many keys in
a random order, the second takes as much weight from keys in a random order. Source:
:cite:t:`jethani2021learned`.
"""

from dataclasses import replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ...core.intervention import (
    Attended,
    Control,
    Intervention,
    at_random,
    largest,
    normalised,
    taken_at_random,
    tenths,
    without,
)
from ...core.sources import Source


def _heaviest(attended: Attended) -> Bool[Tensor, "windows heads q k"]:
    """True for the heaviest key of every query that has another one."""
    weights = attended.weights
    heaviest = torch.zeros_like(attended.mask).scatter(-1, weights.argmax(-1, keepdim=True), True)
    return heaviest & ((weights > 0).sum(-1, keepdim=True) > 1)


def choice_removed(attended: Attended) -> Attended:
    """Removes the heaviest key of every query."""
    return without(attended, _heaviest(attended))


def other_removed(attended: Attended) -> Attended:
    """Removes another key of every query that has one, drawn at random."""
    heaviest = _heaviest(attended)
    others = replace(attended, mask=attended.mask & ~heaviest)
    return without(attended, at_random(others, heaviest.any(-1).long()))


def other_weight_removed(attended: Attended) -> Attended:
    """Takes as much weight as the heaviest key of every query has from its other keys in a random order, all
    of theirs if they have less, and divides the rest by its sum.
    """
    heaviest = _heaviest(attended)
    return _without_weight(replace(attended, mask=attended.mask & ~heaviest), heaviest)


def _without_weight(attended: Attended, matched: Bool[Tensor, "windows heads q k"]) -> Attended:
    """Takes as much weight of every query as the matched keys have from the allowed keys in a random order,
    and divides the rest by its sum; a row without matched keys stays.
    """
    # In single precision nothing may be left of a row whose matched keys have nearly all of its weight.
    weights = attended.weights.double()
    taken = taken_at_random(attended.with_weights(weights), (weights * matched).sum(-1, keepdim=True))
    left = normalised(weights - taken).to(attended.weights.dtype)
    return attended.with_weights(torch.where(matched.any(-1, keepdim=True), left, attended.weights))


def _counts(attended: Attended) -> Int[Tensor, "windows heads q"]:
    """Returns how many of the keys with a weight each query loses on the deletion curve: never all."""
    # A product of integers: 0.3 times 10 as a float would not be 3.
    return (attended.weights > 0).sum(-1) * tenths(attended) // 10


def heaviest_removed(attended: Attended) -> Attended:
    """Removes the heaviest keys of every query, the share of its sequence."""
    return without(attended, _leading(attended))


def _leading(attended: Attended) -> Bool[Tensor, "windows heads q k"]:
    """True for the heaviest keys of every query, the share of its sequence."""
    return largest(attended.weights, _counts(attended))


def random_removed(attended: Attended) -> Attended:
    """Removes as many keys of every query in a random order."""
    weighted = replace(attended, mask=attended.weights > 0)
    return without(attended, at_random(weighted, _counts(attended)))


def random_weight_removed(attended: Attended) -> Attended:
    """Takes as much weight of every query as :func:`heaviest_removed` from all keys in a random order."""
    return _without_weight(attended, _leading(attended))


INTERVENTIONS = (
    Intervention(
        name="heaviest key of every query removed",
        change=choice_removed,
        predicts="broken",
        controls=(
            Control("another key of every query removed", other_removed),
            Control("as much weight of other keys removed", other_weight_removed),
        ),
        source=Source("jethani2021learned", status="own"),
    ),
    Intervention(
        name="deletion curve of the heaviest keys",
        change=heaviest_removed,
        predicts="broken",
        controls=(
            Control("as many keys removed in a random order", random_removed),
            Control("as much weight removed in a random order", random_weight_removed),
        ),
        source=Source("jethani2021learned", status="own"),
    ),
)
