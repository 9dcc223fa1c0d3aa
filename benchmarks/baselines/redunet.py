"""ReduNet as its formulas are written: one inverse and one membership matrix per class and, on a grid, a loop
over frequencies.
"""

import torch
from torch import Tensor


def textbook(
    features: Tensor, labels: Tensor, *, layers: int, eps: float, step: float
) -> tuple[Tensor, Tensor]:
    """Returns the features ``[n, d]`` of norm 1 after all layers, and ΔR before each layer.

    E and each C_j take an inverse; C_j is applied to all samples, and the product is masked. The rates take
    separate log-determinants.
    """
    n, d = features.shape
    member = torch.nn.functional.one_hot(labels).to(features.dtype)
    eye, reductions = torch.eye(d, dtype=features.dtype), []
    Z = features
    for _ in range(layers):
        alpha = d / (n * eps**2)
        inside = eye + alpha * Z.mT @ Z
        gradient, reduction = Z @ (alpha * torch.linalg.inv(inside)), 0.5 * torch.logdet(inside)
        for j in range(member.shape[1]):
            size = member[:, j].sum()
            inside = eye + d / (size * eps**2) * (Z * member[:, j, None]).mT @ Z
            C = d / (size * eps**2) * torch.linalg.inv(inside)
            gradient = gradient - size / n * member[:, j, None] * (Z @ C)
            reduction = reduction - size / n * 0.5 * torch.logdet(inside)
        reductions.append(reduction)
        Z = Z + step * gradient
        Z = Z / Z.norm(dim=1, keepdim=True)
    return Z, torch.stack(reductions)


def frequency_by_frequency(
    samples: Tensor, labels: Tensor, *, layers: int, eps: float, step: float
) -> Tensor:
    """Returns the features ``[n, c, h, w]`` after all layers of the shift-invariant network; loops over h w
    frequencies and all classes.
    """
    n, c, h, w = samples.shape
    Z = samples / samples.flatten(1).norm(dim=1)[:, None, None, None]
    member = torch.nn.functional.one_hot(labels).to(torch.complex128)
    eye = torch.eye(c, dtype=torch.complex128)
    for _ in range(layers):
        V = torch.fft.fft2(Z)
        moved = torch.empty_like(V)
        for p in range(h):
            for q in range(w):
                v = V[:, :, p, q]
                alpha = c / (n * eps**2)
                gradient = v @ (alpha * torch.linalg.inv(eye + alpha * v.mH @ v))
                for j in range(member.shape[1]):
                    size = member[:, j].sum()
                    a = c / (size * eps**2)
                    C = a * torch.linalg.inv(eye + a * (v * member[:, j, None]).mH @ v)
                    gradient = gradient - size / n * member[:, j, None] * (v @ C)
                moved[:, :, p, q] = v + step * gradient
        Z = torch.fft.ifft2(moved).real
        Z = Z / Z.flatten(1).norm(dim=1)[:, None, None, None]
    return Z
