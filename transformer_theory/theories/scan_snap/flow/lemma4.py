r"""Lemma 4's flow, which the theorems are about: the decoder is known in closed form, and only the attention logits move.

    g_n = sum_k a_kn f_k,    a_.n = (F^T F)^{-1} [gamma_kn q_kn]_k,    dz_m/dt = eta_Z sum_{n: psi(n) = m} w_n f_n o (g_n - f_n (f_n.g_n))

with :math:`q_{nn} = M/(M-1)`, :math:`q_{kn} = -M/(M-1)^2` and
:math:`\gamma_{kn} = (M-1) h(w_k t) \cdot (M-1)/(M-1+e^{M h(w_n t)})`; for equal shares :math:`w_n = 1/K` this is :math:`\gamma(t)` of
:mod:`..closed_form`. The paper leaves :math:`w_n` out of the last equation while keeping t/K inside gamma; both are needed. In its
coefficients :math:`\beta_{nn'}` the term with :math:`q_0 = -M/(M-1)^2` must enter with a minus, as it comes out here; with the printed
sign common tokens would grow where the overlap is below about 1/M.

A distinct token of class n meets only :math:`\xi_n = a_{nn} - f_n . g_n`: :math:`\dot z_l = \eta_Z w_n f_{nl}^2 \xi_n` (Thm. 2).

Source: :cite:t:`tian2023scan`.
"""

import math
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..closed_form import h, scaled_gain
from ..problem import SequenceClasses
from .features import asked, features, inverse_gram
from .integrate import decoder_times, integrate
from .paths import LEMMA4, DrivenFlow


def lemma4_velocity(classes: SequenceClasses, logits: Float[Tensor, "Q S"], t: float, *, eta_y: float) -> Float[Tensor, "Q S"]:
    """dZ/dt of Lemma 4's flow for eta_Z = 1.

    Raises:
        ValueError: the time is negative or the rate not positive.
        Infeasible: the features of the classes are (numerically) linearly dependent, so that Lemma 3's decoder does not exist.
    """
    h(torch.tensor(t, dtype=torch.float64), vocab_size=classes.vocab_size, eta_y=eta_y)
    return torch.from_numpy(_velocity(classes)(eta_y * t, logits.numpy())[0])


def lemma4_flow(
    classes: SequenceClasses, times: Float[Tensor, " t"], *, eta_y: float, eta_z: float, tolerance: float = 1e-10
) -> DrivenFlow:
    """Lemma 4's flow from uniform attention, and the integral B_n of what drives it.

    Args:
        classes: K of them over S contextual tokens, with Q queries.
        times: in steps, increasing, at least 0; at most 1e300 / (M eta_y), ``[t]``.
        eta_y, eta_z: learning rates of decoder and attention.
        tolerance: relative, of the integrator.
    Returns:
        The logits ``[t, Q, S]`` with their error, and B_n ``[t, K]``.
    Raises:
        ValueError: a rate is not positive, the times are not increasing, or beyond the horizon.
        Infeasible: see :func:`lemma4_velocity`.
        NotConverged: the integrator gave up, or two tolerances disagree.
    Source: :cite:t:`tian2023scan`, Lemma 4.
    """
    s = decoder_times(times, vocab_size=classes.vocab_size, eta_y=eta_y, eta_z=eta_z)
    shape, ratio = (classes.queries, classes.tokens), eta_z / eta_y
    cut, velocity = shape[0] * shape[1], _velocity(classes)

    @no_type_check
    def rate(at: float, state: np.ndarray) -> np.ndarray:
        speed, drive = velocity(at, state[:cut].reshape(shape))
        return ratio * np.concatenate([speed.ravel(), drive])

    path = integrate(rate, cut + classes.classes, s, watched=slice(None), tolerance=tolerance, method="DOP853")
    logits, drive = path.states[:, :cut].reshape(-1, *shape), path.states[:, cut:]
    return DrivenFlow(LEMMA4, times, torch.from_numpy(logits), path.error, torch.from_numpy(drive.copy()))


def _velocity(classes: SequenceClasses):
    """dZ/ds and xi at s = eta_Y t, for eta_Z = eta_Y."""
    featured, owner, w = features(classes), asked(classes), classes.weights.numpy()
    M, K = classes.vocab_size, classes.classes
    q = np.full((K, K), -M / (M - 1) ** 2)
    np.fill_diagonal(q, M / (M - 1))

    @no_type_check
    def velocity(s: float, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        f = featured(logits)
        x = scaled_gain(w * s, M, 1.0)
        pull = ((M - 1) / M * x)[:, None] * q / (1 + np.exp(np.minimum(x - math.log(M - 1), 700.0)))
        a = inverse_gram(f) @ pull
        g = a.T @ f
        along = np.add.reduce(f * g, 1)
        return owner @ (f * (g - f * along[:, None])), a.diagonal() - along

    return velocity
