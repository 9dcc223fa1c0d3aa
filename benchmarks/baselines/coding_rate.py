"""Class-wise coding rate: the formula as written, and a loop over the classes as a careful user would write
it.

Features have the shape [m, p], labels [m].
"""

import torch
from torch import Tensor


def memberships(labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Returns the diagonal membership matrices, ``[classes, m, m]``: k m² numbers, of which m are
    not zero.
    """
    one_hot = torch.nn.functional.one_hot(labels, classes).to(dtype)
    return torch.diag_embed(one_hot.mT)


def one_term(features: Tensor, member: Tensor, eps: float) -> Tensor:
    r"""Computes one class's term :math:`\frac{\mathrm{tr}\Pi_j}{2m} \log\det(I +
    \frac{p}{\mathrm{tr}\Pi_j\epsilon^2} X^\top\Pi_jX)`.
    """
    m, p = features.shape
    size = member.trace()
    inside = torch.eye(p, dtype=features.dtype) + p / (size * eps**2) * features.mT @ member @ features
    return size / (2 * m) * torch.logdet(inside)


def textbook(features: Tensor, labels: Tensor, classes: int, eps: float) -> Tensor:
    """Computes the formula of the paper with all membership matrices in memory."""
    return torch.stack(
        [one_term(features, member, eps) for member in memberships(labels, classes, features.dtype)]
    ).sum()


def masked_loop(features: Tensor, labels: Tensor, classes: int, eps: float) -> Tensor:
    """Computes the rate in the strongest plain way: per class, a boolean mask, a p x p matrix and
    ``torch.logdet``.
    """
    m, p = features.shape
    total = features.new_zeros(())
    for j in range(classes):
        members = features[labels == j]
        size = len(members)
        inside = torch.eye(p, dtype=features.dtype) + p / (size * eps**2) * members.mT @ members
        total = total + size / (2 * m) * torch.logdet(inside)
    return total
