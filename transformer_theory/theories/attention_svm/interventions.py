r"""Predictions of the limit of descent for a network: if attention selects, sharper attention loses nothing.

In the limit W grows without bound along the max-margin direction. Scores times c continue this growth,

.. math:: A'_{ij} \propto A_{ij}^c, \qquad c = 2, 4, \infty,

the last with all weight on the largest score. The control has the same weights in every row, at permuted
keys: the same entropy without the selection. For :math:`c = \infty` a second one asks whether the selected
key is better than those that nearly were: each row has all weight on one of the next four largest scores,
drawn at random. Source: :cite:t:`tarzanagh2023maxmargin`.
"""

import math
from functools import partial

import torch

from ...core.intervention import Attended, Control, Intervention, in_every_row, normalised
from ...core.sources import Source

FACTORS = (2.0, 4.0, math.inf)
NEXT = 4  # number of scores behind the largest one, of which the second control draws one


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


def next_largest(attended: Attended) -> Attended:
    """Puts all weight of every row on one of its :data:`NEXT` largest scores below the largest one, drawn at
    random. If fewer keys have a smaller score, one of them is drawn; if none has, the row is that of
    :func:`sharper`.
    """
    scores = attended.scores
    # Scores that equal the largest one are selected as well, so they are no alternatives.
    smaller = scores.masked_fill(scores == scores.amax(-1, keepdim=True), -torch.inf)
    count = smaller.isfinite().sum(-1, keepdim=True).clamp_max(NEXT)
    numbers = torch.rand(count.shape, generator=attended.generator, device=count.device)
    order = smaller.topk(min(NEXT, smaller.shape[-1])).indices
    chosen = order.gather(-1, (numbers * count).long().clamp_max(order.shape[-1] - 1))
    one = torch.zeros_like(attended.weights).scatter(-1, chosen, 1.0)
    return attended.with_weights(torch.where(count > 0, one, sharper(attended, factor=math.inf).weights))


def _intervention(factor: float) -> Intervention:
    hard = math.isinf(factor)
    controls = (Control("the same entropy at permuted keys", partial(permuted, factor=factor)),)
    nearly = (Control("all weight on one of the next four largest scores", next_largest),)
    return Intervention(
        name="all weight on the largest score" if hard else f"scores times {factor:g}",
        change=partial(sharper, factor=factor),
        predicts="kept",
        controls=controls + nearly if hard else controls,
        source=Source("tarzanagh2023maxmargin", status="own"),
    )


INTERVENTIONS = tuple(map(_intervention, FACTORS))
