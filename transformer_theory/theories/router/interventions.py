r"""What routing says of a network: what a query reads is in the keys that it chooses.

The heaviest key of every query is removed, and the other weights are divided by their sum. The control
removes another key of every query, drawn at random.

A network may have the same in several keys, and then one of them is not missed. In the *deletion curve* every
query loses the heaviest s of its keys, rounded down, where s is a tenth to nine tenths from sequence to
sequence (:func:`.tenths`). The effect is the area under the curve. The control removes as many keys in a
random order. Source: :cite:t:`jethani2021learned`.
"""

from dataclasses import replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ...core.intervention import Attended, Control, Intervention, at_random, tenths, without
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


def _counts(attended: Attended) -> Int[Tensor, "windows heads q"]:
    """Returns how many of the keys with a weight each query loses on the deletion curve: never all."""
    # A product of integers: 0.3 times 10 as a float would not be 3.
    return (attended.weights > 0).sum(-1) * tenths(attended) // 10


def heaviest_removed(attended: Attended) -> Attended:
    """Removes the heaviest keys of every query, the share of its sequence."""
    rank = attended.weights.argsort(dim=-1, descending=True, stable=True).argsort(-1)
    return without(attended, rank < _counts(attended)[..., None])


def random_removed(attended: Attended) -> Attended:
    """Removes as many keys of every query in a random order."""
    weighted = replace(attended, mask=attended.weights > 0)
    return without(attended, at_random(weighted, _counts(attended)))


INTERVENTIONS = (
    Intervention(
        name="heaviest key of every query removed",
        change=choice_removed,
        predicts="broken",
        controls=(Control("another key of every query removed", other_removed),),
        source=Source("jethani2021learned", status="own"),
    ),
    Intervention(
        name="deletion curve of the heaviest keys",
        change=heaviest_removed,
        predicts="broken",
        controls=(Control("as many keys removed in a random order", random_removed),),
        source=Source("jethani2021learned", status="own"),
    ),
)
