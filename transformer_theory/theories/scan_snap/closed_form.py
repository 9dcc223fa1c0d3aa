r"""Closed forms of scan-and-snap: the decoder's gain at time t, and the attention logit of a single common
token.

In the modified decoder dynamics (Lemma 3) the logits of class n stay a multiple of :math:`e_n - 1/M`, and the
multiple solves one scalar equation. M is the number of tokens in the vocabulary, :math:`\eta_Y` and
:math:`\eta_Z` are the learning rates of decoder and attention, and :math:`E_{nn'}` is the inner product of
the features of classes n and n'. Each of K equally likely classes gets a share 1/K of the steps:

    exp(M h) + (M - 1) M h = M eta_Y t + 1                            h, the decoder's gain
        (Lemma 6)
    gamma(t) = (M - 1)^2 h(t/K) / (M - 1 + exp(M h(t/K)))
        speed at which attention is driven (Thm. 1)
    Gamma(t) = (eta_Z / eta_Y) K (M - 1)^2 h(t/K)^2 / 2               = eta_Z times the integral of gamma
    B(t) = 1/4 ln(1 + 4 Gamma(t) / C0)
        logit of a single common token: z(t) = -B(t) (Thm. 4)

:math:`1 / C_0 = (K - 1) E_{nn'}(0)^2`. The constant of integration in B makes B(0) = 0; the printed form,
:math:`\tfrac14 \ln(C_0 + 4 \Gamma)`, omits it. Until :math:`t_0' = K \ln M / \eta_Y` attention scans and B
grows as t squared. Then it snaps: B grows as the logarithm of :math:`\Gamma \sim \ln^2 t`, in the limit as
:math:`\tfrac12 \ln \ln t`.

Source: :cite:t:`tian2023scan`. The unit of time is one step of descent, along the gradient of one sequence or
the mean over a batch.
"""

import math
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...core.validation import converted, integers, positive

HORIZON = 1e300  # largest M eta_Y t: float64 ends at 1.8e308
LARGEST_VOCABULARY = 1e150  # largest M: gamma and Gamma contain its square


@converted(float64=("t",))
def h(t: Float[Tensor, "*times"], *, vocab_size: int, eta_y: float) -> Float[Tensor, "*times"]:
    r"""Returns the decoder's gain, the root of :math:`e^{Mh} + (M-1) M h = M \eta_Y t + 1`.

    In closed form :math:`M h = \ln(M - 1) + \ln \omega(y)` with Wright's omega function, :math:`y = (M \eta_Y
    t + 1)/(M - 1) - \ln(M - 1)`. This form neither cancels nor overflows up to M eta_Y t = 1e300.

    Args:
        t: times in steps, at least 0; for K equally likely classes, t / K.
        vocab_size: M, at least 2.
        eta_y: learning rate of the decoder, positive.
    Raises:
        ValueError: a time is negative, NaN or so large that M eta_Y t exceeds 1e300, M is not in [2, 1e150],
            or the rate is not positive.
    """
    _check(vocab_size, eta_y=eta_y)
    if not bool((t >= 0).all()):
        raise ValueError("times must be at least 0, got a negative one or NaN; training starts at 0")
    check_horizon(t, vocab_size=vocab_size, eta_y=eta_y)
    return torch.as_tensor(scaled_gain(t.numpy(), vocab_size, eta_y), dtype=torch.float64) / float(vocab_size)


@no_type_check
def scaled_gain(t: np.ndarray, vocab_size: int, eta_y: float) -> np.ndarray:
    """Returns M h(t) for an array of times, without checks, for the inner loop of the integrators."""
    from scipy.special import wrightomega

    M, right = vocab_size, vocab_size * eta_y * t
    # omega(y) + ln omega(y) = y, so that e^x = (M - 1) omega and x = ln(M - 1) + ln omega solve the equation.
    # scipy evaluates omega in the log domain, so neither e^x nor its argument overflows.
    x = math.log(M - 1) + np.log(wrightomega((right + 1) / (M - 1) - math.log(M - 1)))
    # Near t = 0 the two logarithms cancel: x is small and ln(M - 1) is not. One Newton step on expm1(x) +
    # (M-1) x = M eta_Y t, whose terms are all small and positive, restores the digits. The clip keeps exp
    # finite where the result is not used.
    small = np.clip(x, 0.0, 1.0)
    polished = small - (np.expm1(small) + (M - 1) * small - right) / (np.exp(small) + M - 1)
    return np.where(x < 1, polished, x)


def h_discrete(steps: int, *, vocab_size: int, eta_y: float) -> Float[Tensor, " steps"]:
    r"""Returns the gain after 0, 1, ..., ``steps - 1`` steps of gradient descent,
    :math:`h_s = h_{s-1} + \eta_Y / (M - 1 + e^{M h_{s-1}})` (Lemma 5).

    Raises:
        ValueError: steps or M is too small, or the rate is not positive.
    """
    _check(vocab_size, eta_y=eta_y)
    integers(steps=steps)
    values = [0.0]
    for _ in range(steps - 1):
        values.append(values[-1] + eta_y / (vocab_size - 1 + math.exp(vocab_size * values[-1])))
    return torch.tensor(values, dtype=torch.float64)


@converted(float64=("t",))
def gamma(
    t: Float[Tensor, "*times"], *, classes: int, vocab_size: int, eta_y: float
) -> Float[Tensor, "*times"]:
    r"""Returns :math:`\gamma(t) = (M-1)^2 h(t/K) / (M - 1 + e^{M h(t/K)})`, which rises as :math:`\eta_Y t /
    K` and falls after about t0'.

    Raises:
        ValueError: see :func:`h`; or ``classes`` is below 1.
    """
    _check_classes(classes)
    _check(vocab_size, eta_y=eta_y)
    M = float(vocab_size)
    gain = h(t / classes, vocab_size=vocab_size, eta_y=eta_y)
    # Divide numerator and denominator by the larger of e^{Mh} and M, so that neither overflows.
    largest = torch.clamp(M * gain, min=math.log(M))
    return (
        (M - 1) ** 2
        * gain
        * torch.exp(-largest)
        / ((M - 1) * torch.exp(-largest) + torch.exp(M * gain - largest))
    )


@converted(float64=("t",))
def Gamma(
    t: Float[Tensor, "*times"], *, classes: int, vocab_size: int, eta_y: float, eta_z: float
) -> Float[Tensor, "*times"]:
    r"""Returns :math:`\Gamma(t) = \eta_Z \int_0^t \gamma = \frac{\eta_Z}{\eta_Y} K (M-1)^2 h(t/K)^2 / 2`.

    Raises:
        ValueError: see :func:`h`; or ``classes`` is below 1, or a rate is not positive.
    """
    _check_classes(classes)
    _check(vocab_size, eta_y=eta_y, eta_z=eta_z)
    return (
        eta_z
        / eta_y
        * classes
        * (float(vocab_size - 1) * h(t / classes, vocab_size=vocab_size, eta_y=eta_y)) ** 2
        / 2
    )


@converted(float64=("t",))
def B(
    t: Float[Tensor, "*times"], *, classes: int, vocab_size: int, eta_y: float, eta_z: float, overlap: float
) -> Float[Tensor, "*times"]:
    r"""Returns :math:`B(t) = \tfrac14 \ln(1 + 4 \Gamma(t) (K - 1) E_0^2)` (Thm. 4).

    If all classes are alike and share a single common token, the logit of this token is -B.

    Args:
        t: times in steps, at least 0, any shape.
        classes, vocab_size: K and M.
        eta_y, eta_z: learning rates of decoder and attention.
        overlap: :math:`E_0`, the inner product of the features of two classes at the start, in (0, 1).
    Returns:
        B at each time, in the shape of ``t``.
    Raises:
        ValueError: see :func:`Gamma`; or the overlap is out of range.
    """
    if not 0 < overlap < 1:
        raise ValueError(f"overlap must lie in (0, 1), got {overlap}; it is an inner product of unit vectors")
    g = Gamma(t, classes=classes, vocab_size=vocab_size, eta_y=eta_y, eta_z=eta_z)
    # For tiny Gamma, B is of the same order, and ln(1 + x) would lose its digits; log1p does not.
    return torch.log1p(4 * g * (classes - 1) * overlap**2) / 4


@converted(float64=("t",))
def printed_B(
    t: Float[Tensor, "*times"], *, classes: int, vocab_size: int, eta_y: float, eta_z: float, constant: float
) -> Float[Tensor, "*times"]:
    r"""Returns :math:`\tfrac14 \ln(C_0 + 4 \Gamma(t))`, B as printed in Theorem 4; it starts at
    :math:`\tfrac14 \ln C_0` instead of 0.

    The paper's curves have :math:`C_0 = 1`. With this value the form equals :func:`B` for the overlap with
    :math:`(K-1) E_0^2 = 1`.

    Args:
        constant: :math:`C_0`, positive.
    Raises:
        ValueError: see :func:`Gamma`; or the constant is not positive.
    """
    if not 0 < constant < math.inf:
        raise ValueError(f"constant must be positive, got {constant}; the paper's curves have 1")
    return (
        constant + 4 * Gamma(t, classes=classes, vocab_size=vocab_size, eta_y=eta_y, eta_z=eta_z)
    ).log() / 4


@converted(float64=("t",))
def exact_common_logit(
    t: Float[Tensor, "*times"], *, classes: int, eta_y: float, eta_z: float, overlap: float
) -> Float[Tensor, "*times"]:
    r"""Approximates the logit of a single common token in the *exact* flow if every token is the next token
    of some class, M = K.

    .. math:: z = -\tfrac12 \ln\left(1 + \frac{\eta_Z}{\eta_Y} \frac{(K-1) E_0}{1 - E_0} \left[K h((1 - E_0) t
        / K)\right]^2\right)

    All classes are alike. E is the inner product of the features of two classes, :math:`E = E_0 e^{2z}`, and
    A the gap between the logit of a class's next token and every other logit, so that a wrong token has
    probability :math:`\alpha_o = 1 / (K - 1 + e^A)`. The formula neglects the gain of the distinct tokens and
    solves :math:`\dot A = \eta_Y (1 - E_0) \alpha_o`, with the overlap at its initial value, by :math:`A = K
    h((1 - E_0) t/K)`; and :math:`\dot z = -\eta_Z (K - 1) E \alpha_o A`. This speed is of first order in E;
    the speed of Theorem 4 is of second order.

    The error grows with the overlap and with :math:`\eta_Z / \eta_Y`, and is largest between t = K and t = 10
    K. This law is not in the paper.

    Args:
        overlap: :math:`E_0`, in (0, 1).
    Raises:
        ValueError: see :func:`h`; or ``classes`` is below 2, or the overlap is out of range.
    """
    if classes < 2 or not 0 < overlap < 1:
        raise ValueError(f"classes must be at least 2 and overlap in (0, 1), got {classes} and {overlap}")
    positive(eta_z=eta_z)
    gap = classes * h((1 - overlap) * t / classes, vocab_size=classes, eta_y=eta_y)
    return -torch.log1p(eta_z / eta_y * (classes - 1) * overlap / (1 - overlap) * gap**2) / 2


def scanning_time(*, classes: int, vocab_size: int, eta_y: float) -> float:
    r"""Returns :math:`t_0' = K \ln M / \eta_Y`, in steps: until then attention scans, afterwards it snaps.

    >>> from transformer_theory import scan_snap
    >>> round(scan_snap.closed_form.scanning_time(classes=2, vocab_size=1000, eta_y=1.0), 1)
    13.8

    Raises:
        ValueError: ``classes`` is below 1, M is below 2, or the rate is not positive.
    """
    _check_classes(classes)
    _check(vocab_size, eta_y=eta_y)
    return classes * math.log(vocab_size) / eta_y


def snapping_time(*, classes: int, vocab_size: int, eta_y: float) -> float:
    r"""Returns :math:`t_0 = 2 K \ln M / \eta_Y`, in steps, where the second regime of Theorems 1 and 4
    begins.

    The factor 1 + o(1) of the theorems is omitted.

    Raises:
        ValueError: see :func:`scanning_time`.
    """
    return 2 * scanning_time(classes=classes, vocab_size=vocab_size, eta_y=eta_y)


def check_horizon(times: Float[Tensor, "*times"], *, vocab_size: int, eta_y: float) -> None:
    """Checks that M eta_Y t does not exceed ``HORIZON``.

    Raises:
        ValueError: a time is too large.
    """
    end = float(times.max()) if times.numel() else 0.0
    scale = max(1.0, vocab_size * eta_y)
    if not end <= HORIZON / scale:
        raise ValueError(
            f"times must be at most {HORIZON / scale:.3g} (M eta_Y t up to 1e300), got {end:.3g}; end the "
            "run earlier"
        )


def _check(vocab_size: int, **rates: float) -> None:
    check_vocabulary(vocab_size)
    positive(**rates)


def check_vocabulary(vocab_size: int) -> None:
    """Checks that M lies in [2, ``LARGEST_VOCABULARY``].

    Raises:
        ValueError: it does not.
        TypeError: it is not an integer.
    """
    integers(vocab_size=vocab_size)
    if not 2 <= vocab_size <= LARGEST_VOCABULARY:
        actual = vocab_size if vocab_size < 2 else f"about 10^{math.log10(vocab_size):.0f}"
        raise ValueError(
            f"vocab_size must be at least 2 and at most {LARGEST_VOCABULARY:.0e}, got {actual}; choose one "
            "in between"
        )


def _check_classes(classes: int) -> None:
    if classes < 1:
        raise ValueError(f"classes must be at least 1, got {classes}")
