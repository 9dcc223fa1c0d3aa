r"""Infinitely many, infinitely long sequences: the exact population flow, and the flow of Lemma 4 that the theorems are about.

*Exact flow*: the equations of :mod:`.dynamics` with :math:`P(l | n)` for the counts.

*Lemma 4's flow*: the decoder follows Lemma 3's modified dynamics, hence is known in closed form, and only the logits move,

    g_n = sum_k a_kn f_k,    a_.n = (F^T F)^{-1} [gamma_kn q_kn]_k,    dz_m/dt = eta_Z sum_{n: psi(n) = m} w_n f_n o (g_n - f_n (f_n.g_n))

with :math:`q_{nn} = M/(M-1)`, :math:`q_{kn} = -M/(M-1)^2` and :math:`\gamma_{kn} = (M-1) h(w_k t) \cdot (M-1)/(M-1+e^{M h(w_n t)})`; for
equal shares :math:`w_n = 1/K` this is :math:`\gamma(t)` of :mod:`.closed_form`. The paper leaves :math:`w_n` out of the last equation while
keeping t/K inside gamma; both are needed. The two flows differ: when M >> K the exact one is many times slower around t0', because
the difference is of the order of the overlap E, and so is everything that moves attention.

In Lemma 4's flow distinct tokens l, l' of a class keep a law, exactly: with r = (c_l / c_l')^2 - 1 and :math:`\chi_l = e^{2 \Delta z_l}`,

    r(t) = r(0) chi_l(t)         equivalently   (e^{-2 dz_l} - 1) / (e^{-2 dz_l'} - 1) = (P_l / P_l')^2      (Thm. 3)

Source: :cite:t:`tian2023scan`. Integrated in ln(1 + t), in which nothing is stiff: t = 1e100 costs a second.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import Infeasible, NotConverged
from .closed_form import h, scaled_gain
from .dynamics import Batch, Weights, forward
from .problem import SequenceClasses

SINGULAR = 1e10  # condition number of the Gram matrix of the classes from which on Lemma 3's dual basis is not computed


@dataclass(frozen=True, eq=False)
class Flow:
    """Attention logits along a flow.

    Attributes:
        dynamics: ``"exact"`` or ``"lemma 4"``.
        times: in steps, ``[t]``.
        logits: Z, ``[t, Q, S]``.
    """

    dynamics: str
    times: Float[Tensor, " t"]
    logits: Float[Tensor, "t Q S"]


def lemma4_velocity(classes: SequenceClasses, logits: Float[Tensor, "Q S"], t: float, *, eta_y: float) -> Float[Tensor, "Q S"]:
    """dZ/dt of Lemma 4's flow for eta_Z = 1.

    Raises:
        ValueError: the time is negative or the rate not positive.
        Infeasible: the features of the classes are (numerically) linearly dependent, so that Lemma 3's decoder does not exist.
    """
    h(torch.tensor(t, dtype=torch.float64), vocab_size=classes.vocab_size, eta_y=eta_y)
    return torch.from_numpy(_lemma4(classes, eta_y)(t, logits.numpy()))


def _lemma4(classes: SequenceClasses, eta_y: float) -> Callable[[float, np.ndarray], np.ndarray]:
    """The velocity as a function of time and logits, in numpy: it is called thousands of times on small arrays."""
    with np.errstate(divide="ignore"):
        log_p = np.log(classes.conditional.numpy())
    psi, w, M, K = classes.query.numpy(), classes.weights.numpy(), classes.vocab_size, classes.classes
    q = np.full((K, K), -M / (M - 1) ** 2)
    np.fill_diagonal(q, M / (M - 1))
    owner = np.eye(classes.queries)[psi].T * w

    def velocity(t: float, logits: np.ndarray) -> np.ndarray:
        scores = log_p + logits[psi]
        f = np.exp(scores - scores.max(1, keepdims=True))
        f /= np.sqrt((f * f).sum(1, keepdims=True))
        gram = f @ f.T
        values, vectors = np.linalg.eigh(gram)
        if values[0] * SINGULAR < values[-1]:
            raise Infeasible(
                f"Lemma 3 needs linearly independent classes, got a Gram matrix with eigenvalues {values[0]:.1e} to {values[-1]:.1e}; "
                "merge classes with equal tokens",
                certificate=torch.from_numpy(vectors[:, 0]),
            )
        x = scaled_gain(w * t, M, eta_y)
        pull = ((M - 1) / M * x)[:, None] * q / (1 + np.exp(np.minimum(x - math.log(M - 1), 700.0)))
        g = np.linalg.solve(gram, pull).T @ f
        return owner @ (f * (g - f * (f * g).sum(1, keepdims=True)))

    return velocity


def lemma4_flow(classes: SequenceClasses, times: Float[Tensor, " t"], *, eta_y: float, eta_z: float, tolerance: float = 1e-10) -> Flow:
    """Lemma 4's flow from uniform attention.

    Args:
        times: in steps, increasing, at least 0.
        eta_y, eta_z: learning rates.
        tolerance: relative, of the integrator; the absolute one is a thousandth of it.
    Raises:
        ValueError: a rate is not positive, or the times are not increasing.
        Infeasible: see :func:`lemma4_velocity`.
        NotConverged: the integrator gave up.
    """
    shape, velocity = (classes.queries, classes.tokens), _lemma4(classes, eta_y)
    states = _integrate(
        lambda t, state: eta_z * velocity(t, state.reshape(shape)).ravel(), np.zeros(shape).ravel(), times, eta_y, eta_z, tolerance
    )
    return Flow("lemma 4", times, states.reshape(-1, *shape))


def exact_flow(classes: SequenceClasses, times: Float[Tensor, " t"], *, eta_y: float, eta_z: float, tolerance: float = 1e-8) -> Flow:
    """The exact population flow from Y = 0 and uniform attention: what gradient descent with small steps really does.

    Args, Raises: as :func:`lemma4_flow`, but any classes will do.
    """
    start = Weights.zeros(classes.tokens, classes.queries, classes.classes, classes.vocab_size)
    cut, Q, S = start.decoder.numel(), classes.queries, classes.tokens
    whole = Batch(classes.conditional, classes.query, torch.arange(classes.classes), classes.weights)

    def rate(t: float, state: np.ndarray) -> np.ndarray:
        both = torch.from_numpy(state)
        now = forward(Weights(both[:cut].reshape(start.decoder.shape), both[cut:].reshape(Q, S), start.rest), whole)
        return torch.cat([eta_y * now.decoder.ravel(), eta_z * now.attention.ravel()]).numpy()

    states = _integrate(rate, np.zeros(cut + Q * S), times, eta_y, eta_z, tolerance)
    return Flow("exact", times, states[:, cut:].reshape(-1, Q, S))


def _integrate(rate, start: np.ndarray, times: Tensor, eta_y: float, eta_z: float, tolerance: float) -> Tensor:
    """Dormand-Prince of order 8 in u = ln(1 + t)."""
    from scipy.integrate import solve_ivp

    for name, value in (("eta_y", eta_y), ("eta_z", eta_z)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be a positive learning rate, got {value}")
    if not len(times) or float(times[0]) < 0 or bool((times.diff() <= 0).any()) or not bool(torch.isfinite(times).all()):
        raise ValueError(f"times must be finite, at least 0 and increasing, got {times.tolist()[:5]}")
    u = np.log1p(times.double().numpy())
    end = max(float(u[-1]), 1e-12)
    solved = solve_ivp(
        lambda v, y: math.exp(v) * rate(math.expm1(v), y),
        (0.0, end),
        start,
        method="DOP853",
        t_eval=np.minimum(u, end),
        rtol=tolerance,
        atol=tolerance * 1e-3,
    )
    if not solved.success or not np.isfinite(solved.y).all():
        raise NotConverged(f"the flow was not integrated to t = {float(times[-1]):.3g}: {solved.message}", solved.y, solved.t)
    return torch.from_numpy(np.ascontiguousarray(solved.y.T))


@dataclass(frozen=True, eq=False)
class RelativeGains:
    """Theorem 3 for pairs of tokens of a class; the pair's first token is the likelier one.

    Attributes:
        pairs: class, token l, token l', ``[pairs, 3]``.
        start: r(0), ``[pairs]``.
        measured: r(t) from the logits, ``[t, pairs]``.
        predicted: r(0) chi_l(t), ``[t, pairs]``.
    """

    pairs: Tensor
    start: Float[Tensor, " pairs"]
    measured: Float[Tensor, "t pairs"]
    predicted: Float[Tensor, "t pairs"]

    @property
    def error(self) -> float:
        """Largest relative error of the closed form, over times and pairs; NaN if there is no pair."""
        if not self.measured.numel():
            return math.nan
        return float(((self.measured - self.predicted).abs() / self.measured.abs().clamp(min=1e-300)).max())


def relative_gains(classes: SequenceClasses, logits: Float[Tensor, "t Q S"], *, tokens: Tensor | None = None) -> RelativeGains:
    r"""Measured and predicted relative gains :math:`r = (c_l / c_{l'})^2 - 1` of all pairs of distinct tokens of each class.

    Pairs with equal probabilities are left out (r(0) = 0 says nothing).

    Args:
        logits: Z, the start assumed at zero.
        tokens: bool ``[K, S]``, which tokens to pair in each class; the distinct ones if None.
    """
    allowed = classes.distinct() if tokens is None else tokens
    P = classes.conditional
    found = []
    for n in range(classes.classes):
        own = allowed[n].nonzero()[:, 0]
        first, second = torch.meshgrid(own, own, indexing="ij")
        larger = P[n, first] > P[n, second] * (1 + 1e-9)
        found.append(torch.stack([torch.full_like(first[larger], n), first[larger], second[larger]], dim=1))
    pairs = torch.cat(found)
    n, first, second = pairs.T
    ratio = 2 * (P[n, first].log() - P[n, second].log())
    z = logits[:, classes.query[n]]
    moved, other = (z.gather(2, at[None, :, None].expand(len(z), -1, 1))[..., 0] for at in (first, second))
    start = torch.expm1(ratio)
    return RelativeGains(pairs, start, torch.expm1(ratio + 2 * (moved - other)), start * torch.exp(2 * moved))
