"""Objectives of trainings on images: cross-entropy of labels, and masked autoencoding without labels.

:class:`Objective` is the interface between a training loop and an objective. Theories define further
objectives, which the caller passes.
"""

from .cross_entropy import CrossEntropy
from .masked_autoencoding import MaskedAutoencoding
from .protocol import ACCURACY, LOSS, UNTRAINED, Gather, Labelled, Objective, Objectives, alone

OBJECTIVES: Objectives = {kind.name: kind for kind in (CrossEntropy, MaskedAutoencoding)}

__all__ = [
    "ACCURACY",
    "LOSS",
    "OBJECTIVES",
    "UNTRAINED",
    "CrossEntropy",
    "Gather",
    "Labelled",
    "MaskedAutoencoding",
    "Objective",
    "Objectives",
    "alone",
]
