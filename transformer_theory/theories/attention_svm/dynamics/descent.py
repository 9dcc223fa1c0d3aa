r"""Gradient descent on attention weights, with normalised or constant steps, batched over independent trials.

Weights W (:class:`State`):

.. math:: W \leftarrow W - \eta\, g / (\|g\|_F + \epsilon), \qquad g = \nabla L(W) + 2\lambda W .

The factors of :math:`W = K Q^\top` (:class:`Factors`) each take such a step, normalised separately, with
:math:`g_K = \nabla L(W)\, Q + 2\lambda K` and :math:`g_Q = \nabla L(W)^\top K + 2\lambda Q`. With
:math:`\epsilon = \lambda = 0` the step is exact to rounding for any norm of the weights (:mod:`.gradient`).
In the runs of :cite:t:`tarzanagh2023transformers` both are the rounding unit. Then :math:`\epsilon` stops a
run once the gradient is smaller, and the penalty :math:`\lambda(\|K\|_F^2 + \|Q\|_F^2)` matters, since the
gradient soon becomes as small. :cite:t:`vasudeva2025implicit` study normalised descent.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

from ....core.threads import single_threaded
from ....core.validation import converted, integers, positive
from ..problem import Instance
from ..validation import check_finite_weights, check_nonnegative
from .gradient import Gradient
from .heads import HeadInstance
from .losses import LOGISTIC, Loss
from .spaces import parts
from .states import Factors, State, check_state, joined

AnyState = TypeVar("AnyState", State, Factors)

# added to norms: squares below 1e-323 underflow, and so small a direction must not become a step of full
# length
NORM_FLOOR = 1e-150
# a gradient up to this share of the sum of the norms of its terms is zero up to rounding
STATIONARY_RTOL = 1e-14


@single_threaded
@converted(float64=("W",))
def descent_direction(
    instance: Instance | HeadInstance, W: Float[Tensor, "*trials d d_z"], *, loss: Loss = LOGISTIC
) -> tuple[Float[Tensor, "*trials d d_z"], Float[Tensor, "*trials"]]:
    r"""Computes the negative gradient of the mean loss as a direction and the logarithm of its scale:
    :math:`-\nabla L = e^{C} M`.

    Args:
        instance: the problems, one or a batch of trials.
        W: the weights, ``[*trials, d, d_z]``.
        loss: loss of the prediction, label included.
    Returns:
        M ``[*trials, d, d_z]`` and C ``[*trials]``; ``M * C.exp()[..., None, None]`` is the negative
        gradient. M is exact to rounding even if the gradient underflows. M = 0 if all scores of each input
        are equal.
    Raises:
        ValueError: inputs have one token, all queries of a trial are zero, or data are out of range
            (:func:`~.gradient.check_scale`).
        TypeError: ``instance`` or ``loss`` has the wrong type.
    """
    data = Gradient(instance, loss)
    check_state(instance, State(W))
    return data.descent(W)


@single_threaded
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
    r"""Runs normalised gradient descent with independent trials, on W or on factors, whichever the state
    holds.

    Args:
        instance: the problems, one or a batch of trials.
        state: the first state: :func:`~.states.start`, a random start, or the result of an earlier run.
        steps: number of steps.
        rate: :math:`\eta`, the length of each step.
        loss: loss of the prediction, label included.
        eps: :math:`\epsilon`, added to the norm of the gradient; steps are exact for 0. The published runs
            use ``torch.finfo(torch.float64).eps``.
        penalty: :math:`\lambda`, the factor of the squared norms in the loss. The published runs on factors
            use the same number as for ``eps``.
    Returns:
        The state after these steps; another call continues exactly from it. If the gradient is zero, the
        weights do not change.
    Raises:
        ValueError: ``steps`` is negative, ``rate`` is not positive and finite, or ``eps`` or ``penalty`` is
            negative or not finite; the state does not belong to the instance; inputs have one token, all
            queries of a trial are zero, or data are out of range (:func:`~.gradient.check_scale`); or the
            weights overflow.
        TypeError: an argument has the wrong type.
    """
    integers(minimum=0, steps=steps)
    check_state(instance, state)
    return next(
        trajectory(
            instance, state, steps=(state.step + steps,), rate=rate, loss=loss, eps=eps, penalty=penalty
        )
    )


@single_threaded
def plain_descent(
    instance: Instance | HeadInstance,
    state: AnyState,
    *,
    steps: int,
    rate: float = 1.0,
    loss: Loss = LOGISTIC,
    penalty: float = 0.0,
) -> AnyState:
    r"""Runs gradient descent with a constant step size, :math:`W \leftarrow W - \eta g`; the norm grows like
    :math:`\log t` in t steps.

    Args:
        instance, state, steps, loss, penalty: as in :func:`normalised_descent`.
        rate: :math:`\eta`, the factor of the gradient.
    Returns:
        The state after these steps; another call continues exactly from it.
    Raises:
        ValueError, TypeError: as for :func:`normalised_descent`. If the rate is too large, the weights
            eventually overflow.
    """
    integers(minimum=0, steps=steps)
    positive(rate=rate)
    check_state(instance, state)
    # The direction that a space returns is n times the gradient, hence the division by n.
    factor = torch.tensor(rate / instance.tokens.shape[-3], dtype=torch.float64)
    return next(
        _run(
            instance,
            state,
            (state.step + steps,),
            loss,
            penalty,
            lambda _, C: factor if C is None else factor * C.exp(),
        )
    )


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
    """Yields states of :func:`normalised_descent` after the numbers of steps in ``steps``, counted from step
    0 of the first run.

    Args:
        steps: numbers of steps after which a state is returned, increasing from ``state.step``; read lazily.
        instance, state, rate, loss, eps, penalty: as in :func:`normalised_descent`.
    Returns:
        An iterator over the states. Nothing is computed or checked before the first state is requested.
    Raises:
        ValueError: as for :func:`normalised_descent`, or a number of steps is smaller than the previous one.
        TypeError: as for :func:`normalised_descent`.
    """
    positive(rate=rate)
    check_nonnegative(eps=eps)
    single_threaded(check_state)(instance, state)
    # ``size`` is the norm of n e^-C times the gradient, so eps becomes n e^-C eps in the same unit. C is
    # about -|W| times the margin. Once e^-C overflows, n e^-C eps is infinite, and the step is correctly
    # zero.
    rate_tensor, scaled_eps = torch.tensor(rate, dtype=torch.float64), eps * instance.tokens.shape[-3]

    @no_type_check
    def length(size: Tensor, C: Tensor | None) -> Tensor:
        if C is None or not eps:
            return rate_tensor / size.add_(max(scaled_eps, NORM_FLOOR))
        return rate_tensor / (-C).exp().mul_(scaled_eps).add(size).clamp_(min=NORM_FLOOR)

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
    """Yields states of descent with any rule for the length of a step.

    Args:
        steps: numbers of steps after which a state is returned.
        length: function that returns the factor of the direction from its norm ``[trials, 1, 1]`` and the
            logarithm C of its scale (None: C = 0).
    """
    check_nonnegative(penalty=penalty)
    runs, current = single_threaded(lambda: parts(Gradient(instance, loss), state, penalty))(), state.step

    # Only the inner function is single-threaded. On the generator, the setting would stay active while the
    # caller works with a state.
    @single_threaded
    @no_type_check
    def advance(steps: int, step: int) -> State | Factors:
        # cheaper than no_grad, but other heads may need autograd
        with torch.inference_mode(isinstance(instance, Instance)):
            for data, variables in runs:
                for _ in range(steps):
                    c, C = data.coefficients(variables.logits())
                    variables.move(length(*variables.aim(c, C)))
        states = [variables.state(step) for _, variables in runs]
        result = states[0] if len(states) == 1 else joined(states, instance.trials)
        check_finite_weights(
            step, **({"W": result.W} if isinstance(result, State) else {"K": result.K, "Q": result.Q})
        )
        return result

    for step in steps:
        integers(minimum=0, steps=step)
        if step < current:
            raise ValueError(f"steps must increase from {current}, got {step}")
        result, current = advance(step - current, step), step
        yield result  # pyright: ignore[reportReturnType]


@single_threaded
@torch.no_grad()
@converted(float64=("W",))
def is_stationary(instance: Instance | HeadInstance, W: Tensor, *, loss: Loss = LOGISTIC) -> bool:
    """Returns whether the gradient at W ``[d, d_z]`` is zero up to rounding: its terms cancel to 1e-14 of the
    sum of their norms.

    Normalised descent would turn the rounding errors into full steps in a direction that depends on the
    processor.

    Raises:
        ValueError: as for :func:`descent_direction`.
    """
    data = Gradient(instance, loss)
    c, _ = data.coefficients(data.logits(data.query @ W.mT))
    terms = (
        c.abs()[..., None] * data.tokens.norm(dim=-1, keepdim=True) * data.query.norm(dim=-1)[..., None, None]
    )
    return bool((data.pulled(c).mT @ data.query).norm() <= STATIONARY_RTOL * terms.sum())
