r"""Descent with the Polyak step, and the loss above its infimum without cancellation.

.. math:: W \leftarrow W - \eta_k \nabla L(W), \qquad \eta_k = \frac{L(W) - L_\star}{\|\nabla L(W)\|_F^2},
    \qquad L_\star = \frac1n \sum_i \ell(\max_t \gamma_{i,t}),

the infimum of the loss if the optimal tokens can be selected (:cite:t:`vasudeva2025implicit`). Far out, loss and gradient decay alike, so
the step has a length of :math:`\|W_{mm}\|_F` or a little less: unlike a normalised step, its length depends on the data.

:math:`L - L_\star` is a difference of nearly equal numbers, far below the rounding error of L once attention is sharp. Here it is

.. math:: \ell(f_i) - \ell(\gamma_i^\star) = \int_0^{g_i} |\ell'(\gamma_i^\star - u)|\,du, \qquad
    g_i = \gamma_i^\star - f_i = \sum_t s_{i,t} (\gamma_i^\star - \gamma_{i,t}),

a sum of positive terms whose logarithm is exact for any norm of W.
"""

import math
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ....core.parallel import single_threaded
from ....core.validation import converted, integers, positive
from ..problem import Instance, token_logits
from .gradient import Gradient, unit
from .losses import LOGISTIC, Loss, check_loss
from .states import State, check_instance, check_state

_gauss = np.polynomial.legendre.leggauss(8)  # on an interval shorter than one, eight nodes integrate the slope to rounding
NODES, LOG_WEIGHTS = torch.from_numpy((_gauss[0] + 1) / 2), torch.from_numpy(_gauss[1] / 2).log()
RISE_MIN = 1e-250  # smaller differences of losses have lost digits to underflow


@single_threaded
@converted(float64=("W",))
def log_excess_loss(instance: Instance, W: Float[Tensor, "*trials d d_z"], *, loss: Loss = LOGISTIC) -> Float[Tensor, "*trials"]:
    r""":math:`\log(L(W) - L_\star)`, exact to rounding however small the difference.

    Args:
        instance: the problems, one or a batch of trials.
        W: the weights.
        loss: of the prediction, label included.
    Returns:
        The logarithm; minus infinity if all tokens of each input have the same score.
    Raises:
        ValueError: W does not belong to the instance or is not finite; inputs of one token, or a trial of zero queries.
        TypeError: an instance without scores, or no loss.
    """
    check_instance(instance, Instance)
    check_loss(loss)
    check_state(instance, State(W))
    return ExcessLoss(instance, loss)(W)


class ExcessLoss:
    """:func:`log_excess_loss` of one instance, for many W."""

    def __init__(self, instance: Instance, loss: Loss):
        self.instance, self.loss = instance, loss
        self.best = instance.scores.gather(-1, instance.optimal()[..., None]).squeeze(-1)
        self.log_deficit = (self.best[..., None] - instance.scores).clamp(min=0.0).log()  # minus infinity for the best token
        self.least, self.log_slope = loss.value(self.best), loss.log_slope(self.best)

    @no_type_check
    def __call__(self, W: Tensor) -> Tensor:
        """``[*trials, d, d_z]`` -> ``[*trials]``."""
        instance, loss, best = self.instance, self.loss, self.best
        logits = token_logits(instance.tokens, instance.query, W)
        if instance.allowed is not None:
            logits = logits.masked_fill(~instance.allowed, -torch.inf)
        log_gap = (logits.log_softmax(-1) + self.log_deficit).logsumexp(-1)
        gap = log_gap.exp()
        # Gaps below one: the gap times the mean slope over it, by Gauss-Legendre quadrature. The sum over the nodes is a log-sum-exp of
        # logarithms of slopes, so it cannot underflow.
        near = log_gap + (loss.log_slope(best[..., None] - gap.clamp(max=1.0)[..., None] * NODES) + LOG_WEIGHTS).logsumexp(-1)
        # Larger gaps: the two losses differ enough to be subtracted. Where the difference underflows, the loss has an exponential tail and
        # equals its slope, whose logarithm is known: log(l(a) - l(b)) = low + log(1 - e^(log_slope - low)).
        rise, low = loss.value(best - gap) - self.least, loss.log_slope(best - gap)
        tail = low + torch.log1p(-(self.log_slope - low).exp().clamp(max=1.0))
        far = torch.where((rise > RISE_MIN) & rise.isfinite(), rise.log(), tail)
        return torch.where(gap < 1, near, far).logsumexp(-1) - math.log(best.shape[-1])


@single_threaded
@torch.no_grad()
def polyak_descent(
    instance: Instance, state: State, *, steps: int, rate: float = 1.0, longest: float = 10.0, loss: Loss = LOGISTIC
) -> State:
    r"""Gradient descent with the Polyak step, each trial on its own.

    Args:
        instance, state: as in :func:`~.descent.normalised_descent`, on weights and with scores.
        steps: number of steps.
        rate: a factor of the step size :math:`\eta_k`.
        longest: the largest length of a step. It matters only where the loss stays above :math:`L_\star` while the gradient vanishes: near
            tokens that are not optimal, and at saddles.
        loss: of the prediction, label included.
    Returns:
        The state after these steps; another call continues exactly from it.
    Raises:
        ValueError: ``longest`` is not positive and finite, or as :func:`~.descent.normalised_descent`.
        TypeError: as there, the state holds factors, or the instance has no scores but another head.
    """
    integers(minimum=0, steps=steps)
    positive(rate=rate, longest=longest)
    check_instance(instance, Instance)
    check_state(instance, state, State)
    data, W = Gradient(instance, loss), state.W
    log_excess = ExcessLoss(instance, loss)
    # Step length: (L - L*) / |grad L|. Both underflow far out, so their logarithms are subtracted first.
    for _ in range(steps):
        M, scale = data.descent(W)
        direction, log_size = unit(M)
        length = (log_excess(W) - scale - log_size[..., 0, 0]).exp().mul(rate).clamp(max=longest)
        W = W + direction * length[..., None, None]
    end = State(W, state.step + steps)
    check_state(instance, end)
    return end
