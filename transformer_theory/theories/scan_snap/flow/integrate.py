r"""Integration in logarithmic time, twice: what a flow returns is compared with a second run at another tolerance.

Only :math:`s = \eta_Y t` and :math:`\eta_Z / \eta_Y` enter the flows, and :math:`u = \ln(1 + s)` makes them smooth: the decoder's residual
dies as 1/s, so :math:`d/du = (1 + s)\, d/ds` stays bounded, and t = 1e100 costs little more than t = 1e10. Row sums of Z are kept by every
linear method, right or wrong, so they check nothing; a second tolerance does.

Large states are integrated by Dormand and Prince's method of order 8. Where M >> K and attention is fast the flows become stiff; the small
states of :mod:`.symmetric` are integrated by LSODA, which switches by itself.

Source: the flows of :cite:t:`tian2023scan`; the method is that of scipy.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, no_type_check

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ....core.errors import Infeasible, NotConverged
from ..closed_form import check_horizon, check_rates

COARSER = 30.0  # the second run's tolerance, in units of the first one's
SLACK = 100.0  # how far the runs may differ, in units of the second run's tolerance
MOST_EVALUATIONS = 100_000  # of the rate in one run; a stiff flow would go on for hours
Method = Literal["DOP853", "LSODA"]

Rate = Callable[[float, np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Path:
    """States at the times, ``[t, state]``, and the largest difference to the second run among the components that were watched."""

    states: np.ndarray
    error: float


def decoder_times(times: Float[Tensor, " t"], *, vocab_size: int, eta_y: float, eta_z: float) -> np.ndarray:
    """s = eta_Y t.

    Raises:
        ValueError: a rate is not positive, the times are not finite and increasing, or reach beyond what floating point can hold.
    """
    check_rates(eta_y=eta_y, eta_z=eta_z)
    if not len(times) or not bool(times.isfinite().all()) or float(times[0]) < 0 or bool((times.diff() <= 0).any()):
        raise ValueError(f"times must be finite, at least 0 and increasing, got {times.tolist()[:5]}")
    check_horizon(times, vocab_size=vocab_size, eta_y=eta_y)
    return eta_y * times.double().numpy()


def integrate(rate: Rate, size: int, s: np.ndarray, *, watched: slice, tolerance: float, method: Method) -> Path:
    """States from zero along ds/dt = rate, with the error measured.

    Args:
        rate: derivative by s of the state, ``(s, [state]) -> [state]``.
        size: number of components.
        s: where states are wanted, increasing, ``[t]``.
        watched: components whose error counts.
        tolerance: relative, a step; the absolute one is a thousandth of it.
        method: of scipy.
    Returns:
        The states of the run at this tolerance, and the difference to the second run: the size of the error, not a bound.
    Raises:
        ValueError: the tolerance is not in [1e-13, 1e-3].
        Infeasible: the rate does not exist at the start.
        NotConverged: the integrator gave up or took 100,000 evaluations, the rate ceased to exist, or the two runs differ by more than 100
            times the second tolerance.
    """
    if not 1e-13 <= tolerance <= 1e-3:
        raise ValueError(f"tolerance must lie in [1e-13, 1e-3], got {tolerance:g}; 1e-8 is usual")
    fine, coarse = (_run(rate, size, s, given, method) for given in (tolerance, COARSER * tolerance))
    seen, other = fine[:, watched], coarse[:, watched]
    error = float(np.abs(seen - other).max(initial=0.0))
    allowed = SLACK * COARSER * tolerance * max(1.0, float(np.abs(seen).max(initial=0.0)))
    if error > allowed:
        raise NotConverged(f"two integrations must agree to {allowed:.1e}, they differ by {error:.1e}; lower the tolerance", fine, error)
    return Path(fine, error)


def _run(rate: Rate, size: int, s: np.ndarray, tolerance: float, method: Method) -> np.ndarray:
    from scipy.integrate import solve_ivp

    u = np.log1p(s)
    end = max(float(u[-1]), 1e-12)
    evaluations = 0

    @no_type_check
    def in_log_time(v: float, y: np.ndarray) -> np.ndarray:
        nonlocal evaluations
        evaluations += 1
        if evaluations > MOST_EVALUATIONS:
            raise NotConverged(f"the flow is stiff: {MOST_EVALUATIONS:,} evaluations reached s = {math.expm1(v):.3g} only", y, v)
        try:
            return math.exp(v) * rate(math.expm1(v), y)
        except (Infeasible, np.linalg.LinAlgError) as error:
            if v == 0:  # the classes are dependent from the start
                raise
            words = (
                f"at s = {math.expm1(v):.3g} attention has made the classes linearly dependent; lower eta_Z / eta_Y or end the run earlier"
            )
            raise NotConverged(words, y, v) from error

    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused below
        solved = solve_ivp(
            in_log_time,
            (0.0, end),
            np.zeros(size),
            method=method,
            t_eval=np.minimum(u, end),
            rtol=tolerance,
            atol=tolerance * 1e-3,
        )
    if not solved.success or not np.isfinite(solved.y).all():
        raise NotConverged(f"the flow was not integrated to s = {float(s[-1]):.3g}: {solved.message}", solved.y, solved.t)
    return np.ascontiguousarray(solved.y.T)
