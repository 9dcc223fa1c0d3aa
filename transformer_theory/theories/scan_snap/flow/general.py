r"""The flows of arbitrary classes: the exact population flow, Lemma 3's modification of it, and Lemma 4's
flow.

The first two train the decoder. With :math:`\alpha_n = \mathrm{softmax}(Y^\top f_n)`, :math:`r_n = e_n -
\alpha_n` and class shares :math:`w_n`,

    dY/dt = eta_Y sum_n w_n d_n r_n^T,    dz_m/dt = eta_Z sum_{n: psi(n) = m} w_n f_n o (g_n - f_n (f_n.g_n)),
                                          g_n = Y r_n

where :math:`d_n = f_n` in the *exact* flow and :math:`d_n = F (F^\top F)^{-1} e_n`, the dual basis, in the
*modified* one. In the modified flow the logits :math:`F^\top Y` of a class depend on its own sequences alone,
as long as attention is constant (Lemma 3).

In Lemma 4's flow, the subject of the theorems, the decoder is known in closed form and only the attention
logits move:

    g_n = sum_k a_kn f_k,    a_.n = (F^T F)^{-1} [gamma_kn q_kn]_k,
                             dz_m/dt = eta_Z sum_{n: psi(n) = m} w_n f_n o (g_n - f_n (f_n.g_n))

with :math:`q_{nn} = M/(M-1)`, :math:`q_{kn} = -M/(M-1)^2` and
:math:`\gamma_{kn} = (M-1) h(w_k t) \cdot (M-1)/(M-1+e^{M h(w_n t)})`; for equal shares :math:`w_n = 1/K` this
is :math:`\gamma(t)` of :mod:`..closed_form`. The paper omits :math:`w_n` in the last equation but has t/K
inside gamma; both are needed. In its Eq. (88) for
:math:`\beta_{nn'}` the first of the two terms with :math:`q_0 = -M/(M-1)^2` must enter with a minus, as it
does here; with the printed sign common tokens would grow where the overlap is below about 1/M. A distinct
token of class n depends only on
:math:`\xi_n = a_{nn} - f_n . g_n`: :math:`\dot z_l = \eta_Z w_n f_{nl}^2 \xi_n` (Thm. 2).

The M - K columns of Y whose token never follows stay equal and are stored once, so the cost does not depend
on M. Source: :cite:t:`tian2023scan`.

The integrator calls the functions that compute the derivatives thousands of times on small numpy arrays.
These functions therefore call numpy's ufuncs directly, and ``no_type_check`` exempts them from the run-time
checks of shapes in the tests.
"""

import math
from collections.abc import Callable
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ....core.errors import Infeasible
from ....core.threads import single_threaded
from ....core.validation import converted
from ..closed_form import scaled_gain
from ..problem import SequenceClasses
from .integrate import EXACT, LEMMA4, MODIFIED, DrivenFlow, Flow, Rate, check_kind, decoder_times, integrate

# condition number of the classes' Gram matrix above which Lemma 3's dual basis is treated as undefined
MAX_CONDITION = 1e10

# Where M >> K, g is nearly parallel to f, and the projection cancels to about 1e-16 of g. A smaller scale of
# the logits would ask the integrator for digits that the rate does not have. :mod:`.symmetric` avoids the
# cancellation.
SMALLEST_SCALE = 1e-6


@single_threaded
@converted(float64=("times",))
def exact_flow(
    classes: SequenceClasses,
    times: Float[Tensor, " t"],
    *,
    eta_y: float,
    eta_z: float,
    tolerance: float = 1e-8,
) -> Flow:
    """Integrates the exact population flow from Y = 0 and uniform attention, the limit of gradient descent
    with small steps (Lemma 2).

    Args:
        classes: K classes over S contextual tokens, with Q queries.
        times: times in steps, increasing, at least 0 and at most 1e300 / (M eta_y), ``[t]``.
        eta_y, eta_z: learning rates of decoder and attention.
        tolerance: relative tolerance of the integrator.
    Returns:
        The logits ``[t, Q, S]`` with their error.
    Raises:
        ValueError: a rate is not positive, or the times are not increasing or exceed the horizon.
        NotConverged: the integrator failed, or two tolerances disagree.
    """
    return _flow(EXACT, classes, lambda f: f, times, eta_y, eta_z, tolerance)


@single_threaded
@converted(float64=("times",))
def modified_flow(
    classes: SequenceClasses,
    times: Float[Tensor, " t"],
    *,
    eta_y: float,
    eta_z: float,
    tolerance: float = 1e-8,
) -> Flow:
    """Integrates Lemma 3's flow: :func:`exact_flow` with the dual basis of the features in the decoder's
    equation.

    Raises:
        Infeasible: the features of the classes are (numerically) linearly dependent.
        ValueError, NotConverged: see :func:`exact_flow`.
    """
    return _flow(MODIFIED, classes, lambda f: inverse_gram(f) @ f, times, eta_y, eta_z, tolerance)


def _flow(
    name: str,
    classes: SequenceClasses,
    direction,
    times: Tensor,
    eta_y: float,
    eta_z: float,
    tolerance: float,
) -> Flow:
    check_kind(classes, SequenceClasses)
    s = decoder_times(times, vocab_size=classes.vocab_size, eta_y=eta_y, eta_z=eta_z)
    Q, S = classes.queries, classes.tokens
    columns = classes.classes + (classes.vocab_size > classes.classes)
    decoder = S * columns  # the state is Y, then Z, flat; the error is measured on Z only
    rate = derivatives(classes, direction, eta_z / eta_y)
    scale = max(classes.classes / classes.vocab_size, SMALLEST_SCALE)
    path = integrate(
        rate,
        decoder + Q * S,
        s,
        measured=slice(decoder, None),
        scale=scale,
        tolerance=tolerance,
        method="DOP853",
    )
    return Flow(name, times, torch.from_numpy(path.states[:, decoder:].reshape(-1, Q, S)), path.error)


def derivatives(classes: SequenceClasses, direction, ratio: float) -> Rate:
    """Returns a function that computes the derivatives of Y and Z with respect to eta_Y t, as one flat
    vector.

    Args:
        direction: maps the features ``[K, S]`` to the decoder's directions d_n, ``[K, S]``.
        ratio: eta_Z / eta_Y.
    """
    K, Q, S = classes.classes, classes.queries, classes.tokens
    rest = classes.vocab_size - K
    columns = K + (rest > 0)
    diagonal = np.arange(K)
    feature_map, by_query, w = features(classes), shares_by_query(classes), classes.weights.numpy()[:, None]
    offset = np.zeros(columns)
    scale = np.ones(columns)
    if rest:
        # The last column represents `rest` equal ones: e^{score + ln rest} is their total weight in the
        # softmax, and each of them gets 1/rest of their common residual.
        offset[K], scale[K] = math.log(rest), 1 / rest

    @no_type_check
    def rate(_: float, state: np.ndarray) -> np.ndarray:
        Y, f = state[: S * columns].reshape(S, columns), feature_map(state[S * columns :].reshape(Q, S))
        scores = f @ Y + offset
        alpha = np.exp(scores - np.maximum.reduce(scores, 1, keepdims=True))
        alpha /= np.add.reduce(alpha, 1, keepdims=True)
        # e_n - alpha. Compute 1 - alpha_n as the sum of the other probabilities: the difference would cancel
        # as alpha_n approaches 1, and all motion would stop once it is below 1e-16.
        residual = -alpha
        residual[diagonal, diagonal] = 0.0
        residual[diagonal, diagonal] = -np.add.reduce(residual, 1)
        out = np.empty_like(state)
        np.matmul(direction(f).T, w * residual * scale, out=out[: S * columns].reshape(S, columns))
        out[S * columns :] = (ratio * (by_query @ normal_part(f, residual @ Y.T))).ravel()
        return out

    return rate


@single_threaded
@converted(float64=("times",))
def lemma4_flow(
    classes: SequenceClasses,
    times: Float[Tensor, " t"],
    *,
    eta_y: float,
    eta_z: float,
    tolerance: float = 1e-10,
) -> DrivenFlow:
    """Integrates Lemma 4's flow from uniform attention, together with the integral B_n of its driving term.

    Args:
        classes: K classes over S contextual tokens, with Q queries.
        times: times in steps, increasing, at least 0 and at most 1e300 / (M eta_y), ``[t]``.
        eta_y, eta_z: learning rates of decoder and attention.
        tolerance: relative tolerance of the integrator.
    Returns:
        The logits ``[t, Q, S]`` with their error, and B_n ``[t, K]``.
    Raises:
        ValueError: a rate is not positive, or the times are not increasing or exceed the horizon.
        Infeasible: the features of the classes are (numerically) linearly dependent, so Lemma 3's decoder
            does not exist.
        NotConverged: the integrator failed, or two tolerances disagree.
    """
    check_kind(classes, SequenceClasses)
    s = decoder_times(times, vocab_size=classes.vocab_size, eta_y=eta_y, eta_z=eta_z)
    shape, ratio = (classes.queries, classes.tokens), eta_z / eta_y
    size, velocity = shape[0] * shape[1], _velocity(classes)

    # Integrate the drive as part of the state, with the same steps: a quadrature over the output times would
    # be less accurate.
    @no_type_check
    def rate(s: float, state: np.ndarray) -> np.ndarray:
        speed, drive = velocity(s, state[:size].reshape(shape))
        return ratio * np.concatenate([speed.ravel(), drive])

    scale = classes.classes / classes.vocab_size
    path = integrate(
        rate,
        size + classes.classes,
        s,
        measured=slice(None),
        scale=scale,
        tolerance=tolerance,
        method="DOP853",
    )
    logits, drive = path.states[:, :size].reshape(-1, *shape), path.states[:, size:]
    return DrivenFlow(LEMMA4, times, torch.from_numpy(logits), path.error, torch.from_numpy(drive.copy()))


def _velocity(classes: SequenceClasses):
    """Returns the map from s = eta_Y t and the logits to dZ/ds and xi, for eta_Z = eta_Y."""
    feature_map, by_query, w = features(classes), shares_by_query(classes), classes.weights.numpy()
    M, K = classes.vocab_size, classes.classes
    q = np.full((K, K), -M / (M - 1) ** 2)
    np.fill_diagonal(q, M / (M - 1))

    @no_type_check
    def velocity(s: float, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        f = feature_map(logits)
        x = scaled_gain(w * s, M, 1.0)
        # gamma_kn q_kn. Write (M-1) / (M-1 + e^x) as 1 / (1 + e^{x - ln(M-1)}) and cap the exponent below the
        # overflow of exp at 709; there the fraction is zero to double precision.
        pull = ((M - 1) / M * x)[:, None] * q / (1 + np.exp(np.minimum(x - math.log(M - 1), 700.0)))
        a = inverse_gram(f) @ pull
        g = a.T @ f
        projection = np.add.reduce(f * g, 1)
        return by_query @ (f * (g - f * projection[:, None])), a.diagonal() - projection

    return velocity


def features(classes: SequenceClasses) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the map from logits ``[Q, S]`` to features ``[K, S]`` of norm one."""
    # log 0 = -inf is intended: such a token gets no attention, whatever its logit
    with np.errstate(divide="ignore"):
        log_p = np.log(classes.conditional.numpy())
    psi = classes.query.numpy()

    @no_type_check
    def features_at(logits: np.ndarray) -> np.ndarray:
        # Only the direction of P e^z matters, so subtract the largest score: the largest entry is then 1, and
        # nothing overflows.
        scores = log_p + logits[psi]
        f = np.exp(scores - np.maximum.reduce(scores, 1, keepdims=True))
        f /= np.sqrt(np.add.reduce(f * f, 1, keepdims=True))
        return f

    return features_at


def shares_by_query(classes: SequenceClasses) -> np.ndarray:
    """Returns the class shares as a matrix ``[Q, K]``, which sums the classes' contributions to the logits of
    each query.
    """
    return np.eye(classes.queries)[classes.query.numpy()].T * classes.weights.numpy()


@no_type_check
def inverse_gram(f: np.ndarray) -> np.ndarray:
    """Inverts the Gram matrix of features ``[K, S]``.

    Raises:
        Infeasible: the features are (numerically) linearly dependent, so the dual basis does not exist.
    """
    # Use eigenvalues rather than a Cholesky factor: they show how close to dependence the classes are, and
    # the eigenvector of the smallest one is the combination of features that vanishes.
    values, vectors = np.linalg.eigh(f @ f.T)
    if values[0] * MAX_CONDITION < values[-1]:
        raise Infeasible(
            "Lemma 3 needs linearly independent classes, got a Gram matrix with eigenvalues "
            f"{values[0]:.1e} to {values[-1]:.1e}; merge classes with equal tokens",
            certificate=torch.from_numpy(vectors[:, 0]),
        )
    return (vectors / values) @ vectors.T


@no_type_check
def normal_part(f: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Maps g, the derivative by the features, to f o (g - f (f.g)), the derivative by the logits; rows ``[K,
    S]``.
    """
    return f * (g - f * np.add.reduce(f * g, 1, keepdims=True))
