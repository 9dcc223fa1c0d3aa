r"""Predictions of linear attention for a trained network: the first order of its softmax does the work.

With the scores s of a query and their mean over its n keys,

.. math:: A'_j = \frac{1 + s_j - \bar s}{n},

the first order of the softmax in the centred scores, whose rows sum to one and which may be negative. The
control has the same weights in every row, at permuted keys. Source: :cite:t:`vonoswald2023transformers`.
"""

from ...core.intervention import Attended, Control, Intervention, in_every_row
from ...core.sources import Source


def linearised(attended: Attended) -> Attended:
    """Replaces the softmax by its first order in the centred scores."""
    mask = attended.mask
    keys = mask.sum(-1, keepdim=True).clamp_min(1)
    scores = attended.scores.masked_fill(~mask, 0.0)
    centred = (scores - scores.sum(-1, keepdim=True) / keys) * mask
    return attended.with_weights((mask + centred) / keys)


def permuted(attended: Attended) -> Attended:
    """Permutes the linearised weights of every row among its keys."""
    return attended.with_weights(in_every_row(attended, linearised(attended).weights))


INTERVENTIONS = (
    Intervention(
        name="linearised attention",
        change=linearised,
        predicts="kept",
        controls=(Control("the same weights at permuted keys", permuted),),
        source=Source("vonoswald2023transformers", status="own"),
    ),
)
