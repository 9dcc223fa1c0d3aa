r"""Descent with the Polyak step, and the loss above its infimum without cancellation.

.. math:: W \leftarrow W - \eta_k \nabla L(W), \qquad \eta_k = \frac{L(W) - L_\star}{\|\nabla L(W)\|_F^2},
    \qquad L_\star = \frac1n \sum_i \ell(\max_t \gamma_{i,t}),

where :math:`L_\star` is the infimum of the loss if one W can select the optimal tokens
(:cite:t:`vasudeva2025implicit`). For large W, loss and gradient decay at the same rate, so the length of a
step is :math:`\|W_{mm}\|_F` or slightly less. Unlike the length of a normalised step, it depends on the data.

:math:`L - L_\star` is a difference of nearly equal numbers, far below the rounding error of L once attention
is sharp. It is computed as

.. math:: \ell(f_i) - \ell(\gamma_i^\star) = \int_0^{g_i} |\ell'(\gamma_i^\star - u)|\,du, \qquad
    g_i = \gamma_i^\star - f_i = \sum_t s_{i,t} (\gamma_i^\star - \gamma_{i,t}),

which is a sum of positive terms, so that its logarithm is exact to rounding for any norm of W.
"""

import math
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ....core.threads import single_threaded
from ....core.validation import converted, integers, positive
from ..problem import Instance, token_logits
from ..validation import check_finite_weights
from .gradient import Gradient, unit
from .losses import LOGISTIC, Loss, check_loss
from .states import State, check_instance, check_state

# eight nodes integrate the slope to rounding accuracy on an interval of length at most one
_gauss = np.polynomial.legendre.leggauss(8)
NODES, LOG_WEIGHTS = torch.from_numpy((_gauss[0] + 1) / 2), torch.from_numpy(_gauss[1] / 2).log()
RISE_MIN = 1e-250  # smaller differences of losses may have lost digits to underflow


@single_threaded
@converted(float64=("W",))
def log_excess_loss(
    instance: Instance, W: Float[Tensor, "*trials d d_z"], *, loss: Loss = LOGISTIC
) -> Float[Tensor, "*trials"]:
    r"""Computes :math:`\log(L(W) - L_\star)`, exact to rounding however small the difference is.

    Args:
        instance: the problems, one or a batch of trials.
        W: the weights, ``[*trials, d, d_z]``.
        loss: loss of the prediction, label included.
    Returns:
        The logarithm, ``[*trials]``; minus infinity if all tokens of each input have the same score.
    Raises:
        ValueError: W does not belong to the instance or is not finite, inputs have one token, or all queries
            of a trial are zero.
        TypeError: the instance has no scores, or ``loss`` is not a loss.
    """
    check_instance(instance, Instance)
    check_loss(loss)
    check_state(instance, State(W))
    return ExcessLoss(instance, loss)(W)


class ExcessLoss:
    """The function :func:`log_excess_loss` of one instance, prepared for evaluation at many W."""

    def __init__(self, instance: Instance, loss: Loss):
        self.instance, self.loss = instance, loss
        self.best = instance.scores.gather(-1, instance.optimal()[..., None]).squeeze(-1)
        # minus infinity for the best token
        self.log_deficit = (self.best[..., None] - instance.scores).clamp(min=0.0).log()
        self.least, self.log_slope = loss.value(self.best), loss.log_slope(self.best)

    @no_type_check
    def __call__(self, W: Tensor) -> Tensor:
        """Evaluates the function at W ``[*trials, d, d_z]``; returns ``[*trials]``."""
        instance, loss, best = self.instance, self.loss, self.best
        logits = token_logits(instance.tokens, instance.query, W)
        if instance.allowed is not None:
            logits = logits.masked_fill(~instance.allowed, -torch.inf)
        log_gap = (logits.log_softmax(-1) + self.log_deficit).logsumexp(-1)
        gap = log_gap.exp()
        # For gaps below one, the integral is the gap times the mean slope, by Gauss-Legendre quadrature. The
        # sum over the nodes is a log-sum-exp of logarithms of slopes, so it cannot underflow.
        near = log_gap + (
            loss.log_slope(best[..., None] - gap.clamp(max=1.0)[..., None] * NODES) + LOG_WEIGHTS
        ).logsumexp(-1)
        # For larger gaps the two losses differ enough to be subtracted. If the difference underflows, the
        # loss has an exponential tail, where it equals its slope, and the logarithm of the slope is exact:
        # log(l(a) - l(b)) = low + log(1 - e^(log_slope - low)).
        rise, low = loss.value(best - gap) - self.least, loss.log_slope(best - gap)
        tail = low + torch.log1p(-(self.log_slope - low).exp().clamp(max=1.0))
        far = torch.where((rise > RISE_MIN) & rise.isfinite(), rise.log(), tail)
        return torch.where(gap < 1, near, far).logsumexp(-1) - math.log(best.shape[-1])


@single_threaded
@torch.no_grad()
def polyak_descent(
    instance: Instance,
    state: State,
    *,
    steps: int,
    rate: float = 1.0,
    longest: float = 10.0,
    loss: Loss = LOGISTIC,
) -> State:
    r"""Runs gradient descent with the Polyak step, with independent trials.

    Args:
        instance, state: as in :func:`~.descent.normalised_descent`; the state holds weights, and the instance
            has scores.
        steps: number of steps.
        rate: factor of the step size :math:`\eta_k`.
        longest: upper bound of the length of a step. It matters only if the gradient vanishes while the loss
            stays above :math:`L_\star`: near the selection of tokens that are not optimal, and at saddles.
        loss: loss of the prediction, label included.
    Returns:
        The state after these steps; another call continues exactly from it.
    Raises:
        ValueError: as for :func:`~.descent.normalised_descent`, or ``longest`` is not positive and finite.
        TypeError: as for :func:`~.descent.normalised_descent`, or the state holds factors, or the instance
            has no scores.
    """
    integers(minimum=0, steps=steps)
    positive(rate=rate, longest=longest)
    check_instance(instance, Instance)
    check_state(instance, state, State)
    data, W = Gradient(instance, loss), state.W
    log_excess = ExcessLoss(instance, loss)
    # The length of a step is (L - L*) / |grad L|. For large W both underflow, so the difference of their
    # logarithms is computed first.
    for _ in range(steps):
        M, scale = data.descent(W)
        direction, log_size = unit(M)
        length = (log_excess(W) - scale - log_size[..., 0, 0]).exp().mul(rate).clamp(max=longest)
        W = W + direction * length[..., None, None]
    end = State(W, state.step + steps)
    check_finite_weights(end.step, W=end.W)
    return end
