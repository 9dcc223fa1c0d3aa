"""What a network on images is trained for: each objective tells its network, its loss and what is measured of it.

:mod:`.cross_entropy` of labels, :mod:`.rate_reduction` of features, :mod:`.sparse_rate_reduction` of a CRATE's layers beside cross-entropy,
:mod:`.masked_autoencoding` without labels. ``OBJECTIVES`` names them; a training loop asks no more of one than :class:`Objective` says.
"""

from ...theories.crate.tasks import SparseRateReduction
from ...theories.rate_reduction.tasks import RateReduction
from .cross_entropy import CrossEntropy
from .masked_autoencoding import MaskedAutoencoding
from .protocol import Gather, Labelled, Objective, alone

OBJECTIVES: dict[str, type[Objective]] = {
    kind.name: kind for kind in (CrossEntropy, RateReduction, SparseRateReduction, MaskedAutoencoding)
}

__all__ = [
    "OBJECTIVES",
    "CrossEntropy",
    "Gather",
    "Labelled",
    "MaskedAutoencoding",
    "Objective",
    "RateReduction",
    "SparseRateReduction",
    "alone",
]
