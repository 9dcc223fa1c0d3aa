r"""The smallest trade-off at which a bottleneck keeps anything.

By lower convex envelopes, :math:`\min F < 0` exactly if some posterior q over x has :math:`G(q) =
\mathrm{KL}(q \| p_X) - \beta\, \mathrm{KL}(q C \| p_Y) < 0` with C = p(y|x): p(x) is the mean of the
posteriors of an encoder, G is 0 with zero slope there, and a rare code word with posterior q costs G(q) per
unit of mass. So the onset is :math:`1 / \eta`, with the strong data-processing constant

.. math:: \eta_{KL} = \sup_{q \neq p_X} \frac{\mathrm{KL}(q C \| p_Y)}{\mathrm{KL}(q \| p_X)} \ge \sigma_2^2 .

:math:`\sigma_2` is the second singular value of :math:`D_x^{-1/2} P D_y^{-1/2}`; its square is the ratio for
q near p_X. Where the two differ, the first code word appears with a posterior far from p_X: the transition is
of first order. Source: :cite:t:`ahlswede1976spreading` (the constant), :cite:t:`anantharam2013maximal` (it
exceeds the square of the correlation).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...core.validation import as_float64, integers
from .information import SUM_ATOL, divergence, joint_law

STARTS, STEPS = 64, 400  # random starts, and steps from each
NONE = 1e-11  # a smaller constant is rounding: the variables are independent
# posteriors with a smaller divergence from p_X count as p_X: the ratio is then its second-order value
NEAR = 1e-8


@dataclass(frozen=True)
class Onset:
    """The onset of the bottleneck.

    Attributes:
        eta: strong data-processing constant: the largest ratio that was found, at least ``correlation``.
        correlation: square of the second singular value.
        posterior: q with the largest ratio, ``[x]``; p(x) if the supremum is at p(x).
    """

    eta: float
    correlation: float
    posterior: Float[Tensor, " x"]

    @property
    def beta(self) -> float:
        """1 / eta; infinite for independent variables."""
        return 1 / self.eta if self.eta > 0 else float("inf")

    @property
    def local_beta(self) -> float:
        """1 / sigma_2^2, the trade-off at which the trivial encoder stops to be a local minimum."""
        return 1 / self.correlation if self.correlation > 0 else float("inf")


def second_correlation(joint: Float[Tensor, "x y"]) -> float:
    """Returns the square of the second singular value of D_x^(-1/2) P D_y^(-1/2)."""
    scaled = joint / (joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)).sqrt()
    return float(torch.linalg.svdvals(scaled)[1].square())


def ratio(joint: Float[Tensor, "x y"], posteriors: Float[Tensor, "s x"]) -> Float[Tensor, " s"]:
    """Returns KL(qC || p_Y) / KL(q || p_X) for each posterior, 0 where q is p_X up to rounding, ``[s]``."""
    marginal = joint.sum(1)
    above = divergence(posteriors @ (joint / marginal[:, None]), joint.sum(0)[None])
    below = divergence(posteriors, marginal[None])
    return torch.where(below > NEAR, above / below, 0.0)


def onset(joint, *, starts: int = STARTS, steps: int = STEPS) -> Onset:
    r"""Computes the onset of a joint law by ascent from many starts.

    One step takes beta = 1 / ratio(q) and minimises a majorant of G:
    :math:`q' \propto p(x) \exp(\beta \sum_y C_{xy} \log \frac{(qC)_y}{p_Y(y)})`. So no step lowers the ratio
    (Dinkelbach). The starts are all corners, both directions of the second singular vector, and ``starts``
    tilted laws. The supremum is the largest value found: a lower bound on eta.

    Args:
        joint: p(x, y), ``[x, y]``.
        starts: number of random starts.
        steps: number of steps from each.
    Raises:
        ValueError: the joint law is not valid, or a number is negative, or zero steps are asked for.
    """
    integers(minimum=0, starts=starts)
    integers(steps=steps)
    law = joint_law(joint)
    marginal, correlation = law.sum(1), second_correlation(law)
    channel = law / marginal[:, None]
    scaled = law / (marginal[:, None] * law.sum(0)).sqrt()
    vector = torch.linalg.svd(scaled, full_matrices=False).U[:, 1]
    direction = vector * marginal.sqrt()  # sums to zero
    local = torch.stack(
        [marginal + sign * scale * direction for sign in (-1, 1) for scale in (0.3, 1.0)]
    ).clamp(min=1e-9)
    z = torch.randn(starts, len(law), generator=Generator().manual_seed(0), dtype=torch.float64)
    tilted = marginal * (2 * z).exp()
    corners = 0.98 * torch.eye(len(law), dtype=torch.float64) + 0.02 * marginal
    q = torch.cat([corners, local / local.sum(1, keepdim=True), tilted / tilted.sum(1, keepdim=True)])
    best, found = correlation, marginal
    for _ in range(steps):
        values = ratio(law, q)
        if float(values.max()) > best:
            best, found = float(values.max()), q[values.argmax()]
        beta = 1 / values.clamp(min=1e-12)
        q = (marginal.log() + beta[:, None] * ((q @ channel).log() - law.sum(0).log()) @ channel.T).softmax(1)
    if best < NONE:
        return Onset(0.0, 0.0, marginal)
    return Onset(min(best, 1.0), correlation, found)


def rare_cluster(
    joint: Float[Tensor, "x y"], posterior: Float[Tensor, " x"], mass: float
) -> Float[Tensor, "x 2"]:
    """Returns the encoder with a code word of probability ``mass`` and the given posterior, and one with the
    rest, ``[x, 2]``.

    Raises:
        ValueError: the mass is not in (0, min_x p(x) / q(x)], or the posterior is no law of x.
    """
    joint, posterior = as_float64("joint", joint), as_float64("posterior", posterior)
    if (
        posterior.shape != joint.shape[:1]
        or bool((posterior < 0).any())
        or not abs(float(posterior.sum()) - 1) <= SUM_ATOL
    ):
        raise ValueError(
            f"expected a posterior of {joint.shape[0]} probabilities that sum to 1, got "
            f"{list(posterior.shape)}; normalise it"
        )
    marginal = joint.sum(1)
    largest = float((marginal / posterior.clamp(min=1e-300)).min())
    if not 0 < mass <= largest:
        raise ValueError(
            f"expected a mass in (0, {largest:.3g}], got {mass}; the rest must have non-negative "
            "probabilities"
        )
    share = mass * posterior / marginal
    return torch.stack([share, 1 - share], dim=1)
