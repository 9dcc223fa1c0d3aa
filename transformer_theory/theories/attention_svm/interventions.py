r"""What the limit of descent says of a network: if attention selects, sharper attention loses nothing.

In the limit W grows without bound along the max-margin direction. Scores times c continue this growth,

.. math:: A'_{ij} \propto A_{ij}^c, \qquad c = 2, 4, \infty,

the last with all weight on the largest score. The control has the same weights in every row, at permuted
keys: the same entropy without the selection. Source: :cite:t:`tarzanagh2023maxmargin`.
"""

import math
from functools import partial

from ...core.intervention import Attended, Control, Intervention, in_every_row, normalised
from ...core.sources import Source

FACTORS = (2.0, 4.0, math.inf)


def sharper(attended: Attended, *, factor: float) -> Attended:
    """Multiplies the scores by a factor; largest scores that are equal share the weight."""
    weights, largest = attended.weights, attended.weights.amax(-1, keepdim=True)
    if math.isinf(factor):
        return attended.with_weights(normalised(((weights == largest) & (weights > 0)).to(weights.dtype)))
    # of rows without an allowed key nothing is divided
    relative = weights / largest.clamp_min(1e-30)
    return attended.with_weights(normalised(relative**factor))


def permuted(attended: Attended, *, factor: float) -> Attended:
    """Permutes the sharper weights of every row among its keys."""
    return attended.with_weights(in_every_row(attended, sharper(attended, factor=factor).weights))


def _intervention(factor: float) -> Intervention:
    hard = math.isinf(factor)
    return Intervention(
        name="all weight on the largest score" if hard else f"scores times {factor:g}",
        change=partial(sharper, factor=factor),
        predicts="kept",
        controls=(Control("the same entropy at permuted keys", partial(permuted, factor=factor)),),
        source=Source("tarzanagh2023maxmargin", status="own"),
    )


INTERVENTIONS = tuple(map(_intervention, FACTORS))
