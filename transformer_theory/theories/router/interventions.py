"""What routing says of a network: what a query reads is in the key that it chooses.

The heaviest key of every query is removed, and the other weights are divided by their sum. The control
removes another key of every query, drawn at random. Source: :cite:t:`jethani2021learned`.
"""

from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from ...core.intervention import Attended, Control, Intervention, at_random, normalised
from ...core.sources import Source


def _heaviest(attended: Attended) -> Bool[Tensor, "windows heads q k"]:
    """True for the heaviest key of every query that has another one."""
    weights = attended.weights
    heaviest = torch.zeros_like(attended.mask).scatter(-1, weights.argmax(-1, keepdim=True), True)
    return heaviest & ((weights > 0).sum(-1, keepdim=True) > 1)


def choice_removed(attended: Attended) -> Attended:
    """Removes the heaviest key of every query."""
    return attended.with_weights(normalised(attended.weights * ~_heaviest(attended)))


def other_removed(attended: Attended) -> Attended:
    """Removes another key of every query that has one, drawn at random."""
    heaviest = _heaviest(attended)
    others = replace(attended, mask=attended.mask & ~heaviest)
    removed = at_random(others, heaviest.any(-1).long())
    return attended.with_weights(normalised(attended.weights * ~removed))


INTERVENTIONS = (
    Intervention(
        name="heaviest key of every query removed",
        change=choice_removed,
        predicts="broken",
        controls=(Control("another key of every query removed", other_removed),),
        source=Source("jethani2021learned", status="own"),
    ),
)
