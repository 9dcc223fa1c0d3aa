"""Argument checks that the functions of this theory share. Each error message is one line with the expected
and the actual value.

Public functions convert arrays first (:func:`~transformer_theory.core.validation.converted`); these checks
test shapes and values.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...core.validation import number


def describe(value: object) -> str:
    """Returns dtype and shape of a tensor ``[...]``, and the name of the type of any other value."""
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def check_type(name: str, value: object, *kinds: type, hint: str) -> None:
    """Checks that a value is an instance of one of the classes.

    Raises:
        TypeError: the value has another type; the message ends with ``hint``, which names the function to
            call.
    """
    if not isinstance(value, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{name} must be {names}, got {describe(value)}; {hint}")


def check_real(name: str, value: Tensor, dims: str, ndim: int) -> None:
    """Checks that a tensor ``[...]`` is float64 and finite and has ``ndim`` dimensions; ``dims`` describes
    them in messages.

    Raises:
        TypeError: the value is not a tensor.
        ValueError: the dtype or rank is wrong, or a value is NaN or infinite.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor {dims}, got {describe(value)}")
    if value.ndim != ndim:
        raise ValueError(f"{name} must be a tensor {dims}, got {describe(value)}")
    if value.dtype != torch.float64:
        raise ValueError(f"{name} must be float64, got {value.dtype}; convert with .double()")
    # A finite sum proves finite entries at lower cost. An infinite one proves nothing, since the sum of
    # finite entries may overflow.
    if not math.isfinite(float(value.detach().sum())) and not bool(torch.isfinite(value).all()):
        raise ValueError(
            f"{name} must be finite, got {int((~torch.isfinite(value)).sum())} NaN or infinite values of "
            f"{value.numel()}"
        )


def check_shape(name: str, value: Tensor, shape: Sequence[int], content: str = "") -> None:
    """Checks that a tensor ``[...]`` has this shape; ``content`` describes the entries in messages.

    Raises:
        ValueError: the shape differs.
    """
    if list(value.shape) != list(shape):
        raise ValueError(
            f"{name} must have shape {list(shape)}{content and f' ({content})'}, got {describe(value)}"
        )


def check_tokens(tokens: Tensor, query: Tensor, *, query_name: str = "query") -> None:
    """Checks tokens ``[..., n, T, d]`` and queries ``[..., n, d_z]``.

    Raises:
        TypeError: an argument is not a tensor.
        ValueError: shapes do not fit, a dimension is empty, or a value is not finite.
    """
    check_real("tokens", tokens, "[..., n, T, d]", max(3, getattr(tokens, "ndim", 3)))
    check_real(query_name, query, "[..., n, d_z]", tokens.ndim - 1)
    if min(tokens.shape) == 0:
        raise ValueError(
            f"tokens must hold at least one input, token and dimension, got shape {list(tokens.shape)}"
        )
    if query.shape[:-1] != tokens.shape[:-2]:
        raise ValueError(
            f"{query_name} must have one row per input, {list(tokens.shape[:-2])}, got shape "
            f"{list(query.shape)}"
        )


def check_signs(name: str, value: Tensor, shape: Sequence[int]) -> None:
    """Checks labels: a float64 tensor of this shape ``[..., n]`` with entries -1 and 1.

    Raises:
        TypeError: the value is not a tensor.
        ValueError: the shape differs, or an entry is not -1 or 1.
    """
    check_real(name, value, f"{list(shape)} of -1 and 1", len(shape))
    check_shape(name, value, shape, "one -1 or 1 per input")
    if not bool((value.abs() == 1).all()):
        raise ValueError(
            f"{name} must be -1 or 1, got {sorted(set(value.flatten().tolist()))[:4]}; label one class 1 "
            "and the others -1"
        )


def check_positions(name: str, value: Tensor, shape: Sequence[int], T: int) -> None:
    """Checks positions of tokens: integers in 0..T-1 of this shape ``[...]``.

    Raises:
        TypeError: the value is not a tensor of integers.
        ValueError: the shape differs, or a position is out of range.
    """
    if not isinstance(value, Tensor) or value.is_floating_point() or value.dtype == torch.bool:
        raise TypeError(f"{name} must be a tensor {list(shape)} of integers, got {describe(value)}")
    check_shape(name, value, shape)
    if value.numel() and not 0 <= int(value.min()) <= int(value.max()) < T:
        wrong = int(value.min()) if int(value.min()) < 0 else int(value.max())
        raise ValueError(f"{name} must lie in [0, {T}), got {wrong}")


def check_one_problem(tokens: object) -> None:
    """Checks that tokens belong to one problem ``[n, T, d]``, not to a batch of problems.

    Raises:
        ValueError: there are more than three dimensions.
    """
    if getattr(tokens, "ndim", 3) > 3:
        shape = list(np.shape(tokens))  # pyright: ignore
        raise ValueError(f"tokens must have shape [n, T, d], got {shape}; analyse one problem at a time")


def check_finite_weights(step: int, **weights: Tensor) -> None:
    """Checks that the weights ``[...]`` of a run have not overflowed.

    Args:
        step: number of steps taken, for the message.
        weights: weights by name.
    Raises:
        ValueError: a value is NaN or infinite.
    """
    for name, value in weights.items():
        # the extremes are NaN or infinite if an entry is
        if not math.isfinite(float(torch.stack(value.aminmax()).sum())) and not bool(
            torch.isfinite(value).all()
        ):
            raise ValueError(
                f"the run must keep {name} finite, got an overflow by step {step}; pass a smaller rate"
            )


def as_bool(name: str, value: object, shape: Sequence[int]) -> Tensor:
    """Converts a boolean tensor or numpy array to a tensor, and checks its shape ``[...]``.

    Raises:
        TypeError: the value is neither a tensor nor an array, or its entries are not booleans.
        ValueError: the shape differs.
    """
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if not isinstance(value, Tensor) or value.dtype != torch.bool:
        raise TypeError(f"{name} must be a tensor {list(shape)} of booleans, got {describe(value)}")
    check_shape(name, value, shape)
    return value


def check_nonnegative(**values: object) -> None:
    """Checks that numbers are finite and at least zero.

    Raises:
        ValueError: a value is negative, infinite or NaN; the message names it.
        TypeError: a value is not a number.
    """
    for name, value in values.items():
        if not 0 <= number(name, value) < math.inf:
            raise ValueError(f"{name} must be at least 0 and finite, got {value}")
