r"""Gradient descent on attention weights, with normalised or constant steps, batched over independent trials.

Weights W (:class:`State`):

.. math:: W \leftarrow W - \eta\, g / (\|g\|_F + \epsilon), \qquad g = \nabla L(W) + 2\lambda W .

Factors of :math:`W = K Q^\top` (:class:`Factors`) take the same step each with its own norm, :math:`g_K = \nabla L(W)\, Q + 2\lambda K` and
:math:`g_Q = \nabla L(W)^\top K + 2\lambda Q`. With :math:`\epsilon = \lambda = 0` the step is exact to rounding for any norm of the
weights (:mod:`.gradient`). The runs of :cite:t:`tarzanagh2023transformers` have the rounding unit for both: :math:`\epsilon` stops a run
whose gradient underflows, and the penalty :math:`\lambda(\|K\|_F^2 + \|Q\|_F^2)` matters, since the gradient soon is no larger. Normalised
descent is studied by :cite:t:`vasudeva2025implicit`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

from ....core.parallel import single_threaded
from ....core.validation import converted, integers, positive
from ..problem import Instance
from ..validation import check_nonnegative
from .gradient import Gradient
from .heads import HeadInstance
from .losses import LOGISTIC, Loss
from .spaces import space
from .states import Factors, State, check_state

AnyState = TypeVar("AnyState", State, Factors)

NORM_FLOOR = 1e-150  # added to norms: squares of less than 1e-162 underflow, and a direction that small must not become a long step
STATIONARY_RTOL = 1e-14  # of the sum of the norms of its terms: a gradient up to this is zero up to rounding


@single_threaded
@converted(float64=("W",))
def descent_direction(
    instance: Instance | HeadInstance, W: Float[Tensor, "*trials d d_z"], *, loss: Loss = LOGISTIC
) -> tuple[Float[Tensor, "*trials d d_z"], Float[Tensor, "*trials"]]:
    r"""The negative gradient of the mean loss, as direction and logarithm of its scale: :math:`-\nabla L = e^{C} M`.

    Returns:
        M ``[*trials, d, d_z]`` and C ``[*trials]``; ``M * C.exp()[..., None, None]`` is the negative gradient. M is exact to rounding even
        where the gradient underflows. M = 0 if all scores of each input are equal.
    Raises:
        ValueError: inputs of one token, all queries of a trial zero, or data out of range (:func:`~.gradient.check_scale`).
        TypeError: no instance, or no loss.
    """
    data = Gradient(instance, loss)
    check_state(instance, State(W))
    return data.descent(W)


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
        instance: the problems, one or a batch of trials.
        state: the start: :func:`~.states.start`, a random start, or what an earlier run returned.
        steps: number of steps.
        rate: :math:`\eta`, the length of each step.
        loss: of the prediction, label included.
        eps: :math:`\epsilon`, added to the norm of the gradient: 0 is exact, ``torch.finfo(torch.float64).eps`` as published.
        penalty: :math:`\lambda` of the squared norms in the loss: 0, or the same number on factors as published.
    Returns:
        The state after these steps; another call continues exactly from it. Where the gradient is zero the weights do not change.
    Raises:
        ValueError: ``steps`` is negative, ``rate`` not positive and finite, ``eps`` or ``penalty`` negative or not finite; the state does
            not belong to the instance; inputs of one token, a trial of zero queries, or data out of range
            (:func:`~.gradient.check_scale`); or the weights overflow.
        TypeError: an argument of another type.
    """
    integers(minimum=0, steps=steps)
    check_state(instance, state)
    return next(trajectory(instance, state, steps=(state.step + steps,), rate=rate, loss=loss, eps=eps, penalty=penalty))


def plain_descent(
    instance: Instance | HeadInstance, state: AnyState, *, steps: int, rate: float = 1.0, loss: Loss = LOGISTIC, penalty: float = 0.0
) -> AnyState:
    r"""Gradient descent with a constant step, :math:`W \leftarrow W - \eta g`; the norm then grows only like :math:`\log t`.

    Args:
        instance, state, steps, loss, penalty: as in :func:`normalised_descent`.
        rate: :math:`\eta`, the factor of the gradient.
    Returns:
        The state after these steps; another call continues exactly from it.
    Raises:
        ValueError, TypeError: as :func:`normalised_descent`. With a rate that is too large, the weights overflow sooner or later.
    """
    integers(minimum=0, steps=steps)
    positive(rate=rate)
    check_state(instance, state)
    factor = torch.tensor(rate / instance.tokens.shape[-3], dtype=torch.float64)
    return next(_run(instance, state, (state.step + steps,), loss, penalty, lambda _, C: factor if C is None else factor * C.exp()))


def trajectory(
    instance: Instance | HeadInstance,
    state: AnyState,
    *,
    steps: Iterable[int],
    rate: float = 0.1,
    loss: Loss = LOGISTIC,
    eps: float = 0.0,
    penalty: float = 0.0,
) -> Iterator[AnyState]:
    """States of :func:`normalised_descent` at the given numbers of steps, counted from the first run's start.

    Args:
        steps: the numbers of steps after which a state is returned, in increasing order from ``state.step``; read one at a time.
        instance, state, rate, loss, eps, penalty: as in :func:`normalised_descent`.
    Returns:
        An iterator over the states. Nothing is computed or checked before the first state is requested.
    Raises:
        ValueError: a number of steps is smaller than the previous one, or as :func:`normalised_descent`.
        TypeError: as :func:`normalised_descent`.
    """
    positive(rate=rate)
    check_nonnegative(eps=eps)
    check_state(instance, state)
    # ``size`` is the norm of n e^-C times the gradient, so eps becomes n e^-C eps in the same unit. C is about -|W| times the margin: once
    # e^-C overflows, n e^-C eps is infinite and the step zero, as it should be.
    rate_tensor, least = torch.tensor(rate, dtype=torch.float64), eps * instance.tokens.shape[-3]

    @no_type_check
    def length(size: Tensor, C: Tensor | None) -> Tensor:
        if C is None or not eps:
            return rate_tensor / size.add_(max(least, NORM_FLOOR))
        return rate_tensor / (-C).exp().mul_(least).add(size).clamp_(min=NORM_FLOOR)

    yield from _run(instance, state, steps, loss, penalty, length)


@torch.no_grad()
def _run(
    instance: Instance | HeadInstance,
    state: AnyState,
    steps: Iterable[int],
    loss: Loss,
    penalty: float,
    length: Callable[[Tensor, Tensor | None], Tensor],
) -> Iterator[AnyState]:
    """Descent with steps of any length.

    Args:
        steps: numbers of steps after which a state is returned.
        length: the factor of the direction, given its norm ``[trials, 1, 1]`` and the logarithm C of its scale (None for 0).
    """
    check_nonnegative(penalty=penalty)
    data, now = Gradient(instance, loss), state.step
    place = space(data, state, penalty)

    # Only the inner function is single-threaded: around the generator, the setting would stay active while the caller works with a state.
    @single_threaded
    @no_type_check
    def advance(steps: int) -> None:
        with torch.inference_mode(isinstance(instance, Instance)):  # cheaper than no_grad; other heads may differentiate
            for _ in range(steps):
                c, C = data.coefficients(place.logits())
                place.move(length(*place.aim(c, C)))

    for step in steps:
        integers(minimum=0, steps=step)
        if step < now:
            raise ValueError(f"steps must increase from {now}, got {step}")
        advance(step - now)
        now = step
        state_now = place.state(step)
        check_state(instance, state_now)  # constant steps can overflow
        yield state_now  # pyright: ignore[reportReturnType]


@single_threaded
@torch.no_grad()
@converted(float64=("W",))
def is_stationary(instance: Instance | HeadInstance, W: Tensor, *, loss: Loss = LOGISTIC) -> bool:
    """Whether the gradient at W ``[d, d_z]`` is zero up to rounding: its terms cancel to 1e-14 of the sum of their norms.

    Normalised descent would turn the rounding into full steps, in a direction that depends on the processor.

    Raises:
        ValueError: as :func:`descent_direction`.
    """
    data = Gradient(instance, loss)
    c, _ = data.coefficients(data.logits(data.query @ W.mT))
    terms = c.abs()[..., None] * data.tokens.norm(dim=-1, keepdim=True) * data.query.norm(dim=-1)[..., None, None]
    return bool((data.pulled(c).mT @ data.query).norm() <= STATIONARY_RTOL * terms.sum())
