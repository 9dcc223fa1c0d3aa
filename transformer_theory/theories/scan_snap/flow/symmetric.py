r"""The three flows for a symmetric family of classes, with a state of O(D + C) numbers for any K and M.

Training preserves the symmetry of :class:`..families.SymmetricClasses`, so one class represents all of them.
Write :math:`f_c, f_d` for its features and :math:`\varepsilon = \sum_c f_c^2` for the overlap. Three
differences of the decoder's entries suffice:

    u_c = Y[c, a class] - Y[c, the rest]          the rest: the M - K tokens that never follow
    v_d = Y[d, own class] - Y[d, another class]
    x_d = Y[d, own class] - Y[d, the rest]

With :math:`A = \sum_d f_d v_d` and :math:`B = \sum_c f_c u_c + \sum_d f_d x_d` the probabilities that a class
assigns to its own next token, to another class's next token and to any other token are in the ratio :math:`1
: e^{-A} : e^{-B}`; call them
:math:`\alpha, \alpha_o, \alpha_r`, and :math:`\rho = 1 - \alpha = (K-1) \alpha_o + (M-K) \alpha_r`. The exact
flow, in the time :math:`s = \eta_Y t`, is

    du_c/ds = f_c M alpha_r / K      dv_d/ds = f_d (rho + alpha_o) / K      dx_d/ds = f_d (rho + alpha_r) / K
    g_c = (M-K) alpha_r u_c          g_d = (K-1) alpha_o v_d + (M-K) alpha_r x_d
    dz/ds = (eta_Z / eta_Y) w f o (g - f (f.g))
        w = per_query / K for common tokens, 1 / K for distinct ones

In the modified flow the dual basis replaces f in the first line: :math:`f_c / (1 + (K-1) \varepsilon)` in u,
:math:`f_d / (1 - \varepsilon)` in v and x, and x loses :math:`\kappa M \alpha_r` inside the bracket,
:math:`\kappa = \varepsilon / (1 + (K-1) \varepsilon)`. In Lemma 4's flow

    dz_c/ds = -(eta_Z / eta_Y) w gamma (1 - eps) D f_c^2,    dz_d/ds = (eta_Z / eta_Y) w gamma eps D f_d^2,
    D = M (K-1) (1 + (M-1) eps) / ((M-1)^2 (1 - eps) (1 + (K-1) eps))

In the first two flows g is parallel to f up to terms of the order of K/M, so the projection would cancel
where M >> K. With :math:`R = (M-K) \alpha_r` the state therefore holds the common part :math:`y = c f(0) + q`
of u, v and x apart from the rest,

    dc/ds = R k / K,    dq/ds = (f - f(0)) R k / K,    u = y + a,    v = y + w,    x = y + b

where k is 1 in the exact flow and :math:`1 / (1 + (K-1) \varepsilon)` in the modified one, and the rates of
a, w and b are positive. With
:math:`\delta = f - f(0)` the part of f(0) orthogonal to f is :math:`-\delta + |\delta|^2 f / 2`. Nothing
cancels then.

Derived from :cite:t:`tian2023scan`. The tests compare these flows with the general ones for the same classes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ....core.threads import single_threaded
from ....core.validation import converted
from ..closed_form import scaled_gain
from ..families import SymmetricClasses
from .integrate import EXACT, LEMMA4, MODIFIED, Flow, Rate, check_kind, decoder_times, integrate

DecoderRate = tuple[float, np.ndarray, np.ndarray, np.ndarray]  # k, and the derivatives of a, w and b


@dataclass(frozen=True, eq=False)
class SymmetricFlow:
    """Attention logits of one class, which represents all.

    Attributes:
        dynamics: ``EXACT``, ``MODIFIED`` or ``LEMMA4``.
        times: times in steps, ``[t]``.
        common: logits of the common tokens, ``[t, C]``.
        distinct: logits of a class's own tokens, ``[t, D]``.
        error: largest difference from the logits of a second run with 30 times the tolerance.
    """

    dynamics: str
    times: Float[Tensor, " t"]
    common: Float[Tensor, "t C"]
    distinct: Float[Tensor, "t D"]
    error: float

    def written_out(self, classes: SymmetricClasses) -> Flow:
        """Returns the logits of every query and token, in the order of ``classes.written_out()``."""
        Q, D, per_query = classes.classes // classes.per_query, len(classes.distinct), classes.per_query
        logits = torch.zeros(
            len(self.times), Q, len(classes.common) + classes.classes * D, dtype=torch.float64
        )
        logits[:, :, : len(classes.common)] = self.common[:, None]
        for query in range(Q):
            # The logits of a query change only at the tokens of its own classes, which are consecutive.
            first = len(classes.common) + query * per_query * D
            logits[:, query, first : first + per_query * D] = self.distinct.repeat(1, per_query)
        return Flow(self.dynamics, self.times, logits, self.error)


@single_threaded
@converted(float64=("times",))
def symmetric_exact_flow(
    classes: SymmetricClasses,
    times: Float[Tensor, " t"],
    *,
    eta_y: float,
    eta_z: float,
    tolerance: float = 1e-8,
) -> SymmetricFlow:
    """Integrates the exact population flow; see :func:`~.general.exact_flow` for arguments and errors."""
    K = classes.classes

    @no_type_check
    def decoder_rate(
        fc: np.ndarray, fd: np.ndarray, other: float, rest: float, others: float, rests: float
    ) -> DecoderRate:
        return 1.0, fc * rest, fd * ((others + other) / K), fd * ((others + rest) / K)

    return _integrate_trained(EXACT, classes, decoder_rate, times, eta_y, eta_z, tolerance)


@single_threaded
@converted(float64=("times",))
def symmetric_modified_flow(
    classes: SymmetricClasses,
    times: Float[Tensor, " t"],
    *,
    eta_y: float,
    eta_z: float,
    tolerance: float = 1e-8,
) -> SymmetricFlow:
    """Integrates Lemma 3's flow; see :func:`~.general.modified_flow`. The features are always linearly
    independent.
    """
    K = classes.classes

    @no_type_check
    def decoder_rate(
        fc: np.ndarray, fd: np.ndarray, other: float, rest: float, others: float, rests: float
    ) -> DecoderRate:
        # `complement` is 1 - eps, computed as |f_d|^2, which is accurate even if the common tokens have
        # nearly all attention.
        eps, complement = float(fc @ fc), float(fd @ fd)
        total = 1 + (K - 1) * eps  # the largest eigenvalue of the Gram matrix; the others are `complement`
        own = ((others + other) + rests * K * eps / total) / complement
        unlike = (others + rests * (K - 1) * eps / total) / complement + rest / total
        return 1 / total, fc * (rest / total), fd * (own / K), fd * (unlike / K)

    return _integrate_trained(MODIFIED, classes, decoder_rate, times, eta_y, eta_z, tolerance)


@single_threaded
@converted(float64=("times",))
def symmetric_lemma4_flow(
    classes: SymmetricClasses,
    times: Float[Tensor, " t"],
    *,
    eta_y: float,
    eta_z: float,
    tolerance: float = 1e-10,
) -> SymmetricFlow:
    """Integrates Lemma 4's flow; see :func:`~.general.lemma4_flow`. The features are always linearly
    independent.
    """
    check_kind(classes, SymmetricClasses)
    K, M, C = classes.classes, classes.vocab_size, len(classes.common)
    times_s, ratio = decoder_times(times, vocab_size=M, eta_y=eta_y, eta_z=eta_z), eta_z / eta_y
    feature_map = _features(classes)

    @no_type_check
    def rate(s: float, z: np.ndarray) -> np.ndarray:
        f = feature_map(z)
        square = f * f
        eps, complement = float(square[:C].sum()), float(square[C:].sum())
        x = float(scaled_gain(np.array(s / K), M, 1.0))
        # (eta_Z / eta_Y) gamma (1 - eps) D. exp overflows at 709, so the exponent is capped where gamma is
        # zero anyway.
        pull = ratio * x * (M - 1) / M * (M - 1) / (M - 1 + math.exp(min(x, 700.0)))
        pull *= M * (K - 1) / (M - 1) ** 2 * (1 + (M - 1) * eps) / (1 + (K - 1) * eps)
        square[:C] *= -pull * classes.per_query / K
        square[C:] *= pull * eps / complement / K  # `complement` is 1 - eps, as in the modified flow
        return square

    path = integrate(
        rate,
        C + len(classes.distinct),
        times_s,
        measured=slice(None),
        scale=K / M,
        tolerance=tolerance,
        method="LSODA",
    )
    return _flow(LEMMA4, classes, times, path.states, path.error)


def _features(classes: SymmetricClasses) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the map from the logits of a class to its features, both ``[C + D]``."""
    log_p = torch.cat([classes.common, classes.distinct]).log().numpy()

    @no_type_check
    def features_at(z: np.ndarray) -> np.ndarray:
        f = np.exp(log_p + z - np.max(log_p + z))
        return f / math.sqrt(f @ f)

    return features_at


def _flow(
    name: str, classes: SymmetricClasses, times: Tensor, logits: np.ndarray, error: float
) -> SymmetricFlow:
    z, C = torch.from_numpy(logits.copy()), len(classes.common)
    return SymmetricFlow(name, times, z[:, :C], z[:, C:], error)


def _integrate_trained(
    name: str,
    classes: SymmetricClasses,
    decoder_rate,
    times: Tensor,
    eta_y: float,
    eta_z: float,
    tolerance: float,
) -> SymmetricFlow:
    """Integrates a flow whose decoder is trained; ``decoder_rate`` computes k and the derivatives of a, w and
    b by eta_Y t.
    """
    check_kind(classes, SymmetricClasses)
    s = decoder_times(times, vocab_size=classes.vocab_size, eta_y=eta_y, eta_z=eta_z)
    C, D = len(classes.common), len(classes.distinct)
    # the state is c, q, a, w, b, then the logits; the error is measured on the logits only
    decoder = 1 + 2 * (C + D) + D
    rate = _rate(classes, decoder_rate, eta_z / eta_y)
    scale = classes.classes / classes.vocab_size
    path = integrate(
        rate,
        decoder + C + D,
        s,
        measured=slice(decoder, None),
        scale=scale,
        tolerance=tolerance,
        method="LSODA",
    )
    return _flow(name, classes, times, path.states[:, decoder:], path.error)


def _rate(classes: SymmetricClasses, decoder_rate, ratio: float) -> Rate:
    """Returns the derivatives of c, q, a, w, b and the logits by eta_Y t; ``decoder_rate`` computes k and
    those of a, w and b.
    """
    K, rest_size, C, D = (
        classes.classes,
        classes.vocab_size - classes.classes,
        len(classes.common),
        len(classes.distinct),
    )
    S, decoder = C + D, 1 + 2 * (C + D) + D
    feature_map = _features(classes)
    start = feature_map(np.zeros(S))
    # Learning rate of each logit: the classes of a query share its common logits, so these move per_query
    # times as fast.
    speed = np.repeat([ratio * classes.per_query / K, ratio / K], [C, D])

    @no_type_check
    def rate(_: float, state: np.ndarray) -> np.ndarray:
        c, q, z = state[0], state[1 : 1 + S], state[decoder:]
        a, w, b = state[1 + S : 1 + S + C], state[1 + S + C : 1 + 2 * S], state[1 + 2 * S : decoder]
        f = feature_map(z)
        # f - f(0). For small logits the difference would lose its digits; expm1 and log1p keep them.
        delta = (
            start * np.expm1(z - np.log1p(start * start @ np.expm1(2 * z)) / 2)
            if np.abs(z).max() < 1
            else f - start
        )
        y = c * start + q
        fc, fd, yd = f[:C], f[C:], y[C:]
        # Relative to the class's own next token, the probabilities are e^{-A} and e^{-B}; dividing by their
        # sum normalises them. In a trial step of the integrator A or B may be very negative. The bound keeps
        # exp finite, so that only this step fails.
        other = math.exp(-max(float(fd @ (yd + w)), -700.0))
        rest = math.exp(-max(float(f @ y + fc @ a + fd @ b), -700.0))
        total = 1 + (K - 1) * other + rest_size * rest
        other, rest = other / total, rest / total
        others, rests = (K - 1) * other, rest_size * rest
        k, *decoder_rates = decoder_rate(fc, fd, other, rest, others, rests)
        g = np.concatenate([rests * a, others * (yd + w) + rests * b])  # g - R y
        # The part of y orthogonal to f, from that of f(0).
        orthogonal = c * (f * (delta @ delta / 2) - delta) + q - f * (f @ q)
        logits = speed * f * (rests * orthogonal + g - f * (f @ g))
        return np.concatenate([[rests * k / K], delta * (rests * k / K), *decoder_rates, logits])

    return rate
