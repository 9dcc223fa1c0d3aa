r"""Sequences in which all pairs of tokens have one cosine, and what one layer does to them when they become
longer.

From pairwise orthogonal tokens all cosines stay equal to g(t) with g(0) = 0,

.. math::
    \text{SA:}\quad \dot g = \frac{2 e^{\beta g} (1-g) ((n-1) g + 1)}{e^\beta + (n-1) e^{\beta g}}, \qquad
    \text{USA:}\quad \dot g = \frac2n e^{\beta g} (1-g) ((n-1) g + 1) .

Near consensus 1 - g decays at the rate 2 in SA and :math:`2 e^\beta` in USA. With :math:`t_0 = n e^\beta /
2`,

.. math:: 1 - g(t) \le \tfrac12 \exp\Bigl(-\frac{n (t - t_0)}{n + e^{\beta/2}}\Bigr) \quad \text{for } t \ge
    t_0 \text{ in SA}:

for g at most 1/2 the velocity is at least :math:`1/(n e^\beta)`, so g(t_0) is at least 1/2; after that
:math:`\dot g \ge (1-g) (n+1)/(n-1+e^{\beta/2})`. At t = 0 the estimate is false (n = 2, :math:`\beta = 0`: 1
is larger than .974).

*Context length.* One layer with :math:`\beta = \gamma \log n` on n tokens of cosine :math:`\rho` puts the
weight :math:`a = 1 / (1 + (n-1) e^{-\beta(1-\rho)})` on the own token and :math:`b = (1-a)/(n-1)` on each
other one. For long sequences the cosine of the outputs tends to 1, :math:`4\rho/(1+3\rho)` or :math:`\rho`
for :math:`\gamma` below, at or above :math:`1/(1-\rho)`, if
:math:`\rho > 0`. (Orthogonal tokens have the critical :math:`\gamma` at 1/2.)
Sources: :cite:t:`geshkovski2025mathematical`, :cite:t:`chen2026critical`.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from ...core.validation import in_range, integers, positive
from .dynamics import increasing_times

LARGEST_LOG = 709.0  # logarithm of the largest float, rounded down
LARGEST_BETA = 100.0  # of the equation of a common cosine


def _possible(cosine: float, n: float) -> None:
    """Checks that n unit vectors may have this pairwise cosine; else raises a ValueError."""
    if not n >= 2 or not -1 / (n - 1) <= cosine <= 1:
        raise ValueError(
            f"n >= 2 tokens have a common cosine between -1/(n-1) and 1, got {cosine:g} for n = {n}; "
            "measure it first"
        )


def _moderate(beta: float) -> None:
    """Checks that e^beta can be integrated; else raises a ValueError."""
    if not abs(beta) <= LARGEST_BETA:
        raise ValueError(
            f"beta must be between -{LARGEST_BETA:g} and {LARGEST_BETA:g}, got {beta:g}: time is of the "
            "order of e^beta"
        )


def softmax_rate(g: float, *, n: int, beta: float) -> float:
    """Computes dg/dt of SA for n tokens with the pairwise cosine g."""
    # Numerator and denominator divided by e^(beta g), so that nothing overflows.
    return 2 * (1 - g) * ((n - 1) * g + 1) / (math.exp(beta * (1 - g)) + n - 1)


def unnormalised_rate(g: float, *, n: int, beta: float) -> float:
    """Computes dg/dt of USA for n tokens with the pairwise cosine g."""
    return 2 / n * math.exp(beta * g) * (1 - g) * ((n - 1) * g + 1)


def common_cosine(
    times: Sequence[float],
    *,
    n: int,
    beta: float,
    start: float = 0.0,
    rate: Callable[..., float] = softmax_rate,
) -> np.ndarray:
    """Integrates the equation of the common cosine and returns it at increasing times, ``[times]``.

    Args:
        times: non-negative times.
        n: number of tokens, at least 2.
        beta: inverse temperature.
        start: cosine at time 0, at least -1/(n-1), which is that of a simplex.
        rate: :func:`softmax_rate` or :func:`unnormalised_rate`.
    Raises:
        ValueError: n is below 2, no n unit vectors have the cosine ``start``, the times do not increase, or
            abs(beta) exceeds :data:`LARGEST_BETA`.
    """
    from scipy.integrate import solve_ivp

    _possible(start, n)
    increasing_times(times)
    _moderate(beta)
    if times[-1] == 0:
        return np.full(1, start)
    solved = solve_ivp(
        lambda _, g: [rate(float(g[0]), n=n, beta=beta)],
        (0.0, times[-1]),
        [start],
        t_eval=times,
        method="LSODA",
        rtol=1e-11,
        atol=1e-13,
    )
    return solved.y[0]


@in_range
def consensus_estimate(t: float, *, n: int, beta: float) -> float:
    """Computes the upper bound of 1 - g(t) in SA from orthogonal tokens, which holds from t_0 = n e^beta / 2
    on.
    """
    integers(n=n, minimum=2)
    _moderate(beta)
    return 0.5 * math.exp(-n * (t - n * math.exp(beta) / 2) / (n + math.exp(beta / 2)))


def separation_time(*, beta: float, cosine: float) -> float:
    r"""Computes the time for which two tokens of the given cosine stay apart in SA at large beta.

    For n = 2 time is :math:`\int (e^{\beta(1-g)} + 1) / (2 (1 - g^2))\, dg`. At large beta the integrand
    falls like :math:`e^{-\beta g}`, so the beginning dominates: :math:`e^{\beta (1 - g_0)} / (2 \beta (1 -
    g_0^2))`.

    Raises:
        ValueError: beta is not positive, the cosine does not lie between -1 and 1, or the time exceeds the
            largest float.
    """
    positive(beta=beta)
    if not abs(cosine) < 1:
        raise ValueError(
            f"the cosine of two tokens that join must lie strictly between -1 and 1, got {cosine:g}"
        )
    logarithm = beta * (1 - cosine) - math.log(2 * beta * (1 - cosine**2))
    if logarithm > LARGEST_LOG:
        raise ValueError(
            f"beta must be small enough for a time below 1e308, got {beta:g} at the cosine {cosine:g}; "
            "compare logarithms of times"
        )
    if beta * (1 - cosine) > LARGEST_LOG:
        return math.exp(logarithm)
    return math.exp(beta * (1 - cosine)) / (2 * beta * (1 - cosine**2))


@in_range
def layer_cosine(cosine: float, *, n: float, beta: float) -> float:
    """Computes the cosine of the outputs of one layer of attention, V = I and no skip, on n unit vectors of
    the given pairwise cosine.

    Raises:
        ValueError: no n >= 2 unit vectors have this cosine, or the outputs are zero: a simplex with equal
            weights.
    """
    _possible(cosine, n)
    a = 1 / (1 + (n - 1) * math.exp(min(-beta * (1 - cosine), LARGEST_LOG / 2)))
    b = (1 - a) / (n - 1)
    together = cosine + (1 - cosine) * (2 * a * b + (n - 2) * b**2)
    size = cosine + (1 - cosine) * (a**2 + (n - 1) * b**2)
    if size < 1e-14:
        raise ValueError(
            f"the outputs of a simplex with equal weights are zero and have no cosine, got {cosine:g} and "
            f"beta = {beta:g}"
        )
    return together / size


def layer_cosine_limit(cosine: float, *, gamma: float) -> float:
    """Computes the limit of :func:`layer_cosine` with beta = gamma log n for n to infinity.

    Raises:
        ValueError: the cosine does not lie strictly between 0 and 1; at 0 the critical gamma is 1/2 and not
            1.
    """
    if not 0 < cosine < 1:
        raise ValueError(
            f"the limit holds for cosines strictly between 0 and 1, got {cosine:g}; use layer_cosine"
        )
    critical = 1 / (1 - cosine)
    if math.isclose(gamma, critical, rel_tol=1e-12):
        return 4 * cosine / (1 + 3 * cosine)
    return 1.0 if gamma < critical else cosine
