"""What every coding rate asks of its input. Nothing is silently cast: half precision and integers are refused."""

import torch
from jaxtyping import Shaped
from torch import Tensor


def check_eps(eps: float) -> None:
    """Raises ValueError unless the distortion is a positive number."""
    if not 0 < eps < float("inf"):
        raise ValueError(f"eps must be a positive distortion (it is squared inside), got {eps}")


def check_finite(features: Shaped[Tensor, "..."]) -> None:
    """Raises ValueError unless all values are finite."""
    if not bool(torch.isfinite(features).all()):
        raise ValueError(f"features must be finite, got {int((~torch.isfinite(features)).sum())} NaN or infinite values; drop them")


def check_integers(labels: Shaped[Tensor, "..."]) -> None:
    """Raises ValueError unless labels are integers."""
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers, got {labels.dtype}; convert with .long()")


def check_features(features: Shaped[Tensor, "..."], eps: float) -> None:
    """Raises ValueError unless features are ``[*batch, n, d]`` with samples, float32 or float64, and eps is a positive number."""
    check_eps(eps)
    if features.ndim < 2 or 0 in features.shape[-2:]:
        raise ValueError(f"features must have shape [*batch, n, d] with n, d >= 1, got {list(features.shape)}")
    if features.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"features must be float32 or float64, got {features.dtype}; convert with .float()")
