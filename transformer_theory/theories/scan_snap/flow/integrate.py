r"""Integration of the flows in logarithmic time, with a second run that measures the error.

The flows depend only on :math:`s = \eta_Y t` and on :math:`\eta_Z / \eta_Y`. As functions of :math:`u = \ln(1
+ s)` they are smooth: the decoder's residual decays as 1/s, so :math:`d/du = (1 + s)\, d/ds` stays bounded,
and t = 1e100 costs little more than t = 1e10.

Where M >> K the logits of the exact flow are of the order of K/M, so the absolute tolerance is scaled by K/M.

The error is measured by a second run with a larger tolerance. The row sums of Z cannot serve as a check,
because every linear method conserves them, even if its steps are too large.

Large states are integrated by Dormand and Prince's method of order 8. The flows become stiff if M >> K and
attention is fast. The small states of :mod:`.symmetric` are therefore integrated by LSODA, which changes to a
stiff method where needed. Both methods are scipy's. Source of the flows: :cite:t:`tian2023scan`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, no_type_check

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ....core.errors import Infeasible, NotConverged
from ....core.validation import number, positive
from ..closed_form import check_horizon

# names of the four dynamics
EXACT, MODIFIED, LEMMA4, CLOSED = "exact flow", "modified flow", "Lemma 4", "closed form"
SECOND_RUN_FACTOR = 30.0  # tolerance of the second run, relative to the first
ABSOLUTE_SHARE = 1e-3  # absolute tolerance over relative tolerance
AGREEMENT_FACTOR = 100.0  # largest accepted difference of the runs, relative to the second tolerance
MAX_EVALUATIONS = 100_000  # largest number of evaluations of the rate per run: a stiff flow would take hours
Method = Literal["DOP853", "LSODA"]

Rate = Callable[[float, np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Flow:
    """Attention logits along a flow.

    Attributes:
        dynamics: ``EXACT``, ``MODIFIED`` or ``LEMMA4``.
        times: times in steps, ``[t]``.
        logits: Z, ``[t, Q, S]``.
        error: largest difference from the logits of a second run with 30 times the tolerance.
    """

    dynamics: str
    times: Float[Tensor, " t"]
    logits: Float[Tensor, "t Q S"]
    error: float


@dataclass(frozen=True, eq=False)
class DrivenFlow(Flow):
    r"""Lemma 4's flow with its driving terms.

    Attributes:
        drive: :math:`B_n(t) = \eta_Z \int_0^t \xi_n`, ``[t, K]``. A distinct token of class n obeys
            :math:`\dot z_l = w_n f_{nl}^2 \dot B_n`, a single common token :math:`\dot z = -\sum_n w_n (1 -
            f_n^2) \dot B_n`.
    """

    drive: Float[Tensor, "t K"]


@dataclass(frozen=True, eq=False)
class Path:
    """The solution of an integration.

    Attributes:
        states: states at the requested times, ``[t, state]``.
        error: largest difference of the measured components between this run and the second one.
    """

    states: np.ndarray
    error: float


def decoder_times(times: Float[Tensor, " t"], *, vocab_size: int, eta_y: float, eta_z: float) -> np.ndarray:
    """Checks the rates and times, and returns s = eta_Y t.

    Raises:
        ValueError: a rate is not positive, or the times are not finite, not increasing, negative or too
            large.
    """
    positive(eta_y=eta_y, eta_z=eta_z)
    if not isinstance(times, Tensor) or times.ndim != 1:
        shape = list(times.shape) if isinstance(times, Tensor) else type(times).__name__
        raise ValueError(f"times must be a vector [t], got {shape}; pass e.g. times=[1.0, 10.0]")
    if (
        not len(times)
        or not bool(times.isfinite().all())
        or float(times[0]) < 0
        or bool((times.diff() <= 0).any())
    ):
        raise ValueError(f"times must be finite, at least 0 and increasing, got {times.tolist()[:5]}")
    check_horizon(times, vocab_size=vocab_size, eta_y=eta_y)
    return eta_y * times.double().numpy()


def check_kind(classes: object, kind: type) -> None:
    """Checks that classes are of the kind that a flow integrates.

    Raises:
        TypeError: they are not; the flows of SequenceClasses and those of SymmetricClasses are different
            functions.
    """
    if not isinstance(classes, kind):
        hint = (
            "the symmetric_ flows take SymmetricClasses, the others SequenceClasses (see "
            "SymmetricClasses.written_out)"
        )
        raise TypeError(f"classes must be {kind.__name__}, got {type(classes).__name__}; {hint}")


def integrate(
    rate: Rate, size: int, s: np.ndarray, *, measured: slice, scale: float, tolerance: float, method: Method
) -> Path:
    """Integrates dy/ds = rate from y = 0 and measures the error.

    Args:
        rate: derivative of the state by s, ``(s, [state]) -> [state]``.
        size: number of components of the state.
        s: times of the returned states, increasing, ``[t]``.
        measured: components whose error is measured.
        scale: order of magnitude below which the measured components count as zero, at most 1.
        tolerance: relative tolerance per step; the absolute tolerance is a thousandth of it, times ``scale``
            for the measured components.
        method: scipy's name of the method.
    Returns:
        The states at this tolerance, and their difference from the second run, which estimates the error but
        does not bound it.
    Raises:
        ValueError: the tolerance lies outside [1e-13, 1e-3].
        TypeError: it is not a number.
        Infeasible: the rate is undefined at the start.
        NotConverged: the integrator failed or needed more than 100,000 evaluations, the rate became
            undefined, or the runs differ by more than 100 times the second tolerance, relative to the largest
            measured component.
    """
    if not 1e-13 <= number("tolerance", tolerance) <= 1e-3:
        raise ValueError(f"tolerance must lie in [1e-13, 1e-3], got {tolerance:g}; try 1e-8")
    floor = np.ones(size)
    floor[measured] = scale
    fine, coarse = (
        _run(rate, s, rtol, ABSOLUTE_SHARE * rtol * floor, method)
        for rtol in (tolerance, SECOND_RUN_FACTOR * tolerance)
    )
    values = fine[:, measured]
    error = float(np.abs(values - coarse[:, measured]).max(initial=0.0))
    # The tolerance holds per step, and the errors of many steps add up: hence the factor. For logits below
    # ``scale`` the limit is absolute.
    limit = (
        AGREEMENT_FACTOR * SECOND_RUN_FACTOR * tolerance * max(scale, float(np.abs(values).max(initial=0.0)))
    )
    if error > limit:
        raise NotConverged(
            f"two integrations must agree to {limit:.1e}, but they differ by {error:.1e}; lower the "
            "tolerance",
            fine,
            error,
        )
    return Path(fine, error)


def _run(rate: Rate, s: np.ndarray, tolerance: float, floor: np.ndarray, method: Method) -> np.ndarray:
    """Integrates in u = ln(1 + s) at one relative tolerance and absolute ones ``floor``; returns the states,
    ``[t, state]``.
    """
    from scipy.integrate import solve_ivp

    log_times = np.log1p(s)
    # solve_ivp refuses an empty interval, which times = [0] would give
    end = max(float(log_times[-1]), 1e-12)
    evaluations = 0

    @no_type_check
    def log_time_rate(u: float, y: np.ndarray) -> np.ndarray:
        nonlocal evaluations
        evaluations += 1
        if evaluations > MAX_EVALUATIONS:
            raise NotConverged(
                f"the flow is stiff: {MAX_EVALUATIONS:,} evaluations reached s = {math.expm1(u):.3g} only",
                y,
                u,
            )
        try:
            return math.exp(u) * rate(math.expm1(u), y)  # dy/du = (1 + s) dy/ds with s = e^u - 1
        except (Infeasible, np.linalg.LinAlgError) as error:
            if u == 0:  # the classes are dependent at the start: a property of the data, not of the run
                raise
            message = (
                f"at s = {math.expm1(u):.3g} attention has made the classes linearly dependent; lower eta_Z "
                "/ eta_Y or end the run earlier"
            )
            raise NotConverged(message, y, u) from error

    # a rejected trial step may overflow; the result is checked below
    with np.errstate(over="ignore", invalid="ignore"):
        solution = solve_ivp(
            log_time_rate,
            (0.0, end),
            np.zeros(len(floor)),
            method=method,
            t_eval=np.minimum(log_times, end),
            rtol=tolerance,
            atol=floor,
        )
    if not solution.success or not np.isfinite(solution.y).all():
        raise NotConverged(
            f"the flow was not integrated to s = {float(s[-1]):.3g}: {solution.message}",
            solution.y,
            solution.t,
        )
    return np.ascontiguousarray(solution.y.T)
