r"""Nonlinear MLP: salient components are learnt first, the others later, and attention is sparse in between.

Near a critical point :math:`\mu` of the lower layer, with attention put back, the paper's equation is

.. math:: \dot v = (\mu - v) \circ e^{v^2/2} .

With :math:`\delta_j = 1 - v_j/\mu_j` it reads :math:`\tfrac{d}{dt} \ln \delta_j = -e^{\mu_j^2 (1 - \delta_j)^2 / 2}`, so in the long run

.. math:: \frac{\ln 1/\delta_j(t)}{\ln 1/\delta_k(t)} \to e^{(\mu_j^2 - \mu_k^2)/2} .

:math:`\ln \delta` is what is integrated: :math:`\delta` itself underflows. Attention softmax(:math:`v^2/T`) first concentrates on what is
learnt first, then spreads again: its entropy drops and bounces, where the linear :math:`\dot v = \Delta \circ e^{v^2/2}` only lets it
drop. A common normaliser changes the clock, not the orbit. Source: :cite:t:`tian2024joma`.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...core.errors import NotConverged
from ...core.validation import positive
from ...metrics.attention import entropy

Vector = Float[Tensor, " M"]
Times = Float[Tensor, " t"]


def log_remaining(mu: Vector, times: Times, *, tolerance: float = 1e-10) -> Float[Tensor, "t M"]:
    r"""ln delta of each component at the given times, from v = 0 (ln delta = 0).

    Args:
        mu: where each component ends, ``[M]``, not zero.
        times: increasing, >= 0, ``[t]``.
        tolerance: relative, of the integrator (Dormand-Prince of order 8).
    Returns:
        ``[t, M]``, <= 0, no unit.
    Raises:
        ValueError: a mu is zero or not finite, or the times are none, not finite or do not increase from 0 on.
        NotConverged: the integrator gave up.
    Source: :cite:t:`tian2024joma`.
    """
    from scipy.integrate import solve_ivp

    if not bool((torch.isfinite(mu) & (mu != 0)).all()):
        raise ValueError("mu must be finite and not zero, got one that is not; leave components out that do not move")
    if not len(times) or not bool(torch.isfinite(times).all()):
        raise ValueError(f"times must be finite, at least one of them, got {times.tolist()[:5]}")
    if float(times[0]) < 0 or bool((times.diff() <= 0).any()):
        raise ValueError("times must increase and start at 0 or later, got others; sort them")
    if float(times[-1]) == 0:
        return torch.zeros(1, len(mu), dtype=torch.float64)  # the start alone
    squares = mu.square().numpy()

    def velocity(_: float, logs: np.ndarray) -> np.ndarray:
        return -np.exp(squares * np.expm1(logs) ** 2 / 2)

    span = (0.0, float(times[-1]))
    found = solve_ivp(velocity, span, np.zeros(len(mu)), method="DOP853", t_eval=times.numpy(), rtol=tolerance, atol=1e-12)
    if not found.success:
        raise NotConverged(f"the flow must reach t = {span[1]:g}, got {found.message}; ask for earlier times", state=found.y)
    return torch.from_numpy(found.y.T.copy())


def learning_ratio(mu: Vector) -> Float[Tensor, "M M"]:
    """exp((mu_j^2 - mu_k^2) / 2): how much faster, in the long run, ln(1/delta_j) grows than ln(1/delta_k).

    Source: :cite:t:`tian2024joma`.
    """
    half = mu.square() / 2
    return torch.exp(half[:, None] - half)


@dataclass(frozen=True, eq=False)
class Bounce:
    """Entropy of attention along a training: where it starts, its least value, where it ends.

    Attributes:
        start, least, end: nats.
        at: index of the least value.
    """

    start: float
    least: float
    end: float
    at: int

    @property
    def drop(self) -> float:
        """How far it falls, nats."""
        return self.start - self.least

    @property
    def rebound(self) -> float:
        """How far it comes back, nats; 0 if it only falls."""
        return self.end - self.least


def bounce(entropies: Times) -> Bounce:
    """Reads drop and rebound off a curve.

    Raises:
        ValueError: the curve is empty or not finite. Source: :cite:t:`tian2024joma`.
    """
    if not len(entropies) or not bool(torch.isfinite(entropies).all()):
        raise ValueError("a curve must hold finite values, at least one, got NaN, infinity or none; leave such readings out")
    at = int(entropies.argmin())
    return Bounce(float(entropies[0]), float(entropies[at]), float(entropies[-1]), at)


def attention(lower: Float[Tensor, "*batch M"], *, temperature: float = 2.0) -> Float[Tensor, "*batch M"]:
    """softmax(v^2 / T): what attention is once z is integrated out (T = 2 by the exponential invariant).

    Raises:
        ValueError: the temperature is not positive and finite. Source: :cite:t:`tian2024joma`.
    """
    positive(temperature=temperature)
    return torch.softmax(lower.square() / temperature, dim=-1)


def attention_entropy(lower: Float[Tensor, "t M"], *, temperature: float = 2.0) -> Times:
    """Entropy of :func:`attention` at each time, nats. Source: :cite:t:`tian2024joma`."""
    return entropy(attention(lower, temperature=temperature))


def on_the_way(entropies: Times, *, keys: int) -> Bool[Tensor, " t"]:
    """Where attention is neither uniform nor on one token: entropy more than .1 nats from ln(keys) and from 0; the line is ours."""
    return (entropies > 0.1) & (entropies < math.log(keys) - 0.1)


def salient_descent(
    mu: Vector, *, start: float = 0.05, rate: float = 0.02, temperature: float = 3.0, steps: int = 5000
) -> Float[Tensor, "t M"]:
    r"""The normalised form in discrete time: :math:`v \leftarrow v + \eta\, (\mu - v) \circ \mathrm{softmax}(v^2/T)`; defaults of the
    paper's Fig. 4.

    Args:
        mu: ``[M]``.
        start: v of all components.
        rate, temperature, steps: eta, T, how many steps.
    Returns:
        v after 0, 1, ..., steps, ``[steps + 1, M]``.
    Raises:
        ValueError: mu or start is not finite, mu not of floating point, steps below 0, or a rate or temperature that is not positive.
    Source: :cite:t:`tian2024joma`.
    """
    return _descend(lambda v: mu - v, _level(mu, "mu", start), rate, temperature, steps)


def linear_descent(
    discriminancy: Vector, *, start: float = 0.05, rate: float = 0.02, temperature: float = 3.0, steps: int = 5000
) -> Float[Tensor, "t M"]:
    r"""As :func:`salient_descent` with a linear MLP: :math:`v \leftarrow v + \eta\, \Delta \circ \mathrm{softmax}(v^2/T)`, ``[steps + 1,
    M]``.

    Raises:
        ValueError: as there.
    Source: :cite:t:`tian2024joma`.
    """
    return _descend(lambda v: discriminancy, _level(discriminancy, "discriminancy", start), rate, temperature, steps)


def _level(ends: Tensor, name: str, start: float) -> Tensor:
    """All components at ``start``."""
    if not ends.is_floating_point() or not bool(torch.isfinite(ends).all()):
        raise ValueError(f"{name} must hold finite floating-point numbers, got {ends.dtype}; convert with .double()")
    if not math.isfinite(start):
        raise ValueError(f"start must be finite, got {start}")
    return torch.full_like(ends, start)


def _descend(pull, v: Tensor, rate: float, temperature: float, steps: int) -> Tensor:
    positive(rate=rate, temperature=temperature)
    if steps < 0:
        raise ValueError(f"steps must be at least 0, got {steps}")
    passed = [v]
    for _ in range(steps):
        v = v + rate * pull(v) * attention(v, temperature=temperature)
        passed.append(v)
    return torch.stack(passed)


def published_mu() -> Vector:
    """The ten components of the paper's Fig. 4: 1 + 3 u with u the first ten uniform numbers of torch's seed 0, sorted, ``[10]``.

    Source: :cite:t:`tian2024joma`, Fig. 4.
    """
    return (3 * torch.rand(10, generator=torch.Generator().manual_seed(0)) + 1).sort().values.double()


def random_mu(generator: torch.Generator, *, components: int = 10) -> Vector:
    """1 + 3 u, u uniform, sorted, ``[M]``. Source: :cite:t:`tian2024joma`."""
    return (1 + 3 * torch.rand(components, generator=generator, dtype=torch.float64)).sort().values
