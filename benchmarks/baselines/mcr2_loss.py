"""The MCR² loss: the formula as written, and a loop over the classes as a careful user would write it;
features [m, p], labels [m].
"""

import torch
from torch import Tensor

from benchmarks.baselines import coding_rate


def rate(features: Tensor, eps: float) -> Tensor:
    r"""Computes R of all features, :math:`\tfrac12\log\det(I + \frac{p}{m\epsilon^2} X^\top X)`."""
    m, p = features.shape
    return 0.5 * torch.logdet(torch.eye(p, dtype=features.dtype) + p / (m * eps**2) * features.mT @ features)


def textbook(features: Tensor, labels: Tensor, classes: int, eps: float) -> Tensor:
    """Computes R^c - R with all k membership matrices, m x m each, in memory."""
    return coding_rate.textbook(features, labels, classes, eps) - rate(features, eps)


def masked_loop(features: Tensor, labels: Tensor, classes: int, eps: float) -> Tensor:
    """Computes R^c - R with a boolean mask, a p x p matrix and ``torch.logdet`` per class."""
    return coding_rate.masked_loop(features, labels, classes, eps) - rate(features, eps)
