r"""Gradient descent on attention weights, with normalised or constant steps, batched over independent trials.

Weights W (:class:`State`):

.. math:: W \leftarrow W - \eta\, g / (\|g\|_F + \epsilon), \qquad g = \nabla L(W) + 2\lambda W .

Factors of :math:`W = K Q^\top` (:class:`Factors`) take the same step each with its own norm, :math:`g_K = \nabla L(W)\, Q + 2\lambda K` and
:math:`g_Q = \nabla L(W)^\top K + 2\lambda Q`. With :math:`\epsilon = \lambda = 0` the step is exact to rounding for any norm of the
weights (:mod:`.gradient`). The papers' runs have the rounding unit for both: :math:`\epsilon` stops a run whose gradient underflows, and
the penalty :math:`\lambda(\|K\|_F^2 + \|Q\|_F^2)` is not cosmetic, since the gradient soon is no larger.

Source: the model is that of :cite:t:`tarzanagh2023transformers`; normalised descent is studied by :cite:t:`vasudeva2025implicit`.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from ..problem import Instance
from .factored import plain_factors, step_factors
from .gradient import Gradient
from .heads import HeadInstance
from .losses import LOGISTIC, Loss
from .states import Factors, State, check_state

AnyState = TypeVar("AnyState", State, Factors)


def descent_direction(
    instance: Instance | HeadInstance, W: Float[Tensor, "*trials d d_z"], *, loss: Loss = LOGISTIC
) -> tuple[Float[Tensor, "*trials d d_z"], Float[Tensor, "*trials"]]:
    r"""The negative gradient of the mean loss, as direction and logarithm of its scale: :math:`-\nabla L = e^{C} M`.

    Returns:
        M ``[*trials, d, d_z]`` and C ``[*trials]``; ``M * C.exp()[..., None, None]`` is the negative gradient. M is exact to rounding even
        where the gradient underflows. M = 0 if all scores of each input are equal.
    Raises:
        ValueError: inputs of one token, or all queries of a trial zero.
    """
    shape, data = W.shape, Gradient(instance, loss)
    P, C = data.pulled(data.logits(data.query @ W.reshape(-1, *shape[-2:]).mT))
    return (P.mT @ data.query).reshape(shape), (C - math.log(data.inputs)).reshape(shape[:-2])


def normalised_descent(
    instance: Instance | HeadInstance,
    state: AnyState,
    *,
    steps: int,
    rate: float = 0.1,
    loss: Loss = LOGISTIC,
    eps: float = 0.0,
    penalty: float = 0.0,
) -> AnyState:
    r"""Normalised gradient descent, each trial on its own; on factors if the state holds factors.

    Args:
        steps: how many.
        rate: :math:`\eta`, the length of each step.
        loss: of the prediction, label included.
        eps: :math:`\epsilon`, added to the norm of the gradient: 0 is exact, ``torch.finfo(torch.float64).eps`` as published.
        penalty: :math:`\lambda` of the squared norms in the loss: 0, or the same number on factors as published.
    Returns:
        The state after them; calling again continues exactly where it stopped. Where the gradient is zero the state stays.
    Raises:
        ValueError: ``steps``, ``eps`` or ``penalty`` is negative, ``rate`` not positive, or the state does not belong to the instance.
    """
    check_steps(steps, rate)
    check_state(instance, state)
    if eps < 0 or penalty < 0:
        raise ValueError(f"eps and penalty must be at least 0, got {eps} and {penalty}")
    data = Gradient(instance, loss)
    if isinstance(state, Factors):
        return step_factors(data, state, steps=steps, rate=rate, eps=eps, penalty=penalty)
    W = state.W.reshape(-1, *state.W.shape[-2:]).clone()
    for _ in range(steps):
        P, C = data.pulled(data.logits(data.query @ W.mT))
        M = P.mT @ data.query
        least = data.inputs * eps * (-C).exp() if eps else 0.0
        if penalty:
            M, least = C.exp() * M - 2 * penalty * data.inputs * W, data.inputs * eps
        W.addcmul_(M, rate / (torch.linalg.vector_norm(M, dim=(-2, -1), keepdim=True) + least).clamp_(min=1e-300))
    return replace(state, W=W.reshape(state.W.shape), step=state.step + steps)


def plain_descent(
    instance: Instance | HeadInstance, state: AnyState, *, steps: int, rate: float = 1.0, loss: Loss = LOGISTIC, penalty: float = 0.0
) -> AnyState:
    r"""Gradient descent with a constant step, :math:`W \leftarrow W - \eta g`; the norm then grows only like :math:`\log t`.

    Args and Raises: as :func:`normalised_descent`.
    """
    check_steps(steps, rate)
    check_state(instance, state)
    if penalty < 0:
        raise ValueError(f"penalty must be at least 0, got {penalty}")
    data = Gradient(instance, loss)
    if isinstance(state, Factors):
        return plain_factors(data, state, steps=steps, rate=rate, penalty=penalty)
    W = state.W.reshape(-1, *state.W.shape[-2:]).clone()
    for _ in range(steps):
        P, C = data.pulled(data.logits(data.query @ W.mT))
        if penalty:
            W.mul_(1 - 2 * rate * penalty)
        W.addcmul_(P.mT @ data.query, C.exp() * (rate / data.inputs))
    return replace(state, W=W.reshape(state.W.shape), step=state.step + steps)


def trajectory(
    instance: Instance | HeadInstance,
    state: AnyState,
    *,
    at: Iterable[int],
    rate: float = 0.1,
    loss: Loss = LOGISTIC,
    eps: float = 0.0,
    penalty: float = 0.0,
) -> Iterator[AnyState]:
    """States of :func:`normalised_descent` at the given numbers of steps, which must increase.

    Raises:
        ValueError: a step lies before the previous one, or as :func:`normalised_descent`.
    """
    for step in at:
        if step < state.step:
            raise ValueError(f"steps must increase from {state.step}, got {step}")
        state = normalised_descent(instance, state, steps=step - state.step, rate=rate, loss=loss, eps=eps, penalty=penalty)
        yield state


def check_steps(steps: int, rate: float) -> None:
    """Refuses a negative number of steps and a rate that is not positive.

    Raises:
        ValueError: says what came.
    """
    if steps < 0 or not rate > 0:
        raise ValueError(f"steps must be at least 0 and rate positive, got {steps} and {rate}")
