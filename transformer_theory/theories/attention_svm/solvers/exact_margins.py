r"""Margins :math:`d_c^\top W z_c - b_c` to nearly twice the digits of float64: a residual formed from them bounds the truth.

In float64 a margin is wrong by about :math:`\epsilon \|d_c\| \|W\| \|z_c\|`, which is much where W is long, and refinement makes the
rounded sum, not the margin, equal to one. Here numbers are cut into slices of so few bits that sums of products of slices are exact,
:math:`x = x_1 + x_2 + x_3`, and only products that are :math:`2^{-2\beta}` of the largest, with :math:`\beta` bits a slice, are
rounded.

Source: the error-free transformation of matrix products of :cite:t:`ozaki2012errorfree`, for the margins of (Att-SVM) of
:cite:t:`tarzanagh2023transformers`.
"""

import numpy as np
import torch
from torch import Tensor

EPSILON = float(np.finfo(float).eps)
SURE = 1e-13  # of the largest right-hand side: rounding up to here stays in the residuals of batches


def beyond(difference: np.ndarray, W: np.ndarray, query: np.ndarray, rhs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""How far the margins are above their right-hand sides, rounded once, and a bound on what is lost besides.

    Args:
        difference, query: ``[..., m, d_x]`` and ``[..., m, d_z]``.
        W: ``[..., d_x, d_z]``.
        rhs: ``[..., m]``.
    Returns:
        :math:`d_c^\top W z_c - b_c`, ``[..., m]``, and the bound ``[..., m]``, about :math:`10^{-28}` of
        :math:`\|d_c\| \|W\| \|z_c\|` at a hundred dimensions.
    """
    first, second, rest = _slices(difference, -1)
    above, middle, below = _slices(W, -2)
    exact = first @ above, np.concatenate([first, second], -1) @ np.concatenate([middle, above], -2)
    small = np.concatenate([first, second, rest], -1) @ np.concatenate([below, middle + below, W], -2)
    rows, error = _two_sum(*exact)
    small += error
    first, second, rest = _slices(rows, -1)
    above, middle, below = _slices(query, -1)
    large, medium = (first * above).sum(-1), (first * middle + second * above).sum(-1)
    tail = (first * below + second * (middle + below) + rest * query + small * query).sum(-1)
    total, lost = _two_sum(large, -rhs)
    total, more = _two_sum(total, medium)
    lengths = np.sqrt((difference * difference).sum(-1) * (query * query).sum(-1)) * np.sqrt((W * W).sum((-2, -1)))[..., None]
    most = max(difference.shape[-1], query.shape[-1], 1)
    return total + (lost + more + tail), 64 * most**2 * EPSILON * 0.25 ** _bits(most) * lengths


def _bits(terms: int) -> int:
    """Bits of a slice: sums of twice as many products of two, with two bits to spare in each, are whole multiples of a unit below 2^53."""
    return (48 - max(terms - 1, 1).bit_length()) // 2


def _slices(values: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three parts, of which the sum is exact: two of few bits, relative to the largest along the axis of the sums, and what is left."""
    bits = _bits(values.shape[axis])
    shift = 2.0 ** (52 - bits) * np.abs(values).max(axis, keepdims=True, initial=0)
    first = (values + shift) - shift
    left = values - first
    shift *= 2.0**-bits
    second = (left + shift) - shift
    return first, second, left - second


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rounded sum and its error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def surely_beyond(difference: Tensor, W: Tensor, query: Tensor, rhs: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`beyond` of a batch, in float64 where that cannot be wrong by more than :data:`SURE`, which the bound then leaves out.

    Args:
        difference, query, W, rhs: ``[B, m, d_x]``, ``[B, m, d_z]``, ``[B, d_x, d_z]`` and ``[B, m]``.
    Returns:
        What is above the right-hand sides, and the bound on what is lost, both ``[B, m]``.
    """
    above, lost = ((difference @ W) * query).sum(-1) - rhs, torch.zeros_like(rhs)
    length = (difference.norm(dim=-1) * query.norm(dim=-1)).amax(-1) if rhs.shape[-1] else rhs.sum(-1)
    rounding = 0.5 * EPSILON * (sum(W.shape[-2:]) + 2) * length * W.flatten(1).norm(dim=-1)
    scale = rhs.abs().amax(-1) if rhs.shape[-1] else rhs.sum(-1)
    for b in (~(rounding <= SURE * scale)).nonzero().squeeze(-1).tolist():
        exact = beyond(*(v[b].numpy() for v in (difference, W, query, rhs)))
        above[b], lost[b] = (torch.from_numpy(v) for v in exact)
    return above, lost
