"""Features whose coding rate has a closed form, and the rate computed as the papers write it."""

import math

import torch
from torch import Tensor

MCR2_OPTIMUM = 2.699853433898  # d = 12, three classes of 20 samples, rank 4 each, eps^2 = 1/2


def flat_features(n: int, d: int, rank: int, *, generator: torch.Generator) -> Tensor:
    """n vectors in d dimensions whose ``rank`` non-zero singular values are all sqrt(n / rank)."""
    left = torch.linalg.qr(torch.randn(n, rank, dtype=torch.float64, generator=generator)).Q
    right = torch.linalg.qr(torch.randn(d, rank, dtype=torch.float64, generator=generator)).Q
    return math.sqrt(n / rank) * left @ right.mT


def flat_rate(d: int, rank: int, eps: float) -> float:
    """Coding rate of :func:`flat_features`: (r/2) log(1 + d / (r eps^2)), for any n."""
    return rank / 2 * math.log(1 + d / (rank * eps**2))


def textbook_class_rate(features: Tensor, labels: Tensor, eps: float) -> Tensor:
    """R^c with one diagonal membership matrix per class, as the papers write it."""
    n, d = features.shape
    total = features.new_zeros(())
    for j in range(int(labels.max()) + 1):
        member = torch.diag((labels == j).to(features.dtype))
        size = member.trace()
        if size > 0:
            inside = (
                torch.eye(d, dtype=features.dtype) + d / (size * eps**2) * features.mT @ member @ features
            )
            total = total + size / (2 * n) * torch.linalg.slogdet(inside).logabsdet
    return total
