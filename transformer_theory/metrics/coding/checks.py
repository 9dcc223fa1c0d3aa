"""What every coding rate asks of its input. Nothing is silently cast: half precision and integers are refused."""

from numbers import Real

import torch
from jaxtyping import Shaped
from torch import Tensor

SMALLEST_EPS = 1e-100  # the square is far from the ends of float64


def check_tensor(name: str, value: object) -> None:
    """Raises ValueError unless the value is a tensor of torch."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a torch.Tensor, got {type(value).__name__}; convert with torch.as_tensor({name})")


def check_eps(eps: float) -> None:
    """Raises ValueError unless the distortion is a positive number whose square is one, too."""
    if not (isinstance(eps, Real) and SMALLEST_EPS <= eps <= 1 / SMALLEST_EPS):
        raise ValueError(f"eps must be a positive distortion (a number, {SMALLEST_EPS:g} at least; it is squared inside), got {eps!r}")


def check_finite(features: Shaped[Tensor, "..."]) -> None:
    """Raises ValueError unless all values are finite."""
    if not bool(torch.isfinite(features).all()):
        raise ValueError(f"features must be finite, got {int((~torch.isfinite(features)).sum())} NaN or infinite values; drop them")


def check_integers(labels: Shaped[Tensor, "..."]) -> None:
    """Raises ValueError unless labels are integers, in a tensor."""
    check_tensor("labels", labels)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers, got {labels.dtype}; convert with .long()")


def check_features(features: Shaped[Tensor, "..."], eps: float) -> None:
    """Raises ValueError unless features are ``[*batch, n, d]`` with samples, float32 or float64, and eps is a positive number."""
    check_eps(eps)
    check_tensor("features", features)
    if features.ndim < 2 or 0 in features.shape[-2:]:
        raise ValueError(f"features must have shape [*batch, n, d] with n, d >= 1, got {list(features.shape)}")
    if features.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"features must be float32 or float64, got {features.dtype}; convert with .float(), also under autocast")
