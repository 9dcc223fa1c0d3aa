r"""The random choice of one token: Gumbel noise, its relaxation, and the mean and the variance of its
gradient.

A router gives token i the score :math:`s_i`; :math:`p = \mathrm{softmax}(s)`.

* With independent Gumbel noise :math:`g_i = -\log(-\log u_i)` the largest :math:`s_i + g_i` is token i with
  probability :math:`p_i`.
* Relaxation at temperature :math:`\tau`: :math:`z = \mathrm{softmax}((s + g)/\tau)`. The *straight-through*
  choice is hard, the one-hot vector of the largest entry, and has the gradient of the relaxation.
* Two tokens, a loss :math:`a_1 z_1 + a_2 z_2` with :math:`a_1 - a_2 = 1`, and :math:`\delta = s_1 - s_2`. The
  exact gradient of the expected loss by :math:`s_1` is :math:`\sigma'(\delta)`. The relaxed one is
  :math:`\sigma'(u/\tau)/\tau` with :math:`u - \delta` logistic. Its mean at :math:`\tau = 1` is the density
  of the difference of two logistic variables, so at :math:`\delta = 0` it is 1/6 instead of 1/4. For
  :math:`\tau \to 0` the mean is exact, and the second moment tends to :math:`\sigma'(\delta)/(6\tau)`.
* Entropy :math:`H = -\sum_i p_i \log p_i` has :math:`\partial H / \partial s_i = -p_i (\log p_i + H)`.

Sources: :cite:t:`jang2017categorical`, :cite:t:`maddison2017concrete`; the formulas for two tokens are our
own.
"""

import math

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn import functional

from ...core.validation import converted, finite, integers, number, positive

Scores = Float[Tensor, "*batch T"]


def gumbel_noise(
    *shape: int, generator: Generator, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "..."]:
    """Draws standard Gumbel variables -log(-log u), ``shape``."""
    # The exponential variable -log u is drawn as such: u may round to 0 or 1, and the logarithm would be
    # infinite.
    return (
        -torch.empty(shape, dtype=dtype)
        .exponential_(generator=generator)
        .clamp_min(torch.finfo(dtype).tiny)
        .log()
    )


@converted(floats=("scores", "noise"))
def gumbel_softmax(scores: Scores, noise: Scores, *, temperature: float = 1.0, hard: bool = True) -> Scores:
    r"""Computes :math:`\mathrm{softmax}((s + g)/\tau)`, or the one-hot choice with the gradient of this
    relaxation (straight-through).

    Args:
        scores: s, ``[*batch, T]``.
        noise: g from :func:`gumbel_noise`; zeros for the mixture without noise, ``[*batch, T]``.
        temperature: tau.
        hard: whether the values are one-hot.
    Raises:
        ValueError: the temperature is not positive, the shapes differ, there is no token, or a row of scores
            has no finite largest one or NaN.
    """
    positive(temperature=temperature)
    if scores.shape != noise.shape or not scores.ndim or not scores.shape[-1]:
        raise ValueError(
            f"scores and noise must be [*batch, T] of equal shape, got {list(scores.shape)} and "
            f"{list(noise.shape)}"
        )
    noisy = scores + noise
    soft = torch.softmax(noisy / temperature, -1)
    if math.isnan(float(soft.detach().sum())):
        check_largest(noisy)
        # The quotient by a very low temperature was infinite, or the temperature zero in float32. The softmax
        # of differences is the same.
        difference = (noisy - noisy.detach().amax(-1, keepdim=True)).double()
        soft = torch.softmax(difference / temperature, -1).to(noisy.dtype)
    if not hard:
        return soft
    # not the largest weight, which scores with small differences share after rounding
    chosen = torch.zeros_like(soft).scatter(-1, noisy.argmax(-1, keepdim=True), 1.0)
    return chosen + soft - soft.detach()


@converted(float64=("scores",))
def sample_choice(scores: Scores, draws: int, *, generator: Generator) -> Tensor:
    """Draws tokens with the probabilities softmax(s) by the largest noisy score, ``[draws, *batch]`` int64.

    Raises:
        ValueError: a score is not finite, or there are no draws or no tokens.
    """
    integers(draws=draws)
    finite(scores=scores)
    if not scores.ndim or not scores.numel():
        raise ValueError(f"scores must be [*batch, T] with at least one token, got {list(scores.shape)}")
    return (scores + gumbel_noise(draws, *scores.shape, generator=generator)).argmax(-1)


@converted(float64=("scores",))
def entropy_gradient(scores: Scores) -> Scores:
    r"""Computes :math:`\partial H/\partial s_i = -p_i (\log p_i + H)` of the entropy of softmax(s), nats,
    ``[*batch, T]``.

    A score of -inf has the gradient 0.

    Raises:
        ValueError: a score is NaN or +inf, or all scores of a row are -inf.
    """
    p, log_p = torch.softmax(scores, -1), functional.log_softmax(scores, -1)
    if math.isnan(float(p.detach().sum())):
        check_largest(scores)
    change = -p * (log_p + torch.special.entr(p).sum(-1, keepdim=True))
    return torch.where(p > 0, change, 0.0)


def check_largest(scores: Scores) -> None:
    """Checks that each row has a finite largest score and no NaN.

    Raises:
        ValueError: a row has not.
    """
    if not bool((scores.amax(-1).isfinite() & ~scores.isnan().any(-1)).all()):
        raise ValueError(
            "scores must have a finite largest one in each row and no NaN, got a row of -inf, +inf or NaN; "
            "leave it out"
        )


def descend_entropy(
    scores: Scores, *, penalty: float, steps: int, rate: float = 1.0
) -> Float[Tensor, "*batch T"]:
    """Takes gradient steps on penalty * H alone and returns the probabilities, ``[*batch, T]``."""
    for _ in range(steps):
        scores = scores - rate * penalty * entropy_gradient(scores)
    return torch.softmax(scores, -1)


def exact_gradient(delta: float) -> float:
    r"""Computes the gradient of the expected loss by :math:`s_1` for two tokens and :math:`a_1 - a_2 = 1`:
    :math:`\sigma'(\delta)`.
    """
    return 0.25 / math.cosh(min(abs(delta), 700.0) / 2) ** 2  # the square of cosh(355) overflows


def relaxed_gradient_mean(delta: float) -> float:
    r"""Computes the mean of the relaxed gradient at temperature 1 for two tokens and :math:`a_1 - a_2 = 1`.

    It is the density :math:`e^\delta ((\delta - 2) e^\delta + \delta + 2) / (e^\delta - 1)^3` of the
    difference of two logistic variables.

    Raises:
        ValueError: the difference is not finite.
    """
    d = abs(number("delta", delta))
    if not d < math.inf:
        raise ValueError(f"delta must be finite, got {delta}")
    if d < 1e-2:
        return 1 / 6 - d**2 / 60  # the next term is d^4 / 1008
    # the formula with numerator and denominator multiplied by exp(-3 d), which cannot overflow
    e = math.exp(-d)
    return e * (d - 2 + (d + 2) * e) / (1 - e) ** 3


def relaxed_gradient_second_moment(delta: float, temperature: float) -> float:
    r"""Computes the limit of the second moment of the relaxed gradient at low temperature,
    :math:`\sigma'(\delta)/(6\tau)`.

    Raises:
        ValueError: the temperature is not positive.
    """
    positive(temperature=temperature)
    return exact_gradient(delta) / (6 * temperature)


def sampled_gradients(
    delta: float, *, temperature: float, draws: int, generator: Generator, hard: bool = True
) -> Float[Tensor, " draws"]:
    r"""Draws gradients by :math:`s_1` of the chosen loss, by automatic differentiation, for two tokens and
    :math:`a_1 - a_2 = 1`.
    """
    scores = torch.tensor([delta, 0.0], dtype=torch.float64).repeat(draws, 1).requires_grad_()
    choice = gumbel_softmax(
        scores, gumbel_noise(draws, 2, generator=generator), temperature=temperature, hard=hard
    )
    return torch.autograd.grad(choice[:, 0].sum(), scores)[0][:, 0]


def score_function_gradients(delta: float, *, draws: int, generator: Generator) -> Float[Tensor, " draws"]:
    r"""Draws gradients of REINFORCE, loss of the chosen token times :math:`1[z = 1] - p_1`, for two tokens,
    :math:`a = (1, 0)`.
    """
    chosen = (sample_choice(torch.tensor([delta, 0.0]), draws, generator=generator) == 0).double()
    return chosen * (chosen - 1 / (1 + math.exp(-delta)))
