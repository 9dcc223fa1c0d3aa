r"""Nonlinear MLP: salient components are learnt first and the others later; attention is sparse in between.

**One unit.** Near a critical point :math:`\mu` of the lower layer, with attention integrated out, the paper's
equation is

.. math:: \dot v = (\mu - v) \circ e^{v^2/2} .

With :math:`\delta_j = 1 - v_j/\mu_j` it reads :math:`\tfrac{d}{dt} \ln \delta_j = -e^{\mu_j^2 (1 -
\delta_j)^2 / 2}`, so in the long run

.. math:: \frac{\ln 1/\delta_j(t)}{\ln 1/\delta_k(t)} \to e^{(\mu_j^2 - \mu_k^2)/2} .

The attention softmax(:math:`v^2/T`) first concentrates on the components that are learnt first and then
spreads again: its entropy falls and rises, while for the linear :math:`\dot v = \Delta \circ e^{v^2/2}` it
only falls. A normaliser that all components share changes the speed along the orbit, not the orbit.

**Several units** share the attention of a query. By the exponential invariant its logits are :math:`z_l =
\tfrac12 \sum_k v_{kl}^2`, so if unit k has the critical point :math:`\mu_k`,

.. math:: \dot v_{kl} = (\mu_{kl} - v_{kl})\, e^{\sum_j v_{jl}^2 / 2} .

The factor is common to the units, so from zero all units learn a token at the same rate:

.. math:: V(t) = M \operatorname{diag}(1 - \delta(t)), \qquad \dot\delta_l = -\delta_l\, e^{\|M_{:l}\|^2 (1 -
    \delta_l)^2 / 2} ,

where M is the matrix of critical points and :math:`\delta_l` follows the equation of a single component whose
critical point is the length of column l. Near t = 0, V is close to tM; as t grows, it tends to M. In between
only the largest columns are learnt, so V is dominated by few directions: its stable rank falls and rises
again. With a linear MLP, :math:`\dot v_{kl} = \Delta_{kl}\, e^{\sum_j v_{jl}^2/2}`, the columns follow the
orbit of their lengths (:mod:`.orbit`) and one of them leaves all others behind: the stable rank tends to one,
as slowly as the length :math:`\sqrt{2 \ln(1/r)}` of that column grows. If all columns have the same length,
the rank does not change.

Away from the critical point the equation is a heuristic (see :mod:`.mixture`). The equations for several
units are derived in this library. Source: :cite:t:`tian2024joma`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from ...core.errors import NotConverged
from ...core.threads import single_threaded
from ...core.validation import converted, finite, positive
from ...maths.linalg import stable_rank
from ...metrics.attention import entropy
from .orbit import orbit

Vector = Float[Tensor, " M"]
Times = Float[Tensor, " t"]
Layer = Float[Tensor, "K M"]
TIME_RTOL = 1e-12  # relative tolerance of the inverted time
# nats; attention counts as uniform or hard if its entropy is within this margin of the uniform or hard value
ENTROPY_MARGIN = 0.1
_SHARES = torch.linspace(0, 1, 101, dtype=torch.float64)
# Nodes and weights of the Gauss-Legendre rule of order 16 on [0, 1].
_NODES, _WEIGHTS = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(16))
_NODES, _WEIGHTS = (1 + _NODES) / 2, _WEIGHTS / 2


@single_threaded
@converted(float64=("mu", "times"))
def log_remaining(mu: Vector, times: Times) -> Float[Tensor, "t M"]:
    r"""Computes ln delta of each component at the given times, from v = 0, where ln delta = 0.

    The equation is separable. The time at which :math:`s = \ln 1/\delta` is reached is an integral, which is
    inverted by Newton's method:

    .. math:: t(s) = \int_0^s e^{-\mu^2 (1 - e^{-u})^2 / 2} du, \qquad t(s) = t(s_0) + (s - s_0)\,
        e^{-\mu^2/2} \text{ in the end} .

    Args:
        mu: critical point of each component, ``[M]``, not zero.
        times: increasing, >= 0, ``[t]``.
    Returns:
        ``[t, M]``, <= 0; ``t(s)`` equals the time to a relative :data:`TIME_RTOL`. It is -inf where ln delta
        is below the range of floating point, which happens for :math:`\mu^2 > 1400`.
    Raises:
        ValueError: a mu is zero or not finite; the times are empty, not finite, negative or not increasing.
        NotConverged: a time is missed by more than the tolerance; ``state`` holds ln delta.
    """
    valid = torch.isfinite(mu) & (mu != 0)
    if not bool(valid.all()):
        raise ValueError(
            f"mu must be finite and not zero, got {float(mu[~valid][0]):g}; omit components that do not move"
        )
    if not len(times) or not bool(torch.isfinite(times).all()):
        raise ValueError(f"times must be finite and not empty, got {times.tolist()[:5]}")
    if float(times[0]) < 0 or bool((times.diff() <= 0).any()):
        raise ValueError(f"times must increase and start at 0 or later, got {times.tolist()[:5]}; sort them")
    edges, passed = _time_table(mu)
    # Find the panel that contains each time, and solve t(s) = time within it. All tensors from here on are
    # [M, t].
    index = (torch.searchsorted(passed, times.expand(len(mu), -1).contiguous(), right=True) - 1).clamp(
        0, edges.shape[1] - 2
    )
    left, right, start = edges.gather(1, index), edges.gather(1, index + 1), passed.gather(1, index)
    low, high, s = left, right, left
    for _ in range(100):
        gap = start + _panel_time(mu[:, None], left, s) - times
        low, high = torch.where(gap <= 0, s, low), torch.where(gap > 0, s, high)
        # t(s) is concave, so Newton's method does not overshoot; where the speed underflows, bisect instead.
        newton = s - gap / _speed(mu[:, None], s)
        new = torch.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
        settled = ((new - s).abs() <= 4e-16 * s) | (gap.abs() <= 1e-15 * times)
        s = new
        if bool(settled.all()):
            break
    # Behind the last edge the speed is constant. The logarithm delays the overflow of exp(mu^2 / 2).
    late = times > passed[:, -1:]
    tail = edges[:, -1:] + torch.exp(mu[:, None].square() / 2 + (times - passed[:, -1:]).clamp(min=0).log())
    missed = ((start + _panel_time(mu[:, None], left, s) - times).abs() > TIME_RTOL * times) & ~late
    logs = -torch.where(late, tail, s).T
    if bool(missed.any()):
        raise NotConverged(
            f"the times must be met to {TIME_RTOL:g}, got {int(missed.sum())} that are not; report them",
            state=logs,
        )
    return logs


def _time_table(mu: Vector) -> tuple[Float[Tensor, "M P"], Float[Tensor, "M P"]]:
    """Returns points s and the times t(s) at which they are reached, increasing, ``[M, P]`` each."""
    size = mu.abs()[:, None]
    # Between the first points the exponent mu^2 (1 - e^-u)^2 / 2 grows by one, up to 45: later panels, where
    # the integrand is below e^-45, add less than rounding until its constant end is reached, about 40 after
    # e^u = mu^2.
    levels = ((2 * torch.arange(46, dtype=torch.float64)).sqrt() / size).clamp(max=1)  # v / mu
    last = 2 * size.clamp(min=1).log() + 40
    edges = torch.cat([-torch.log1p(-levels), last * _SHARES], dim=1).minimum(last).sort(dim=1).values
    steps = _panel_time(size, edges[:, :-1], edges[:, 1:])
    return edges, torch.cat([torch.zeros_like(last), steps.cumsum(1)], dim=1)


def _speed(mu: Tensor, s: Tensor) -> Tensor:
    """Returns dt/ds; expm1 keeps the digits near the start."""
    return torch.exp(-(mu * torch.expm1(-s)).square() / 2)


def _panel_time(mu: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Returns t(right) - t(left) by Gauss-Legendre quadrature, elementwise."""
    width = right - left
    return width * (_speed(mu[..., None], left[..., None] + width[..., None] * _NODES) @ _WEIGHTS)


@converted(float64=("mu",))
def learning_ratio(mu: Vector) -> Float[Tensor, "M M"]:
    """Returns exp((mu_j^2 - mu_k^2) / 2), ``[M, M]``: in the long run ln(1/delta_j) is this many times as
    large as ln(1/delta_k).
    """
    half = mu.square() / 2
    return torch.exp(half[:, None] - half)


@dataclass(frozen=True)
class Bounce:
    """Drop and rebound of a curve during training.

    Attributes:
        start, least, end: first, smallest and last value, in the unit of the curve.
        index: position of the smallest value.
    """

    start: float
    least: float
    end: float
    index: int

    @property
    def drop(self) -> float:
        """Fall to the smallest value, start - least."""
        return self.start - self.least

    @property
    def rebound(self) -> float:
        """Rise from the smallest value, end - least; 0 if the curve only falls."""
        return self.end - self.least


@converted(float64=("curve",))
def bounce(curve: Times) -> Bounce:
    """Finds the start, the smallest value and the end of a curve ``[t]``.

    Raises:
        ValueError: the curve is empty or not finite.
    """
    if not len(curve) or not bool(torch.isfinite(curve).all()):
        raise ValueError(
            f"a curve must hold finite values and at least one, got {curve.tolist()[:5]}; drop NaN and "
            "infinity"
        )
    index = int(curve.argmin())
    return Bounce(float(curve[0]), float(curve[index]), float(curve[-1]), index)


@converted(float64=("lower",))
def attention(lower: Float[Tensor, "*batch M"], *, temperature: float = 2.0) -> Float[Tensor, "*batch M"]:
    """Returns softmax(v^2 / T), ``[*batch, M]``: attention with z integrated out (T = 2 by the exponential
    invariant).

    Raises:
        ValueError: the temperature is not positive and finite.
    """
    positive(temperature=temperature)
    return torch.softmax(lower.square() / temperature, dim=-1)


@converted(float64=("lower",))
def attention_entropy(lower: Float[Tensor, "t M"], *, temperature: float = 2.0) -> Times:
    """Computes the entropy of :func:`attention` at each time, in nats, ``[t]``.

    Raises:
        ValueError: the temperature is not positive and finite.
    """
    return entropy(attention(lower, temperature=temperature))


@converted(float64=("entropies",))
def undecided(entropies: Times, *, keys: int) -> Bool[Tensor, " t"]:
    """Returns whether attention over ``keys`` tokens is neither uniform nor hard at each time, up to
    ``ENTROPY_MARGIN``, ``[t]``.
    """
    return (entropies > ENTROPY_MARGIN) & (entropies < math.log(keys) - ENTROPY_MARGIN)


@single_threaded
@converted(float64=("mu",))
def salient_descent(
    mu: Vector, *, start: float = 0.05, rate: float = 0.02, temperature: float = 3.0, steps: int = 5000
) -> Float[Tensor, "t M"]:
    r"""Iterates the normalised equation in discrete time, :math:`v \leftarrow v + \eta\, (\mu - v) \circ
    \mathrm{softmax}(v^2/T)`.

    The defaults are those of the paper's figure (Fig. 3 or 4; the texts that cite it differ).

    Args:
        mu: critical point of each component, ``[M]``.
        start: initial value of every component of v.
        rate, temperature, steps: step size eta, temperature T and number of steps.
    Returns:
        v after 0, 1, ..., steps, ``[steps + 1, M]``.
    Raises:
        ValueError: mu or start is not finite, steps is negative, or the rate or the temperature is not
            positive.
    """
    finite(mu=mu)
    return _descend(lambda v: mu - v, len(mu), start, rate, temperature, steps)


@single_threaded
@converted(float64=("discriminancy",))
def linear_descent(
    discriminancy: Vector,
    *,
    start: float = 0.05,
    rate: float = 0.02,
    temperature: float = 3.0,
    steps: int = 5000,
) -> Float[Tensor, "t M"]:
    r"""Iterates the equation of a linear MLP in discrete time, :math:`v \leftarrow v + \eta\, \Delta \circ
    \mathrm{softmax}(v^2/T)`.

    The other arguments, the result and the errors are those of :func:`salient_descent`.

    Args:
        discriminancy: Delta, ``[M]``.
    """
    finite(discriminancy=discriminancy)
    return _descend(lambda v: discriminancy, len(discriminancy), start, rate, temperature, steps)


def _descend(
    pull: Callable[[Tensor], Tensor],
    components: int,
    start: float,
    rate: float,
    temperature: float,
    steps: int,
) -> Float[Tensor, "t M"]:
    positive(rate=rate, temperature=temperature)
    if not math.isfinite(start):
        raise ValueError(f"start must be finite, got {start}")
    if steps < 0:
        raise ValueError(f"steps must be at least 0, got {steps}")
    states = [torch.full((components,), start, dtype=torch.float64)]
    for _ in range(steps):
        v = states[-1]
        states.append(v + rate * pull(v) * attention(v, temperature=temperature))
    return torch.stack(states)


def published_mu() -> Vector:
    """Returns the components of the paper's Fig. 3 or 4, sorted, ``[10]``: 1 + 3 u, u the first ten uniform
    numbers of torch's seed 0.
    """
    return (3 * torch.rand(10, generator=Generator().manual_seed(0)) + 1).sort().values.double()


def random_mu(generator: Generator, *, components: int = 10) -> Vector:
    """Draws critical points 1 + 3 u with u uniform in [0, 1], sorted, ``[M]``."""
    return (1 + 3 * torch.rand(components, generator=generator, dtype=torch.float64)).sort().values


@single_threaded
@converted(float64=("points", "times"))
def nonlinear_layer(points: Layer, times: Times) -> Float[Tensor, "t K M"]:
    """Computes V of nonlinear units at the given times, from V = 0, ``[t, K, M]``.

    Args:
        points: critical points mu, ``[K, M]``; no column is zero.
        times: increasing, >= 0, ``[t]``.
    Raises:
        ValueError: a column is zero or not finite, or the times are negative or not increasing.
        NotConverged: see :func:`log_remaining`.
    """
    # Compute 1 - delta by expm1, which is accurate at the start, where delta is near 1.
    return points * -torch.expm1(log_remaining(points.norm(dim=0), times))[:, None]


@single_threaded
@converted(float64=("discriminancy", "remaining"))
def linear_layer(discriminancy: Layer, remaining: Float[Tensor, " t"]) -> Float[Tensor, "t K M"]:
    """Computes V of linear units at the times (1 - r) t*, from V = 0, ``[t, K, M]``; t* is the blow-up time
    of the largest column.

    Args:
        discriminancy: Delta, ``[K, M]``; no column is zero.
        remaining: share r of t* that remains, in (0, 1], ``[t]``.
    Raises:
        ValueError: a column is zero or not finite, or a share is outside (0, 1].
    """
    lengths = discriminancy.norm(dim=0)
    valid = torch.isfinite(lengths) & (lengths > 0)
    if not bool(valid.all()):
        raise ValueError(
            f"columns must be finite and not zero, got length {float(lengths[~valid][0]):g}; omit tokens "
            "that do not move"
        )
    # Each column keeps its direction, and its length follows the orbit of a single unit.
    return discriminancy / lengths * orbit(lengths, remaining)[:, None]


def gaussian_points(generator: Generator, *, units: int = 12, tokens: int = 20, scale: float = 1.0) -> Layer:
    """Draws critical points with independent normal entries of standard deviation ``scale``, ``[units,
    tokens]``.
    """
    return scale * torch.randn(units, tokens, generator=generator, dtype=torch.float64)


@converted(float64=("points",))
def equal_columns(points: Layer) -> Layer:
    """Rescales all columns to one length, the root mean square of their lengths, so that no token is salient,
    ``[K, M]``.

    Raises:
        ValueError: a column is zero.
    """
    lengths = points.norm(dim=0)
    if bool((lengths == 0).any()):
        raise ValueError(
            f"columns must not be zero, got {int((lengths == 0).sum())} zero columns of {points.shape[1]}"
        )
    return points * lengths.square().mean().sqrt() / lengths


@single_threaded
@converted(float64=("points", "layers"))
def rank_bounce(points: Layer, layers: Float[Tensor, "t K M"]) -> Bounce:
    """Computes the drop and rebound of the stable rank of V.

    Args:
        points: critical points, ``[K, M]``. At the start V is zero and has no stable rank; just after it, V
            is nearly a multiple of ``points``, whose stable rank is the first value.
        layers: V at later times, ``[t, K, M]``.
    """
    return bounce(torch.cat([stable_rank(points)[None], stable_rank(layers)]))
