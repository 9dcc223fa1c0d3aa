r"""Linear MLP and exponential attention: the orbit in closed form, with attention on one token after finite
time.

With one linear unit, z integrated out (:math:`z = v^2/2` from zero) and the discriminancy :math:`\Delta_l =
E[g\, x_l]`,

.. math:: \dot v_l = \Delta_l\, e^{v_l^2/2} \quad\Rightarrow\quad
    \frac{\operatorname{erf}(v_l/\sqrt2)}{\Delta_l} = \sqrt{2/\pi}\; t
    \quad \text{for every } l,

since :math:`\int_0^v e^{-u^2/2} du = \sqrt{\pi/2}\, \operatorname{erf}(v/\sqrt2)`. The token with the largest
:math:`|\Delta|` blows up at :math:`t^* = \sqrt{\pi/2} / \max_l |\Delta_l|`. At that time the others are at
:math:`v_l = \sqrt2\, \operatorname{erf}^{-1}(\Delta_l /
|\Delta|_{\max})`, and attention is on the one token.

A normaliser A that all tokens and samples share, :math:`\dot v_l = \Delta_l e^{v_l^2/2} / A` with :math:`z =
v^2/2` unchanged, leaves the orbit unchanged and slows the clock: :math:`dt = A\, d\tau`. Softmax attention
that is trained together with the MLP has a stronger effect. Each sample has its own normaliser, and
:math:`\dot z = E[g\, b \circ (v - b^\top v)]` drives z away from :math:`v^2/2`, so v leaves the orbit (claim
joma/softmax-leaves-the-orbit). Source: :cite:t:`tian2024joma`.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.threads import single_threaded
from ...core.validation import converted

Vector = Float[Tensor, " M"]
Remaining = Float[Tensor, " t"]


@converted(float64=("discriminancy",))
def blow_up_time(discriminancy: Vector) -> float:
    r"""Returns t* = sqrt(pi / 2) / :math:`\max |\Delta|`, the time at which the orbit from zero becomes
    infinite.

    Args:
        discriminancy: Delta, ``[M]``.
    Raises:
        ValueError: Delta is empty, zero or not finite.
    """
    return math.sqrt(math.pi / 2) / _largest(discriminancy)


@single_threaded
@converted(float64=("discriminancy", "remaining"))
def orbit(discriminancy: Vector, remaining: Remaining) -> Float[Tensor, "t M"]:
    r"""Returns v at the times :math:`t = (1 - r) t^*`, from v = 0.

    Args:
        discriminancy: Delta, ``[M]``.
        remaining: share r of t* that remains, in (0, 1], ``[t]``; it resolves times close to the blow-up.
    Returns:
        v, ``[t, M]``; the leading token is near :math:`\sqrt{2 \ln(1/r)}`.
    Raises:
        ValueError: a share is outside (0, 1], or Delta is empty, zero or not finite.
    """
    from scipy.special import erfcinv

    if not bool(((remaining > 0) & (remaining <= 1)).all()):
        raise ValueError(
            f"remaining must lie in (0, 1], got {remaining.min().item():g} to {remaining.max().item():g}; 1 "
            "is the start"
        )
    size, largest = discriminancy.abs(), _largest(discriminancy)
    # erf(v / sqrt 2) = (1 - r) |Delta| / max |Delta| rounds to 1 near the end. Its complement is a sum of
    # positive terms, without cancellation, and erfcinv inverts it down to r = 1e-300. Where the complement is
    # near 1, erf is the accurate one of the two.
    share, complement = (
        size / largest * (1 - remaining[:, None]),
        (largest - size) / largest + size / largest * remaining[:, None],
    )
    inverse = torch.where(share < 0.5, torch.erfinv(share), torch.from_numpy(erfcinv(complement.numpy())))
    return discriminancy.sign() * math.sqrt(2) * inverse


@converted(float64=("discriminancy",))
def limits(discriminancy: Vector) -> Vector:
    r"""Returns v at the blow-up, :math:`\sqrt2\,\mathrm{erfinv}(\Delta / \max |\Delta|)`, ``[M]``; infinite
    for the leading token.

    Raises:
        ValueError: Delta is empty, zero or not finite.
    """
    return math.sqrt(2) * torch.erfinv(discriminancy / _largest(discriminancy))


@converted(float64=("lower", "discriminancy"))
def progress(lower: Float[Tensor, "*batch M"], discriminancy: Vector) -> Float[Tensor, "*batch M"]:
    """Returns erf(v / sqrt 2) / Delta of each token, ``[*batch, M]``, which is equal for all tokens on the
    orbit.
    """
    return torch.erf(lower / math.sqrt(2)) / discriminancy


@single_threaded
@converted(float64=("discriminancy", "frequency", "remaining"))
def normalised_clock(
    discriminancy: Vector, frequency: Vector, remaining: Remaining, *, points: int = 4000
) -> Remaining:
    r"""Returns the times at which the flow with normalised attention reaches the points of :func:`orbit`.

    They are :math:`t = \int A\, d\tau` with :math:`A = \sum_l x_l e^{v_l^2/2}`.

    Args:
        discriminancy: Delta, ``[M]``.
        frequency: weight x of each token under uniform logits, ``[M]``, >= 0.
        remaining: r in (0, 1], ``[t]``.
        points: number of points of the trapezoidal rule in ln r, from r = 1 to the smallest r; the error
            falls with its square.
    Returns:
        t, ``[t]``.
    Raises:
        ValueError: see :func:`orbit`; or ``remaining`` is empty, or frequencies are negative, not finite or
            all zero.
    """
    if not bool(((frequency >= 0) & torch.isfinite(frequency)).all()) or not float(frequency.sum()) > 0:
        raise ValueError(f"frequency must be finite, >= 0 and not all zero, got {frequency.tolist()[:5]}")
    if not len(remaining):
        raise ValueError("remaining must hold at least one share, got none")
    # A grows without bound as r goes to zero, but A r stays bounded. Therefore integrate in ln r: |dt| = A t*
    # |dr| = A t* r |d ln r|.
    grid = torch.logspace(0, math.log10(min(float(remaining.min()), 1 - 1e-12)), points, dtype=torch.float64)
    # r falls from the start to the end; the grid contains the requested values
    grid = torch.cat([grid, remaining]).unique().flip(0)
    normaliser = (frequency * torch.exp(orbit(discriminancy, grid).square() / 2)).sum(-1)
    depth, speed = -grid.log(), normaliser * grid * blow_up_time(discriminancy)
    times = torch.cat(
        [torch.zeros(1, dtype=torch.float64), ((speed[1:] + speed[:-1]) / 2 * depth.diff()).cumsum(0)]
    )
    return times[torch.searchsorted(depth, -remaining.log())]


def _largest(discriminancy: Vector) -> float:
    largest = float(discriminancy.abs().max()) if len(discriminancy) else 0.0
    if not 0 < largest < math.inf:
        raise ValueError(
            f"discriminancy must be finite and not all zero, got a largest size of {largest}; nothing would "
            "move"
        )
    return largest
