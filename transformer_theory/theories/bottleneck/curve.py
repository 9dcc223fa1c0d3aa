r"""The information curve of a discrete joint law, with a bound on the distance from the optimum.

For each trade-off :math:`\beta` the bottleneck minimises :math:`F = I(X;Z) - \beta I(Z;Y)` over encoders
q(z|x). Fixed points satisfy :math:`q(z|x) \propto p(z) \exp(-\beta\, \mathrm{KL}(p(y|x) \| t_z))` with
:math:`t_z = p(y|z)`. Many of them are not optimal.

**The problem is convex in the law of the decoders.** For a law :math:`\pi` on decoders t,

.. math:: \min F = -\beta I(X;Y) - \max_\pi \sum_x p(x) \log \int e^{-\beta \mathrm{KL}(p(y|x) \| t)}\,
    d\pi(t) .

This is the maximum-likelihood estimation of a mixing law, and the fixed-point iteration is its EM algorithm.
So an encoder is optimal exactly if :math:`S(t) = \sum_x p(x) e^{-\beta \mathrm{KL}(p(y|x) \| t)} / \int
e^{-\beta \mathrm{KL}(p(y|x) \| t')} d\pi(t') \le 1` for every t, and in general :math:`F - \min F \le \log
\max_t S(t)`. The solver adds maximisers of S to the decoders, solves for their masses by Newton steps with
non-negative weights, and stops at this gap. The maximum of S is itself searched from many starts (all p(y|x),
the decoders, p(y) and mixtures), because S is not concave.

The trade-offs are processed from the largest one, where the identity encoder is nearly optimal, downwards
(reverse annealing). Source: :cite:t:`tishby1999information` (bottleneck), :cite:t:`slonim2002maximum`
(mixtures), :cite:t:`lindsay1983geometry` (condition for S).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...core.errors import NotConverged
from ...core.validation import as_float64, as_tensor, integers, number, positive
from .information import information, joint_law

GAP = 1e-6  # largest gap of a solution in nats
# rounds per trade-off; steps of the search for maximisers of S; random mixtures among its starts
ROUNDS, ASCENT, MIXTURES = 120, 30, 8
NEAR = 1e-3  # near-maximisers of S that become candidates
POLISH = 20  # steps of the fixed-point iteration per round
LEAST = 1e-12  # code words of less probability are dropped


@dataclass(frozen=True)
class Bottleneck:
    r"""An encoder at one trade-off.

    Attributes:
        beta: trade-off of F = I(X;Z) - beta I(Z;Y).
        encoder: q(z|x), ``[x, z]``.
        compression: I(X;Z) in nats.
        relevance: I(Z;Y) in nats.
        lagrangian: F in nats.
        gap: bound on F - min F in nats.
        residual: largest change of q(z|x) in one step of the self-consistent equations.
    """

    beta: float
    encoder: Float[Tensor, "x z"]
    compression: float
    relevance: float
    lagrangian: float
    gap: float
    residual: float


@dataclass(frozen=True)
class Curve:
    """The information curve of a joint law: solutions in ascending order of beta."""

    joint: Float[Tensor, "x y"]
    points: tuple[Bottleneck, ...]

    def at(self, compression: float) -> float:
        """Returns an upper bound on I(Z;Y) in nats of any encoder with I(X;Z) at most ``compression``, from
        the tangents of the curve.

        Every encoder has I(X;Z) - beta I(Z;Y) >= F - gap, so I(Z;Y) <= (I(X;Z) - F + gap) / beta for each
        beta.

        Raises:
            ValueError: the compression is negative or NaN.
        """
        if not number("compression", compression) >= 0:
            raise ValueError(f"expected a compression of at least 0 nats, got {compression}; pass I(X;Z)")
        bounds = [(compression - point.lagrangian + point.gap) / point.beta for point in self.points]
        return max(0.0, min([*bounds, compression, float(information(self.joint))]))

    def column(self, name: str) -> list[float]:
        """Returns one attribute of all points."""
        return [getattr(point, name) for point in self.points]


def trade_offs(betas: object) -> list[float]:
    """Checks trade-offs and returns them in ascending order.

    Raises:
        ValueError: there are none, or one is not positive and finite.
        TypeError: they are not numbers.
    """
    tensor = as_float64(
        "betas", [betas] if isinstance(betas, int | float) else as_tensor("betas", betas)
    ).flatten()
    values = sorted(set(tensor.tolist()))
    if not values or not all(0 < beta < float("inf") for beta in values):
        raise ValueError(f"expected betas that are positive and finite, got {values[:4]}; drop the others")
    return values


def log_likelihood(
    channel: Float[Tensor, "x y"], decoders: Float[Tensor, "z y"], beta: float
) -> Float[Tensor, "x z"]:
    """Returns -beta KL(p(y|x) || t_z), ``[x, z]``; minus infinity if p(y|x) is positive where t_z is zero."""
    # One product instead of an array [x, z, y]. Logarithms of zero are cut off, because 0 log 0 would not be
    # a number.
    cross = channel @ decoders.clamp_min(torch.finfo(torch.float64).tiny).log().T
    result = beta * (cross - torch.xlogy(channel, channel).sum(1, keepdim=True))
    if bool((zero := decoders == 0).any()):
        result = result.masked_fill((channel > 0).double() @ zero.double().T > 0, -float("inf"))
    return result


def encode(
    channel: Float[Tensor, "x y"], decoders: Float[Tensor, "z y"], mass: Float[Tensor, " z"], beta: float
) -> Float[Tensor, "x z"]:
    """Returns the encoder q(z|x) of the self-consistent equations, ``[x, z]``."""
    return (log_likelihood(channel, decoders, beta) + mass.log()).softmax(1)


def decode(
    joint: Float[Tensor, "x y"], encoder: Float[Tensor, "x z"]
) -> tuple[Float[Tensor, "kept y"], Float[Tensor, " kept"]]:
    """Returns the decoders p(y|z), ``[kept, y]``, and the masses p(z), ``[kept]``, of the code words that
    have probability.
    """
    both = encoder.T @ joint
    both = both[both.sum(1) > LEAST]
    return both / both.sum(1, keepdim=True), both.sum(1) / both.sum()


def iterate(
    joint: Float[Tensor, "x y"], encoder: Float[Tensor, "x z"], beta: float, steps: int
) -> Float[Tensor, "x kept"]:
    """Applies the self-consistent equations ``steps`` times; F does not increase. Code words without
    probability are dropped.
    """
    channel = joint / joint.sum(1, keepdim=True)
    for _ in range(steps):
        encoder = encode(channel, *decode(joint, encoder), beta)
    return encoder


def ascend(
    log_weight: Float[Tensor, " x"],
    channel: Float[Tensor, "x y"],
    starts: Float[Tensor, "s y"],
    beta: float,
    steps: int = ASCENT,
) -> tuple[Float[Tensor, "s y"], Float[Tensor, " s"]]:
    """Ascends log S(t) = log sum_x w_x exp(-beta KL(p(y|x) || t)) from each start; returns the points and
    their values.
    """
    t = starts
    for _ in range(steps):
        t = (log_weight[:, None] + log_likelihood(channel, t, beta)).softmax(0).T @ channel
    return t, torch.logsumexp(log_weight[:, None] + log_likelihood(channel, t, beta), 0)


def certificate(
    joint: Float[Tensor, "x y"], encoder: Float[Tensor, "x z"], beta: float, *, steps: int = ASCENT
) -> tuple[float, Float[Tensor, "s y"], Float[Tensor, " s"]]:
    """Returns the gap of an encoder's decoders and masses, maximisers of S, ``[s, y]``, and their values of
    log S.

    The bound holds for the encoder that one step of the self-consistent equations returns.
    """
    channel = joint / joint.sum(1, keepdim=True)
    decoders, mass = decode(joint, encoder)
    log_mixture = torch.logsumexp(log_likelihood(channel, decoders, beta) + mass.log(), 1)
    log_weight = joint.sum(1).log() - log_mixture
    mixtures = torch.rand(
        MIXTURES, len(joint), generator=Generator().manual_seed(0), dtype=torch.float64
    ).pow(4)
    mixtures = (mixtures * joint.sum(1)) @ channel / (mixtures * joint.sum(1)).sum(1, keepdim=True)
    starts = torch.cat([channel, decoders, joint.sum(0)[None], mixtures])
    found, values = ascend(log_weight, channel, starts, beta, steps)
    bound = float(values.max())
    return (max(0.0, bound) if bound == bound else float("inf")), found, values


def point(joint: Float[Tensor, "x y"], encoder: Float[Tensor, "x z"], beta: float, gap: float) -> Bottleneck:
    """Returns the informations of an encoder at one trade-off."""
    marginal, residual = joint.sum(1), float("inf")
    following = encode(joint / marginal[:, None], *decode(joint, encoder), beta)
    if following.shape == encoder.shape:
        residual = float((following - encoder).abs().max())
    compression, relevance = (
        float(information(encoder * marginal[:, None])),
        float(information(encoder.T @ joint)),
    )
    compression, relevance = max(0.0, compression), max(0.0, relevance)
    return Bottleneck(beta, encoder, compression, relevance, compression - beta * relevance, gap, residual)


def _reweigh(joint: Tensor, channel: Tensor, decoders: Tensor, mass: Tensor, beta: float) -> Tensor:
    """One Newton step for the masses of given decoders, with non-negative weights and a line search on the
    likelihood.

    The quadratic model of sum_x p(x) log (L m)_x around m is, up to constants, -||R m - 2||^2 / 2 with rows
    sqrt(p) and R = L / (L m0).
    """
    from scipy.optimize import nnls

    p, log_l = joint.sum(1), log_likelihood(channel, decoders, beta)
    log_mixture = torch.logsumexp(log_l + mass.log(), 1, keepdim=True)
    ratio = (log_l - log_mixture).exp()
    root = p.sqrt()[:, None]
    # A heavy row holds the sum of the masses at one.
    system = np.vstack([(root * ratio).numpy(), np.full((1, len(mass)), 1e3)])
    target = np.concatenate([2 * root[:, 0].numpy(), [1e3]])
    solution = torch.from_numpy(nnls(system, target)[0])
    new, old = solution / solution.sum(), (p * log_mixture[:, 0]).sum()
    for halving in range(12):
        trial = mass + (new - mass) / 2**halving
        value = (p * torch.logsumexp(log_l + trial.clamp(min=0).log(), 1)).sum()
        if float(value) >= float(old):
            return trial.clamp(min=0)
    return mass


def solve(
    joint: Float[Tensor, "x y"],
    beta: float,
    start: Float[Tensor, "x z"],
    *,
    rounds: int = ROUNDS,
    gap: float = GAP,
) -> Bottleneck:
    """Solves one trade-off from an encoder.

    Raises:
        NotConverged: the gap is too large after all rounds; the error holds the last point and its gap.
    """
    channel, encoder, bound = joint / joint.sum(1, keepdim=True), start, float("inf")
    trivial = torch.ones(len(joint), 1, dtype=torch.float64)
    # the iteration would lose its last code words slowly
    if certificate(joint, trivial, beta)[0] <= gap / 10**4:
        return point(joint, trivial, beta, certificate(joint, trivial, beta)[0])
    for turn in range(rounds):
        encoder = iterate(joint, encoder, beta, POLISH)
        # Near the onset the maximisers of S move slowly, so the search becomes longer.
        bound, found, values = certificate(joint, encoder, beta, steps=ASCENT * (1 + turn // 5))
        if bound <= gap:
            break
        decoders, mass = decode(joint, encoder)
        new = torch.cat([found[values > -NEAR], joint.sum(0)[None]])
        # Maximisers that coincide would make the Newton system singular: one is kept of each cell of side
        # 1e-6.
        cells = torch.unique((new * 1e6).round(), dim=0, return_inverse=True)[1]
        new = new[
            torch.zeros(int(cells.max()) + 1, dtype=torch.long).scatter_(0, cells, torch.arange(len(cells)))
        ]
        decoders, mass = (
            torch.cat([decoders, new]),
            torch.cat([mass, torch.zeros(len(new), dtype=torch.float64)]),
        )
        mass = _reweigh(joint, channel, decoders, mass, beta)
        kept = mass > LEAST
        encoder = encode(channel, decoders[kept], mass[kept] / mass[kept].sum(), beta)
    result = point(joint, encode(channel, *decode(joint, encoder), beta), beta, bound)
    if bound > gap:
        raise NotConverged(
            f"bottleneck at beta = {beta:.4g}: gap {bound:.1e} nats after {rounds} rounds", result, bound
        )
    return result


def information_bottleneck(joint, betas: float | Iterable[float], *, rounds: int = ROUNDS) -> Curve:
    r"""Computes the information curve of a joint law.

    >>> curve = information_bottleneck([[0.4, 0.1], [0.1, 0.4]], [2.0, 10.0])
    >>> [round(value, 2) for value in curve.column("relevance")]
    [0.0, 0.19]

    Args:
        joint: p(x, y), ``[x, y]``; rows and columns of probability zero are dropped.
        betas: trade-offs of F = I(X;Z) - beta I(Z;Y). Others write max I(Z;Y) - beta' I(X;Z) with beta' =
            1 / beta.
        rounds: largest number of rounds per trade-off.
    Returns:
        The points, in ascending order of beta, each with a gap of at most 1e-6 nats.
    Raises:
        ValueError: the joint law or the trade-offs are not valid.
        NotConverged: a gap is too large after all rounds.
    """
    law, values = joint_law(joint), trade_offs(betas)
    integers(rounds=rounds)
    encoder, points = torch.eye(len(law), dtype=torch.float64), []
    for beta in reversed(values):
        points.append(solve(law, beta, encoder, rounds=rounds))
        encoder = points[-1].encoder
    return Curve(law, tuple(reversed(points)))


def random_joint(x: int, y: int, generator: Generator, *, concentration: float = 1.0) -> Float[Tensor, "x y"]:
    """Draws a joint law: p(x) from exponential weights, each p(y|x) from exponential weights to the power 1 /
    ``concentration``.

    Raises:
        ValueError: a size is below 2, or the concentration is not positive.
    """
    integers(minimum=2, x=x, y=y)
    positive(concentration=concentration)
    marginal = -torch.rand(x, 1, generator=generator, dtype=torch.float64).clamp(min=1e-12).log()
    weights = -torch.rand(x, y, generator=generator, dtype=torch.float64).clamp(min=1e-12).log()
    # by logarithms relative to the largest one, since high powers of weights are 0 or infinite
    powers = (weights / weights.amax(1, keepdim=True)).log() / concentration
    return marginal / marginal.sum() * powers.softmax(1)
