r"""Kernels of infinitely many random features.

For Gaussian vectors :math:`w \sim \mathcal N(0, I)` and the angle :math:`\theta` between a and b
:cite:p:`cho2009kernel`,

.. math::
    \kappa(a, b) := E[\mathrm{relu}(w^\top a)\, \mathrm{relu}(w^\top b)]
    = \frac{|a||b|}{2\pi} (\sin\theta + (\pi - \theta) \cos\theta).

A head of random-feature attention applies relu to :math:`\langle W, \tilde x_0 \tilde x_i^\top \rangle`, so
its kernel on inputs with query :math:`x_0` and keys :math:`x_1, \dots, x_N` is

.. math::
    K(x, x') = \frac{1}{N N'} \sum_{i, j} \kappa(\tilde x_0 \tilde x_i^\top, \tilde x_0' \tilde x_j'^\top)\,
    \tilde x_i^\top \tilde x_j',

where :math:`\tilde x = (x, 1)`. With a Gaussian weight of variance :math:`s^2` on the correlation of query
and key, W is still a centred Gaussian, and inner products become
:math:`\langle \tilde x_0 \tilde x_i^\top, \tilde x_0' \tilde x_j'^\top \rangle + s^2 (x_0^\top x_i)(x_0'^\top
x_j')`. The closed form of K is our own. Source of the model: :cite:t:`fu2023what`.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.validation import converted, in_range, number

Inputs = Float[Tensor, "n tokens d"]
CHUNK = 2**17  # entries of the largest temporary array: several stay in the processor's cache
LARGEST = 1e45  # the kernel has degree 6 in the tokens, so larger ones would overflow


@in_range
@converted(floats=("inner", "left", "right"))
def arc_cosine(
    inner: Float[Tensor, "*shape"], left: Float[Tensor, "..."], right: Float[Tensor, "..."]
) -> Float[Tensor, "*shape"]:
    """Computes the kernel of relu from inner products and norms, which are broadcast; zero where a norm is
    zero.

    Raises:
        ValueError: a number is not finite, or becomes so.
    """
    return _arc_cosine(inner, left, right)


def _arc_cosine(inner: Tensor, left: Tensor, right: Tensor) -> Tensor:
    norms = left * right
    # Rounding may push the cosine beyond 1, where the arc cosine is not a number.
    cosine = (inner / norms.clamp_min(torch.finfo(inner.dtype).tiny)).clamp_(-1, 1)
    angle = cosine.acos()
    return norms / (2 * math.pi) * (angle.sin() + (math.pi - angle) * cosine)


@in_range
@converted(float64=("x", "y"))
def attention_kernel(
    x: Inputs, y: Float[Tensor, "m others d"] | None = None, *, spread: float = 0.0
) -> Float[Tensor, "n m"]:
    """Computes the kernel of random-feature attention between two sets of inputs, ``[n, m]``.

    Args:
        x, y: inputs ``[n, 1 + N, d]`` and ``[m, 1 + N', d]``; the first token is the query. None: y = x.
        spread: standard deviation s of the weight of the correlation of query and key.

    Raises:
        ValueError: there is no key, the dimensions differ, or a number is not finite.
    """
    if not math.isfinite(number("spread", spread)) or abs(spread) > LARGEST:
        raise ValueError(f"spread must be a finite number of at most {LARGEST:g} in size, got {spread}")
    y = x if y is None else y
    for name, inputs in (("x", x), ("y", y)):
        check(name, inputs)
    if x.shape[2] != y.shape[2]:
        raise ValueError(f"x and y must have tokens of equal dimension, got {x.shape[2]} and {y.shape[2]}")
    queries = 1 + x[:, 0] @ y[:, 0].mT  # [n, m]
    norms = [_norms(inputs, spread) for inputs in (x, y)]
    rows = max(1, CHUNK // (y.shape[0] * y.shape[1] * x.shape[1]))
    parts = []
    for start in range(0, len(x), rows):
        part = x[start : start + rows]
        keys = 1 + torch.einsum("nid,mjd->nmij", part[:, 1:], y[:, 1:])
        inner = queries[start : start + rows, :, None, None] * keys
        if spread:
            inner += spread**2 * _correlations(part)[:, None, :, None] * _correlations(y)[None, :, None, :]
        values = _arc_cosine(inner, norms[0][start : start + rows, None, :, None], norms[1][None, :, None, :])
        parts.append((values * keys).mean((2, 3)))
    return torch.cat(parts)


@in_range
@converted(float64=("x", "y"))
def mlp_kernel(x: Inputs, y: Float[Tensor, "m tokens d"] | None = None) -> Float[Tensor, "n m"]:
    """Computes the kernel of a random-feature MLP on the concatenated tokens and a one, ``[n, m]``.

    Args:
        x, y: inputs ``[n, tokens, d]`` and ``[m, tokens, d]``. None: y = x.

    Raises:
        ValueError: the numbers of tokens or their dimensions differ, or a number is not finite.
    """
    y = x if y is None else y
    for name, inputs in (("x", x), ("y", y)):
        check(name, inputs)
    if x.shape[1:] != y.shape[1:]:
        raise ValueError(
            f"x and y must have tokens of equal number and dimension, got {tuple(x.shape[1:])} and "
            f"{tuple(y.shape[1:])}"
        )
    a, b = x.flatten(1), y.flatten(1)
    left, right = ((1 + each.square().sum(1)).sqrt() for each in (a, b))
    return _arc_cosine(1 + a @ b.mT, left[:, None], right[None])


def check(name: str, inputs: Tensor) -> None:
    """Checks that inputs are ``[n, 1 + N, d]`` with N >= 1 and finite numbers of at most 1e45 in size.

    Raises:
        ValueError: they are not.
    """
    if inputs.ndim != 3 or inputs.shape[1] < 2 or not inputs.numel():
        raise ValueError(
            f"{name} must be [n, 1 + N, d], a query and at least one key per input, got {list(inputs.shape)}"
        )
    if not bool(inputs.isfinite().all()):
        raise ValueError(f"{name} must be finite, got NaN or infinite numbers; remove those inputs")
    if (size := float(inputs.abs().max())) > LARGEST:
        raise ValueError(
            f"{name} must have numbers of at most {LARGEST:g} in size, got {size:g}; rescale the tokens"
        )


def _correlations(x: Inputs) -> Float[Tensor, "n keys"]:
    return torch.einsum("nd,nid->ni", x[:, 0], x[:, 1:])


def _norms(x: Inputs, spread: float) -> Float[Tensor, "n keys"]:
    squares = (1 + x[:, :1].square().sum(-1)) * (1 + x[:, 1:].square().sum(-1))
    return (squares + spread**2 * _correlations(x).square()).sqrt()
