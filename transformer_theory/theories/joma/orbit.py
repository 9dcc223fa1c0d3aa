r"""Linear MLP and exponential attention: the orbit in closed form, and attention on one token after finite time.

With one linear unit, z integrated out (:math:`z = v^2/2` from zero) and :math:`\Delta_l = E[g\, x_l]`, how much token l tells about the
target times how often it occurs,

.. math:: \dot v_l = \Delta_l\, e^{v_l^2/2} \quad\Rightarrow\quad \frac{\operatorname{erf}(v_l/\sqrt2)}{\Delta_l} = \sqrt{2/\pi}\; t
    \quad \text{for every } l.

So the token of the largest :math:`|\Delta|` leaves all others behind: it blows up at :math:`t^* = \sqrt{\pi/2} / \max_l |\Delta_l|`, where
the others stand at :math:`v_l = \sqrt2\, \operatorname{erf}^{-1}(\Delta_l / \Delta_{\max})` and attention is on one token. (The constant
follows from the equation: :math:`\int_0^v e^{-u^2/2} du = \sqrt{\pi/2}\, \operatorname{erf}(v/\sqrt2)`.) If a normaliser common to all
tokens and samples multiplies the right-hand side by 1/A, with :math:`z = v^2/2` kept, the orbit is the same and only the clock is slower:
:math:`dt = A\, d\tau`. Softmax attention that is trained with the MLP does more: the sum of each sample is another A, and
:math:`\dot z = E[g\, b \circ (v - b^\top v)]`, :math:`b^\top v` the unit's input, takes z off :math:`v^2/2`, so v leaves the orbit
(by how much: the claim joma/softmax-leaves-the-orbit).
Source: :cite:t:`tian2024joma`.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

Vector = Float[Tensor, " M"]
Remaining = Float[Tensor, " t"]


def blow_up_time(discriminancy: Vector) -> float:
    r"""t* = sqrt(pi / 2) / :math:`\max |\Delta|`, the time at which the orbit from zero leaves to infinity.

    Args:
        discriminancy: Delta, ``[M]``.
    Raises:
        ValueError: there is none, all are zero, or one is not finite.
    Source: :cite:t:`tian2024joma`.
    """
    return math.sqrt(math.pi / 2) / _largest(discriminancy)


def orbit(discriminancy: Vector, remaining: Remaining) -> Float[Tensor, "t M"]:
    r"""v at the times :math:`t = (1 - r) t^*`, from v = 0. Times are given by what remains, so that they can come close to the end.

    Args:
        discriminancy: Delta, ``[M]``.
        remaining: r in (0, 1], ``[t]``.
    Returns:
        v, ``[t, M]``; the leading token is near :math:`\sqrt{2 \ln(1/r)}`.
    Raises:
        ValueError: a share outside (0, 1], or no discriminancy.
    Source: :cite:t:`tian2024joma`.
    """
    from scipy.special import erfcinv

    if not bool(((remaining > 0) & (remaining <= 1)).all()):
        raise ValueError(f"remaining must lie in (0, 1], got {remaining.min().item():g} to {remaining.max().item():g}; 1 is the start")
    size, largest = discriminancy.abs(), _largest(discriminancy)
    short = (largest - size) / largest + size / largest * remaining[:, None]  # 1 - erf, without cancellation near the end
    return discriminancy.sign() * math.sqrt(2) * torch.as_tensor(erfcinv(short.numpy()), dtype=torch.float64)


def limits(discriminancy: Vector) -> Vector:
    r"""Where each token stands at the blow-up, :math:`\sqrt2\,\mathrm{erfinv}(\Delta / \max |\Delta|)`,
    infinite for the leading one(s), ``[M]``.

    Raises:
        ValueError: no discriminancy.
    Source: :cite:t:`tian2024joma`.
    """
    return math.sqrt(2) * torch.erfinv(discriminancy / _largest(discriminancy))


def progress(lower: Float[Tensor, "*batch M"], discriminancy: Vector) -> Float[Tensor, "*batch M"]:
    """erf(v / sqrt 2) / Delta of each token: on the orbit, equal for all. Source: :cite:t:`tian2024joma`."""
    return torch.erf(lower / math.sqrt(2)) / discriminancy


def normalised_clock(discriminancy: Vector, frequency: Vector, remaining: Remaining, *, points: int = 4000) -> Remaining:
    r"""Times at which normalised attention passes the places of :func:`orbit`: :math:`t = \int A\, d\tau`, :math:`A = \sum_l x_l
    e^{v_l^2/2}`.

    Args:
        discriminancy: Delta, ``[M]``.
        frequency: x, weight of each token under uniform logits, ``[M]``, >= 0.
        remaining: r in (0, 1], ``[t]``.
        points: of the trapezoidal rule in ln r from 1 to the least r; its error falls with the square.
    Returns:
        t, ``[t]``.
    Raises:
        ValueError: as for :func:`orbit`, no remaining time, or frequencies that are negative, not finite or all zero.
    Source: :cite:t:`tian2024joma`.
    """
    if not bool(((frequency >= 0) & torch.isfinite(frequency)).all()) or not float(frequency.sum()) > 0:
        raise ValueError(f"frequency must be finite, >= 0 and not all zero, got {frequency.tolist()[:5]}")
    if not len(remaining):
        raise ValueError("remaining must hold at least one share, got none")
    grid = torch.logspace(0, math.log10(min(float(remaining.min()), 1 - 1e-12)), points, dtype=torch.float64)
    grid = torch.cat([grid, remaining]).unique().flip(0)  # from the start to the end
    normaliser = (frequency * torch.exp(orbit(discriminancy, grid).square() / 2)).sum(-1)
    depth, speed = -grid.log(), normaliser * grid * blow_up_time(discriminancy)  # dt = A t* dr, dr = r d ln r
    passed = torch.cat([torch.zeros(1, dtype=torch.float64), ((speed[1:] + speed[:-1]) / 2 * depth.diff()).cumsum(0)])
    return passed[torch.searchsorted(depth, -remaining.log())]


def _largest(discriminancy: Vector) -> float:
    largest = float(discriminancy.abs().max()) if len(discriminancy) else 0.0
    if not 0 < largest < math.inf:
        raise ValueError(f"discriminancy must be finite and not all zero, got a largest size of {largest}; nothing would move")
    return largest
