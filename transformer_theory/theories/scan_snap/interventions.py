"""What scan and snap says of a trained network: after the snap a query needs the few keys that it attends to.

The keys that hold 90 % of the weight of a query are kept, and their weights are divided by their sum. Two
controls match it: as many keys, drawn at random; and the removal of as much weight from keys in a random
order, the last of them in part, to the others. Source: :cite:t:`tian2023scan`.
"""

import torch

from ...core.intervention import (
    Attended,
    Control,
    Intervention,
    at_random,
    largest_mass,
    normalised,
    random_order,
)
from ...core.sources import Source

KEPT = 0.9  # share of the weight of a query that the kept keys hold
ROUNDING = 1e-5  # share of the removed weight that a key may give by rounding alone


def kept_keys(attended: Attended) -> Attended:
    """Keeps the fewest keys of each query that hold :data:`KEPT` of its weight."""
    keep = largest_mass(attended.weights, KEPT)
    return attended.with_weights(normalised(attended.weights * keep))


def random_keys(attended: Attended) -> Attended:
    """Keeps as many keys of each query, drawn at random."""
    keep = at_random(attended, largest_mass(attended.weights, KEPT).sum(-1))
    return attended.with_weights(normalised(attended.weights * keep))


def random_weight(attended: Attended) -> Attended:
    """Moves as much weight of each query as :func:`kept_keys`, from keys in a random order to the others in
    proportion to their weights.
    """
    weights = attended.weights
    removed = (weights * ~largest_mass(weights, KEPT)).sum(-1, keepdim=True)
    order = random_order(attended)
    in_order = weights.gather(-1, order)
    # each key gives what it has, until all is removed
    before = in_order.cumsum(-1) - in_order
    taken = torch.minimum(in_order, (removed - before).clamp_min(0.0))
    others = normalised(in_order * (taken <= ROUNDING * removed))
    return attended.with_weights(
        torch.zeros_like(weights).scatter(-1, order, in_order - taken + removed * others)
    )


INTERVENTIONS = (
    Intervention(
        name="keys that hold 90 % of the weight",
        change=kept_keys,
        predicts="kept",
        controls=(
            Control("as many random keys", random_keys),
            Control("as much weight moved at random keys", random_weight),
        ),
        source=Source("tian2023scan", status="own"),
    ),
)
