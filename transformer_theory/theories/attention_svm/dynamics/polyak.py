r"""Descent with the Polyak step, and the loss above its infimum without cancellation.

.. math:: W \leftarrow W - \eta_k \nabla L(W), \qquad \eta_k = \frac{L(W) - L_\star}{\|\nabla L(W)\|_F^2},
    \qquad L_\star = \frac1n \sum_i \ell(\max_t \gamma_{i,t}),

the infimum of the loss if the optimal tokens can be selected. Far out, loss and gradient fall alike, so that the step has a length of
:math:`\|W_{mm}\|_F` or a little less: longer or shorter than a normalised step, as the data ask.

:math:`L - L_\star` is a difference of nearly equal numbers, far below the rounding error of L once attention is sharp. Here it is

.. math:: \ell(f_i) - \ell(\gamma_i^\star) = \int_0^{g_i} |\ell'(\gamma_i^\star - u)|\,du, \qquad
    g_i = \gamma_i^\star - f_i = \sum_t s_{i,t} (\gamma_i^\star - \gamma_{i,t}),

a sum of positive terms whose logarithm is exact for any norm of W.

Source: the step size for attention is studied by :cite:t:`vasudeva2025implicit`.
"""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..problem import Instance, token_logits
from .descent import check_steps, descent_direction, unit
from .losses import LOGISTIC, Loss
from .states import State, check_state

_gauss = np.polynomial.legendre.leggauss(8)  # for the mean slope over a gap of less than one: exact to rounding
NODES, WEIGHTS = torch.from_numpy((_gauss[0] + 1) / 2), torch.from_numpy(_gauss[1] / 2)


def log_excess_loss(instance: Instance, W: Float[Tensor, "*trials d d_z"], *, loss: Loss = LOGISTIC) -> Float[Tensor, "*trials"]:
    r""":math:`\log(L(W) - L_\star)`, exact to rounding however small the difference.

    Minus infinity if all tokens of each input have the same score.
    """
    best = instance.scores.gather(-1, instance.optimal()[..., None])
    logits = token_logits(instance.tokens, instance.query, W)
    if instance.allowed is not None:
        logits = logits.masked_fill(~instance.allowed, -torch.inf)
    log_gap = (logits.log_softmax(-1) + (best - instance.scores).clamp(min=0.0).log()).logsumexp(-1)
    gap = log_gap.exp()
    best = best.squeeze(-1)
    near = log_gap + (loss.log_slope(best[..., None] - gap.clamp(max=1.0)[..., None] * NODES) + WEIGHTS.log()).logsumexp(-1)
    rise, low, high = loss.value(best - gap) - loss.value(best), *(loss.log_slope(f) for f in (best - gap, best))
    tail = low + torch.log1p(-(high - low).exp().clamp(max=1.0))  # where the loss is as good as its slope: exponential tails
    far = torch.where((rise > 1e-250) & rise.isfinite(), rise.log(), tail)
    return torch.where(gap < 1, near, far).logsumexp(-1) - math.log(best.shape[-1])


def polyak_descent(
    instance: Instance, state: State, *, steps: int, rate: float = 1.0, longest: float = 10.0, loss: Loss = LOGISTIC
) -> State:
    r"""Gradient descent with the Polyak step, each trial on its own.

    Args:
        steps: how many.
        rate: a factor of the step size :math:`\eta_k`.
        longest: the most that W may move in one step. A step is as long as that only where the loss stays above :math:`L_\star` while
            the gradient vanishes: near tokens that are not optimal, and at saddles.
        loss: of the prediction, label included.
    Returns:
        The state after them; calling again continues exactly where it stopped.
    Raises:
        ValueError: ``steps`` is negative, ``rate`` or ``longest`` not positive, or the state does not belong to the instance.

    Source: :cite:t:`vasudeva2025implicit`.
    """
    check_steps(steps, rate)
    if not longest > 0:
        raise ValueError(f"longest must be positive, got {longest}")
    check_state(instance, state)
    W = state.W
    for _ in range(steps):
        M, scale = descent_direction(instance, W, loss=loss)
        along, log_size = unit(M)
        length = (log_excess_loss(instance, W, loss=loss) - scale - log_size[..., 0, 0]).exp().mul(rate).clamp(max=longest)
        W = W + along * length[..., None, None]
    return State(W, state.step + steps)
