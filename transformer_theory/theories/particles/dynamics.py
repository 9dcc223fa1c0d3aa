r"""Tokens as particles on the unit sphere, with depth as time.

With :math:`P_x y = y - \langle x, y \rangle x`, a sequence :math:`x_1, \dots, x_n` of unit vectors moves by

.. math::
    \text{SA:}\quad \dot x_i = P_{x_i} \sum_j \frac{e^{\beta \langle x_i, x_j \rangle}}{\sum_k e^{\beta
    \langle x_i, x_k \rangle}} x_j, \qquad \text{USA:}\quad \dot x_i = P_{x_i} \frac1n \sum_j e^{\beta \langle
    x_i, x_j \rangle} x_j .

A layer with normalised tokens is an Euler step of SA. Scores may be :math:`\beta\, x_i B x_j^\top` with any
matrix B, and values :math:`x_j V`; the theory has V = I. *Pre-norm* layers do not normalise the stream:
:math:`\dot z_i = \sum_j a_{ij} \hat z_j` with
:math:`\hat z = z / |z|`, so directions move with speed :math:`1/|z_i|`, and :math:`|z_i|` grows.
Source: :cite:t:`geshkovski2025mathematical`; pre-norm as in :cite:t:`karagodin2025normalization`.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.errors import NotConverged
from ...core.validation import converted, full_precision, in_range, positive
from ...maths.linalg import directions

Tokens = Float[Tensor, "*batch n d"]
Field = Callable[[Tensor], Tensor]
MAX_STEPS = 20_000  # of one flow
REST = 1e-9  # speed at which all tokens count as being at rest
# The pair of Dormand and Prince: stages, weights of order 5, and the difference to the weights of order 4.
STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)


def increasing_times(times: Sequence[float]) -> None:
    """Checks that there are times, finite and non-negative, and that they increase; else raises
    a ValueError.
    """
    if (
        not len(times)
        or not 0 <= times[0] <= times[-1] < math.inf
        or not all(a < b for a, b in pairwise(times))
    ):
        raise ValueError(
            f"times must be non-negative and increase, got {list(times)}; pass e.g. times=(1.0, 2.0)"
        )


def unit(X: Tokens) -> Tokens:
    """Divides each token by its norm, whatever its scale; a zero token stays zero.

    Raises:
        ValueError: a token is not finite.
    """
    return directions(X)


@in_range
@converted(floats=("X", "Y"))
def tangent(X: Tokens, Y: Tokens) -> Tokens:
    """Projects each Y_i onto the tangent space of the sphere at the unit vector X_i.

    Raises:
        ValueError: a number is not finite, or becomes so.
    """
    return _tangent(X, Y)


def _tangent(X: Tokens, Y: Tokens) -> Tokens:
    return Y - (X * Y).sum(-1, keepdim=True) * X


@in_range
@converted(floats=("X", "bilinear"))
def attention(
    X: Tokens, *, beta: float, bilinear: Tensor | None = None, causal: bool = False
) -> Float[Tensor, "*batch n n"]:
    """Softmax of the scores beta x_i B x_j^T by rows; with ``causal`` over j <= i only.

    Raises:
        ValueError: beta, a token or a matrix is not finite, or a score leaves the range of floating point.
    """
    return _attention(X, beta=beta, bilinear=bilinear, causal=causal)


def _attention(X: Tokens, *, beta: float, bilinear: Tensor | None = None, causal: bool = False) -> Tensor:
    keys = X if bilinear is None else X @ bilinear.mT
    scores = beta * (X @ keys.mT)
    if causal:
        later = torch.ones(X.shape[-2], X.shape[-2], dtype=torch.bool, device=X.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return torch.softmax(scores, -1)


@in_range
@converted(floats=("X", "bilinear", "value"))
def softmax_field(
    X: Tokens,
    *,
    beta: float,
    bilinear: Tensor | None = None,
    value: Tensor | None = None,
    causal: bool = False,
) -> Tokens:
    """Velocity of SA at X; rows of X need not be unit vectors, only their directions count.

    Args:
        X: tokens, ``[*batch, n, d]``.
        beta: inverse temperature.
        bilinear: B of the scores ``[d, d]``; None: the identity.
        value: V ``[d, d]``; None: the identity.
        causal: whether token i attends to the tokens j <= i only.
    Raises:
        ValueError: beta, a token or a matrix is not finite, or a score leaves the range of floating point.
    """
    X = unit(X)
    moved = X if value is None else X @ value
    return _tangent(X, _attention(X, beta=beta, bilinear=bilinear, causal=causal) @ moved)


@converted(floats=("X", "value"))
def unnormalised_field(X: Tokens, *, beta: float, value: Tensor | None = None) -> Tokens:
    """Velocity of USA at X: weights e^{beta <x_i, x_j>} / n, which do not sum to one.

    Raises:
        ValueError: the weights leave the range of floating-point numbers.
    """
    X = unit(X)
    moved = X if value is None else X @ value
    field = _tangent(X, torch.exp(beta * (X @ X.mT)) @ moved / X.shape[-2])
    if not bool(field.isfinite().all()):
        raise ValueError(
            f"the field must be finite, got NaN or infinity for beta = {beta:g}; reduce beta or check the "
            "matrices"
        )
    return field


@in_range
@converted(floats=("Z",))
def pre_norm_field(Z: Tokens, *, beta: float) -> Tokens:
    """Velocity of the stream of pre-norm layers with V = I: attention over the directions, neither projected
    nor normalised.

    Raises:
        ValueError: beta or a token is not finite.
    """
    X = unit(Z)
    return _attention(X, beta=beta) @ X


@full_precision
def flow(
    X: Tokens, field: Field, *, times: Sequence[float], tolerance: float = 1e-8, sphere: bool = True
) -> Float[Tensor, "times *batch n d"]:
    """Integrates a field by the method of Dormand and Prince with steps that adapt to an error per step.

    All sequences of a batch share the steps. If all tokens are at rest, the state is repeated to the end.

    Args:
        X: tokens at time 0, ``[*batch, n, d]`` float64; normalised first if ``sphere``.
        field: velocity as a function of the tokens.
        times: increasing times at which the state is returned; 0 is allowed.
        tolerance: largest error of a token's coordinate per step.
        sphere: whether tokens are normalised after each step.
    Raises:
        ValueError: there are no times, they do not increase, the tolerance is not positive, or tokens or the
            field are not finite.
        NotConverged: the integration needs more than :data:`MAX_STEPS` steps.
    """
    increasing_times(times)
    positive(tolerance=tolerance)
    if X.ndim < 2 or not X.numel() or not X.is_floating_point():
        raise ValueError(f"tokens must be floats [*batch, n, d], got {X.dtype} of shape {tuple(X.shape)}")
    if not bool(X.isfinite().all()):
        raise ValueError("tokens must be finite, got NaN or infinity; remove these sequences")
    X = unit(X) if sphere else X
    now, steps, saved, velocity = 0.0, 0, [], field(X)
    if not bool(velocity.isfinite().all()):
        raise ValueError(
            "the field must be finite, got NaN or infinity at time 0; reduce beta or check the matrices"
        )
    step = min(0.1, 0.1 / max(float(velocity.abs().max()), 1e-6))
    for stop in times:
        while now < stop:
            if float(velocity.abs().max()) < REST:
                now = stop
                break
            if (steps := steps + 1) > MAX_STEPS:
                raise NotConverged(
                    f"the flow reached time {now:.4g} of {stop:.4g} in {MAX_STEPS} steps; loosen the "
                    "tolerance",
                    X,
                )
            h = min(step, stop - now)
            slopes, reached = [velocity], X
            for row in STAGES:
                reached = X + h * sum(a * k for a, k in zip(row, slopes) if a)
                slopes.append(field(reached))
            error = h * float(torch.stack([e * k for e, k in zip(ERROR, slopes) if e]).sum(0).abs().max())
            if error <= tolerance:
                # The last stage is the new state, and the fields depend on directions only: its slope is the
                # next first one.
                now, X, velocity = (
                    (stop if h == stop - now else now + h),
                    (unit(reached) if sphere else reached),
                    slopes[-1],
                )
            # Order 5: the error of a step is of order h^5 in the lower formula. A factor of at most 4 avoids
            # rejected steps.
            step = h * min(4.0, max(0.2, 0.9 * (tolerance / max(error, 1e-300)) ** 0.2))
        saved.append(X)
    return torch.stack(saved)
