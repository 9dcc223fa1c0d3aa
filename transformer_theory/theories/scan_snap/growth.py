r"""Local exponents of the growth of B, in closed form: a power of t while attention is scanned, later a power
of ln t, finally ln ln t.

With :math:`u = M \eta_Y t / K` and B from :mod:`.closed_form`,

    dB/dln t = eta_Z t gamma(t) (K-1) E_0^2 / (1 + 4 Gamma(t) (K-1) E_0^2)
    dln B/dln t = (dB/dln t) / B                     2 while t << t0': B is quadratic in t
    dB/dln ln u = ln u * dB/dln t                    -> 1/2 as t -> infinity: B ~ 1/2 ln ln t

The paper bounds B by O(ln t) before t0' and by O(ln ln t) after it. Logarithmic growth, dB/dln t near 1/2,
requires a large B before t0', that is :math:`2 K (K-1) E_0^2 (\eta_Z / \eta_Y) \ln^2 M \gg 1`. Under
Assumption 2 with :math:`\eta_Z = \eta_Y / 10` there is no such time up to M = 1e6, and less than half a
decade up to M = 1e12 (:func:`longest_logarithmic_growth`). Many strongly overlapping classes do have such
times. The slope 1/2 in ln ln t is reached where :math:`\ln u \gg 1 / (E_0 \sqrt{2 K (K-1) \eta_Z / \eta_Y})`;
for typical learning rates this lies beyond :math:`10^{20} t_0'`.

Source: :cite:t:`tian2023scan` (Thm. 4).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.validation import converted, in_range
from .closed_form import B, Gamma, gamma, scanning_time

SLOPE_RTOL = 0.1  # relative distance of dB/dln t to 1/2 up to which growth counts as logarithmic


@dataclass(frozen=True, eq=False)
class Growth:
    """B and its local exponents, in the shape of the times.

    Attributes:
        value: B.
        power: dln B/dln t.
        per_log: dB/dln t.
        per_loglog: dB/dln ln(M eta_Y t/K).
    """

    value: Float[Tensor, "*times"]
    power: Float[Tensor, "*times"]
    per_log: Float[Tensor, "*times"]
    per_loglog: Float[Tensor, "*times"]


@in_range
@converted(float64=("t",))
def growth_exponents(
    t: Float[Tensor, "*times"], *, classes: int, vocab_size: int, eta_y: float, eta_z: float, overlap: float
) -> Growth:
    """Returns B and its local exponents at times above e K / (M eta_Y), where ln u > 1 and the double
    logarithm is positive.

    Args:
        t, classes, vocab_size, eta_y, eta_z, overlap: as in :func:`~.closed_form.B`.
    Raises:
        ValueError: see :func:`~.closed_form.B`; or a time is too small.
    """
    setting = {"classes": classes, "vocab_size": vocab_size, "eta_y": eta_y}
    value = B(t, eta_z=eta_z, overlap=overlap, **setting)
    earliest = math.e * classes / (vocab_size * eta_y)
    if not bool((t > earliest).all()):
        raise ValueError(
            f"times must be above e K / (M eta_Y) = {earliest:.3g}, got {float(t.min()):.3g}; start later"
        )
    # Use the closed form: differences of B over a decade around 1e100 steps would lose all digits.
    strength = (classes - 1) * overlap**2
    per_log = (
        eta_z * t * gamma(t, **setting) * strength / (1 + 4 * strength * Gamma(t, eta_z=eta_z, **setting))
    )
    return Growth(value, per_log / value, per_log, per_log * (vocab_size * eta_y * t / classes).log())


def longest_logarithmic_growth(
    *, classes: int, vocab_size: int, eta_y: float, eta_z: float, overlap: float
) -> float:
    """Returns the length, in decades of t, of the longest interval on which dB/dln t lies within 10 % of 1/2.

    Raises:
        ValueError: see :func:`~.closed_form.B`.
    """
    setting = {"classes": classes, "vocab_size": vocab_size, "eta_y": eta_y}
    t = scanning_time(**setting) * torch.logspace(-12, 6, 3601, dtype=torch.float64)
    t = t[t > math.e * classes / (vocab_size * eta_y)]
    per_log = growth_exponents(t, eta_z=eta_z, overlap=overlap, **setting).per_log
    return decades_near_half(t, per_log)


@converted(float64=("t", "per_log"))
def decades_near_half(t: Float[Tensor, " t"], per_log: Float[Tensor, " t"]) -> float:
    """Returns the decades of the longest run of consecutive times at which the derivative by ln t lies within
    10 % of 1/2.
    """
    near = (per_log - 0.5).abs() <= SLOPE_RTOL * 0.5
    longest, first = 0.0, None
    for k, is_near in enumerate(near.tolist()):
        first = (k if first is None else first) if is_near else None  # start of the current run
        if first is not None:
            longest = max(longest, math.log10(float(t[k] / t[first])))
    return longest
