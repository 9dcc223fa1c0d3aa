r"""How descent on the factors of :math:`W = K Q^\top` keeps them balanced, and where a penalty stops it.

Let :math:`M = -\nabla L(W)`. The negative gradients are :math:`M Q` for K and :math:`M^\top K` for Q. The
nuclear norm enters through
:math:`\|K\|_F^2 + \|Q\|_F^2 \ge 2 \|K Q^\top\|_*`, with equality if and only if the *imbalance* :math:`K^\top
K - Q^\top Q` is zero.

**One common norm.** Both factors take a step of the same multiple of the gradient, :math:`\alpha = \eta / N`
with :math:`N^2 = \|M Q\|_F^2 + \|M^\top K\|_F^2`. The terms of first order cancel in the imbalance:

.. math:: \Delta (K^\top K - Q^\top Q) = \alpha^2 (Q^\top M^\top M Q - K^\top M M^\top K), \qquad
    \|\Delta (K^\top K - Q^\top Q)\|_* \le \eta^2 .

After k steps the imbalance has changed by at most :math:`\eta^2 k`, whatever the data.

**Separate norms.** The multiples are :math:`\alpha = \eta / \|M Q\|_F` and :math:`\beta = \eta / \|M^\top
K\|_F`, and a term of first order remains, :math:`(\alpha - \beta)(A + A^\top)` with :math:`A = K^\top M Q`.
Summed over the steps, K follows :math:`\sum \alpha M` and Q follows :math:`\sum \beta M`. These are parallel
while the gradient turns slowly, since :math:`\alpha / \beta` is then constant. A step changes the logits by
about :math:`\eta \|K\|`, which grows with k, at most like :math:`\eta^2 k`. Once it is of order one, not
before about :math:`1/\eta^2` steps, the gradient jumps from one active constraint to another. In the runs
:math:`\alpha / \beta` jumps with it, so the two sums differ, the imbalance keeps growing relative to W, and
the direction of W stays away from the nuclear solution. Which problem that direction solves is open.

**Penalty.** With :math:`\lambda(\|K\|_F^2 + \|Q\|_F^2)` in the loss, stationary points satisfy :math:`M Q =
2\lambda K` and :math:`M^\top K = 2\lambda Q`. Then :math:`K^\top K = Q^\top Q`, and M maps each right
singular vector of W with a positive singular value to :math:`2\lambda` times the left one, so the gradient
does not vanish unless W = 0. W is a stationary point of :math:`L(W) + 2\lambda\|W\|_*` if also :math:`\|M\|_2
\le 2\lambda`.
The equations do not imply this: K = Q = 0 satisfies them for every M, and factors with few columns can
satisfy them at a W where a larger singular value of M lies outside the span of W. These derivations are this
library's own; the runs with separate norms and with the penalty are those of
:cite:t:`tarzanagh2023transformers`.
"""

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from ...core.threads import single_threaded
from ...core.validation import integers, positive
from .dynamics import LOGISTIC, Factors, HeadInstance, Loss, descent_direction
from .dynamics.descent import NORM_FLOOR
from .dynamics.gradient import Gradient
from .dynamics.states import check_state
from .problem import Instance
from .validation import check_finite_weights


def common_norm_descent(
    instance: Instance | HeadInstance, state: Factors, *, steps: int, rate: float = 0.1, loss: Loss = LOGISTIC
) -> Factors:
    r"""Runs normalised gradient descent on K and Q with one common norm: :math:`\|\Delta K\|_F^2 + \|\Delta
    Q\|_F^2 = \eta^2`.

    :func:`~.dynamics.normalised_descent` divides each factor's gradient by its own norm, as the published
    runs do.

    Args:
        instance: the problems, one or a batch of trials.
        state: the first factors, for example from :func:`~.dynamics.random_factors`.
        steps: number of steps.
        rate: :math:`\eta`, the length of the joint step.
        loss: loss of the prediction, label included.
    Returns:
        The factors after these steps. If the gradient is zero, they do not change.
    Raises:
        ValueError: ``steps`` is negative, ``rate`` is not positive and finite, the state does not belong to
            the instance, or data are out of range, or the factors overflow.
        TypeError: an argument has the wrong type.
    """
    integers(minimum=0, steps=steps)
    check_state(instance, state, Factors)
    return next(common_norm_trajectory(instance, state, steps=(state.step + steps,), rate=rate, loss=loss))


def common_norm_trajectory(
    instance: Instance | HeadInstance,
    state: Factors,
    *,
    steps: Iterable[int],
    rate: float = 0.1,
    loss: Loss = LOGISTIC,
) -> Iterator[Factors]:
    """Yields states of :func:`common_norm_descent` after the numbers of steps in ``steps``, counted from step
    0 of the first run.

    Args:
        steps: numbers of steps after which a state is returned, increasing from ``state.step``; read lazily.
        instance, state, rate, loss: as in :func:`common_norm_descent`.
    Raises:
        ValueError, TypeError: as for :func:`common_norm_descent`, or a number of steps is smaller than the
            previous one.
    """
    positive(rate=rate)
    check_state(instance, state, Factors)
    data, current = Gradient(instance, loss), state.step
    K, Q = state.K.detach().clone(), state.Q.detach().clone()

    @single_threaded
    @torch.no_grad()
    def advance(steps: int) -> None:
        for _ in range(steps):
            # the negative gradient up to a positive factor per trial, which the norm removes
            M, _ = data.descent(K @ Q.mT)
            to_K, to_Q = M @ Q, M.mT @ K
            square = to_K.square().sum((-2, -1), keepdim=True) + to_Q.square().sum((-2, -1), keepdim=True)
            length = rate / square.sqrt().clamp_(min=NORM_FLOOR)
            K.addcmul_(to_K, length)
            Q.addcmul_(to_Q, length)

    for step in steps:
        integers(minimum=0, steps=step)
        if step < current:
            raise ValueError(f"steps must increase from {current}, got {step}")
        advance(step - current)
        current = step
        check_finite_weights(step, K=K, Q=Q)
        yield Factors(K.clone(), Q.clone(), step)


def imbalance(state: Factors) -> Float[Tensor, "*trials width width"]:
    r"""Returns :math:`K^\top K - Q^\top Q`. It is zero if and only if :math:`\|K\|_F^2 + \|Q\|_F^2 = 2\|K
    Q^\top\|_*`.
    """
    return state.K.mT @ state.K - state.Q.mT @ state.Q


def penalised_residual(
    instance: Instance | HeadInstance, state: Factors, *, penalty: float, loss: Loss = LOGISTIC
) -> Float[Tensor, "*trials"]:
    r"""Returns the gradient of :math:`L + \lambda(\|K\|_F^2 + \|Q\|_F^2)` relative to the gradient of the
    penalty alone.

    Args:
        instance: the problems, one or a batch of trials.
        state: the factors.
        penalty: :math:`\lambda`, positive.
        loss: loss of the prediction, label included.
    Returns:
        :math:`(\|M Q - 2\lambda K\|_F^2 + \|M^\top K - 2\lambda Q\|_F^2)^{1/2} / (2\lambda (\|K\|_F^2 +
        \|Q\|_F^2)^{1/2})`, ``[*trials]``: 0 at a stationary point, near 1 where the penalty outweighs the
        loss.
    Raises:
        ValueError: ``penalty`` is not positive, or the state does not belong to the instance.
        TypeError: an argument has the wrong type.
    """
    positive(penalty=penalty)
    check_state(instance, state, Factors)
    direction, log_scale = descent_direction(instance, state.W, loss=loss)
    M = direction * log_scale.exp()[..., None, None] / (2 * penalty)
    K_residual, Q_residual = M @ state.Q - state.K, M.mT @ state.K - state.Q
    residual = torch.hypot(torch.linalg.matrix_norm(K_residual), torch.linalg.matrix_norm(Q_residual))
    return residual / torch.hypot(torch.linalg.matrix_norm(state.K), torch.linalg.matrix_norm(state.Q))
