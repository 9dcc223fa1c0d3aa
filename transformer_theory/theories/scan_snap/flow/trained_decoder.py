r"""The two flows in which the decoder is trained: the exact population flow, and Lemma 3's modification of it.

Both follow, with :math:`\alpha_n = \mathrm{softmax}(Y^\top f_n)`, :math:`r_n = e_n - \alpha_n` and shares :math:`w_n` of the classes,

    dY/dt = eta_Y sum_n w_n d_n r_n^T,    dz_m/dt = eta_Z sum_{n: psi(n) = m} w_n f_n o (g_n - f_n (f_n.g_n)),    g_n = Y r_n

where :math:`d_n = f_n` in the *exact* flow and :math:`d_n = F (F^\top F)^{-1} e_n`, the dual basis, in the *modified* one: then the logits
:math:`F^\top Y` of a class are trained by its own sequences alone, as long as attention stands still (Lemma 3).

1 - alpha_n is the sum of the other alphas, or everything would stop at 1e-16. The M - K columns of Y whose token never follows stay equal
and are kept once, so the cost does not depend on M.

Source: :cite:t:`tian2023scan`.
"""

import math
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..problem import SequenceClasses
from .features import asked, features, inverse_gram, normal_part
from .integrate import Rate, decoder_times, integrate
from .paths import EXACT, MODIFIED, Flow


def exact_flow(classes: SequenceClasses, times: Float[Tensor, " t"], *, eta_y: float, eta_z: float, tolerance: float = 1e-8) -> Flow:
    """The exact population flow from Y = 0 and uniform attention: what gradient descent with small steps really does.

    Args:
        classes: K of them over S contextual tokens, with Q queries.
        times: in steps, increasing, at least 0; at most 1e300 / (M eta_y), ``[t]``.
        eta_y, eta_z: learning rates of decoder and attention.
        tolerance: relative, of the integrator.
    Returns:
        The logits ``[t, Q, S]`` with their error.
    Raises:
        ValueError: a rate is not positive, the times are not increasing, or beyond the horizon.
        NotConverged: the integrator gave up, or two tolerances disagree.
    Source: :cite:t:`tian2023scan`, Lemma 2.
    """
    return _flow(EXACT, classes, lambda f: f, times, eta_y, eta_z, tolerance)


def modified_flow(classes: SequenceClasses, times: Float[Tensor, " t"], *, eta_y: float, eta_z: float, tolerance: float = 1e-8) -> Flow:
    """Lemma 3's flow: as :func:`exact_flow`, but the decoder follows the dual basis of the features.

    Raises:
        Infeasible: the features of the classes are (numerically) linearly dependent; and whatever :func:`exact_flow` raises.
    Source: :cite:t:`tian2023scan`, Lemma 3.
    """
    return _flow(MODIFIED, classes, lambda f: inverse_gram(f) @ f, times, eta_y, eta_z, tolerance)


def _flow(name: str, classes: SequenceClasses, direction, times: Tensor, eta_y: float, eta_z: float, tolerance: float) -> Flow:
    s = decoder_times(times, vocab_size=classes.vocab_size, eta_y=eta_y, eta_z=eta_z)
    Q, S = classes.queries, classes.tokens
    columns = classes.classes + (classes.vocab_size > classes.classes)
    cut = S * columns
    path = integrate(
        derivatives(classes, direction, eta_z / eta_y), cut + Q * S, s, watched=slice(cut, None), tolerance=tolerance, method="DOP853"
    )
    return Flow(name, times, torch.from_numpy(path.states[:, cut:].reshape(-1, Q, S)), path.error)


def derivatives(classes: SequenceClasses, direction, ratio: float) -> Rate:
    """Derivatives by eta_Y t of Y and Z, flat."""
    K, Q, S = classes.classes, classes.queries, classes.tokens
    rest = classes.vocab_size - K
    columns = K + (rest > 0)
    own = np.arange(K)
    featured, owner, w = features(classes), asked(classes), classes.weights.numpy()[:, None]
    pooled = np.zeros(columns)
    share = np.ones(columns)
    if rest:
        pooled[K], share[K] = math.log(rest), 1 / rest

    @no_type_check
    def rate(_: float, state: np.ndarray) -> np.ndarray:
        Y, f = state[: S * columns].reshape(S, columns), featured(state[S * columns :].reshape(Q, S))
        scores = f @ Y + pooled
        alpha = np.exp(scores - np.maximum.reduce(scores, 1, keepdims=True))
        alpha /= np.add.reduce(alpha, 1, keepdims=True)
        residual = -alpha
        residual[own, own] = 0.0
        residual[own, own] = -np.add.reduce(residual, 1)
        out = np.empty_like(state)
        np.matmul(direction(f).T, w * residual * share, out=out[: S * columns].reshape(S, columns))
        out[S * columns :] = (ratio * (owner @ normal_part(f, residual @ Y.T))).ravel()
        return out

    return rate
