r"""The best single step: what one layer of linear attention should learn, in closed form.

For inputs with covariance :math:`\Lambda`, weights :math:`w \sim N(0, I)` and noise of variance
:math:`\sigma^2`, one layer of linear attention answers :math:`x^\top G b` with :math:`b = \tfrac1N \sum_j y_j
x_j`. Over prompts, :math:`E[w b^\top] = \Lambda`, and

.. math:: B = E[b b^\top] = \tfrac1N Q + (1 - \tfrac1N) \Lambda^2 + \tfrac{\sigma^2}{N} \Lambda, \qquad Q =
    E[\|x\|^2 x x^\top].

So the risk :math:`E (x^\top G b - x^\top w)^2 = \operatorname{tr} \Lambda (G B G^\top - G \Lambda - \Lambda
G^\top + I)` has its minimum at :math:`G = \Lambda B^{-1}`. For Gaussian inputs :math:`Q = 2 \Lambda^2 +
(\operatorname{tr} \Lambda) \Lambda`, and this is
:math:`\Gamma^{-1}` with

.. math:: \Gamma = (1 + \tfrac1N) \Lambda + \tfrac{\operatorname{tr} \Lambda + \sigma^2}{N} I .

The best step of plain descent, :math:`G = \eta I`, is :math:`\eta = \operatorname{tr} \Lambda^2 /
\operatorname{tr} \Lambda B`. Source: :cite:t:`zhang2024trained` for Gaussian inputs without noise; noise,
other moments and the best step are the library's own derivation.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.validation import full_precision, in_range, integers
from ...maths.linalg import binary_scale

Square = Float[Tensor, "d d"]


@in_range
def fourth_moment(x: Float[Tensor, "*n d"]) -> Square:
    r"""Computes Q, the mean of :math:`\|x\|^2 x x^\top`, of samples ``[..., d]``; float64 ``[d, d]``.

    Raises:
        ValueError: there are no samples ``[..., d]``.
    """
    if x.ndim < 2 or not x.numel():
        raise ValueError(f"expected samples [..., d], got {list(x.shape)}; pass at least one")
    flat = x.double().flatten(0, -2)
    return (flat * flat.square().sum(-1, keepdim=True)).mT @ flat / len(flat)


def gaussian_fourth(covariance: Square) -> Square:
    """Computes Q of a Gaussian from its covariance, ``[d, d]``."""
    return 2 * covariance @ covariance + covariance.trace() * covariance


@in_range
@full_precision
def gamma(covariance: Square, N: int, *, noise: float = 0.0) -> Square:
    """Computes Gamma for Gaussian inputs, ``[d, d]``; for the arguments see :func:`preconditioner`."""
    _check(covariance, N, noise)
    spread = (covariance.trace() + noise) / N
    return (1 + 1 / N) * covariance + spread * torch.eye(len(covariance), dtype=covariance.dtype)


@full_precision
def second_moment(covariance: Square, N: int, *, noise: float = 0.0, fourth: Square | None = None) -> Square:
    """Computes B, the second moment of b over prompts, ``[d, d]``; for the arguments see
    :func:`preconditioner`.
    """
    _check(covariance, N, noise)
    if fourth is not None:
        _positive("fourth", fourth, len(covariance))
    Q = gaussian_fourth(covariance) if fourth is None else fourth
    return Q / N + (1 - 1 / N) * covariance @ covariance + noise / N * covariance


@in_range
@full_precision
def preconditioner(covariance: Square, N: int, *, noise: float = 0.0, fourth: Square | None = None) -> Square:
    """Computes the best matrix G of one layer, ``[d, d]``: the inverse of :func:`gamma` for Gaussian inputs.

    Args:
        covariance: covariance of the inputs, whose mean is zero, ``[d, d]``.
        N: number of examples.
        noise: variance of the noise.
        fourth: :func:`fourth_moment` of inputs that are not Gaussian, ``[d, d]``. None: Gaussian inputs.
    Raises:
        ValueError: N is below 1, or a matrix is not symmetric and positive, or of another shape.
    """
    if fourth is None:
        return torch.linalg.inv(gamma(covariance, N, noise=noise))
    return torch.linalg.solve(second_moment(covariance, N, noise=noise, fourth=fourth), covariance).mT


@in_range
@full_precision
def risk(G: Square, covariance: Square, N: int, *, noise: float = 0.0, fourth: Square | None = None) -> float:
    """Computes the mean squared error of the answers x^T G b; for the other arguments see
    :func:`preconditioner`.
    """
    B = second_moment(covariance, N, noise=noise, fourth=fourth)
    check_step(G, len(covariance))
    cross = G @ covariance
    return float((covariance @ (G @ B @ G.mT - cross - cross.mT + torch.eye(len(G), dtype=G.dtype))).trace())


def answers_cosine(
    G: Square, other: Square, covariance: Square, N: int, *, noise: float = 0.0, fourth: Square | None = None
) -> float:
    """Computes the cosine over prompts of the answers x^T G b of two matrices; for the other arguments see
    :func:`preconditioner`.

    Unlike the cosine of the matrices it does not depend on directions in which the inputs hardly vary.
    """
    B = second_moment(covariance, N, noise=noise, fourth=fourth)
    inner, first, second = (
        float((covariance @ left @ B @ right.mT).trace())
        for left, right in ((G, other), (G, G), (other, other))
    )
    return inner / math.sqrt(first * second)


@in_range
@full_precision
def optimal_step(covariance: Square, N: int, *, noise: float = 0.0, fourth: Square | None = None) -> float:
    """Computes the step of plain descent with the smallest risk; for the arguments see
    :func:`preconditioner`.
    """
    _check(covariance, N, noise)
    # The step is inverse to the scale of the covariance; products of scaled matrices are in range.
    scale = float(binary_scale(covariance, (0, 1)))
    fourth = None if fourth is None else fourth / scale / scale
    covariance = covariance / scale
    B = second_moment(covariance, N, noise=noise / scale, fourth=fourth)
    return float((covariance @ covariance).trace() / (covariance @ B).trace()) / scale


def check_step(G: Tensor, d: int) -> None:
    """Raises :class:`ValueError` unless G is a matrix of a step for inputs of d coordinates, in float64."""
    if G.shape != (d, d) or G.dtype != torch.float64:
        raise ValueError(
            f"expected a float64 matrix G [{d}, {d}], got {G.dtype} {list(G.shape)}; pass preconditioner(...)"
        )


def _check(covariance: Tensor, N: int, noise: float) -> None:
    """Raises :class:`ValueError` unless the covariance ``[d, d]`` is symmetric and positive and the numbers
    are in range.
    """
    integers(N=N)
    if not 0 <= noise < math.inf:
        raise ValueError(f"noise must be a variance of at least 0, got {noise}")
    _positive("covariance", covariance, len(covariance) if covariance.ndim else 0)


def _positive(name: str, matrix: Tensor, d: int) -> None:
    """Raises :class:`ValueError` unless a matrix is ``[d, d]``, float64, finite, symmetric and positive."""
    if matrix.shape != (d, d) or not d or matrix.dtype != torch.float64:
        raise ValueError(
            f"expected {name} as a float64 matrix [d, d], got {matrix.dtype} {list(matrix.shape)}; pass "
            "moments of the inputs"
        )
    size = float(matrix.abs().max())
    if not math.isfinite(size) or not torch.allclose(matrix, matrix.mT, rtol=0, atol=1e-9 * size):
        raise ValueError(
            f"{name} must be finite and symmetric, got another matrix; pass moments of the inputs"
        )
    low = float(torch.linalg.eigvalsh(matrix)[0])
    if low <= 1e-12 * size:
        raise ValueError(
            f"{name} must be positive, got the eigenvalue {low:.3g}; project the inputs on fewer dimensions"
        )
