"""What the steps of :cite:t:`yu2023white` ask of their numbers and tensors, each said in one line."""

import torch
from torch import Tensor

from ...core.validation import positive

__all__ = ["positive", "same_kind"]


def same_kind(**tensors: Tensor) -> None:
    """Two tensors [...] that are multiplied: one dtype, unless autocast chooses it, and no half precision on a CPU.

    Raises:
        ValueError: float16 on a CPU, or dtypes differ.
    """
    for name, tensor in tensors.items():
        if tensor.dtype == torch.float16 and tensor.device.type == "cpu":
            raise ValueError(f"{name} on a CPU must be float32 or float64, got float16; pass {name}.float()")
    (first, one), (second, other) = tensors.items()
    if one.dtype != other.dtype and not torch.is_autocast_enabled(one.device.type):
        raise ValueError(f"{first} and {second} must share a dtype, got {one.dtype} and {other.dtype}; convert one of them")
