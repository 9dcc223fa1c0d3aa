r"""Joint training of attention and MLP: gradient flow and gradient descent in closed form, many runs at once.

With :math:`g_{ik} = -\partial L_i / \partial h_{ik}\; \phi'` for sample i and unit k, and means over samples,

.. math:: \dot v_k = \eta_v E[g_k b], \qquad \dot a_{km} = \eta_v E[g_k 1_m], \qquad
    \dot z_m = \eta_z E[1_m (\partial b / \partial z)^\top \textstyle\sum_k g_k v_k],

where :math:`1_m` indicates samples with query m. The flow uses the classical Runge-Kutta method with a fixed
step; an adaptive step would collapse at every kink of a ReLU. Descent is Euler's method with the learning
rate as its step. There is no momentum. Weight decay, which is not part of the theory, subtracts
:math:`\lambda v`. Source: :cite:t:`tian2024joma`.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar, no_type_check

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.errors import NotConverged
from ...core.threads import single_threaded
from ...core.validation import positive
from .block import AttentionForm, Block, Contexts

Hidden = Float[Tensor, "*runs n K"]
Activation = Callable[[Tensor], tuple[Tensor, Tensor]]
Loss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Velocity = Callable[[Block], Block]
Stepper = Callable[[Block, Velocity, float], Block]
State = TypeVar("State")


def linear(p: Hidden) -> tuple[Hidden, Hidden]:
    """Returns phi(p) = p and its slope."""
    return p, torch.ones_like(p)


def relu(p: Hidden) -> tuple[Hidden, Hidden]:
    """Returns phi(p) = max(p, 0) and its slope, which is 0 at the kink."""
    return p.clamp(min=0), (p > 0).to(p.dtype)


def tanh(p: Hidden) -> tuple[Hidden, Hidden]:
    """Returns phi(p) = tanh(p) and its slope."""
    h = torch.tanh(p)
    return h, 1 - h * h


def cross_entropy(h: Hidden, targets: Int[Tensor, "*#runs n"]) -> tuple[Float[Tensor, "*runs n"], Hidden]:
    """Returns the cross-entropy of each sample in nats, with one unit per target as logits, and -dL/dh.

    Raises:
        ValueError: there are more targets than units.
    """
    _check_targets(targets, h)
    index = targets.expand(h.shape[:-1])[..., None]
    below = h - h.amax(-1, keepdim=True)
    shares = below.exp()
    total = shares.sum(-1, keepdim=True)
    # the one-hot target minus the softmax
    down = (shares / -total).scatter_add(-1, index, torch.ones_like(total))
    return (total.log() - below.gather(-1, index))[..., 0], down


def squared(h: Hidden, targets: Int[Tensor, "*#runs n"]) -> tuple[Float[Tensor, "*runs n"], Hidden]:
    """Returns half the squared distance from h to the one-hot target of each sample, and -dL/dh.

    Raises:
        ValueError: there are more targets than units.
    """
    gap = _one_hot(targets, h) - h
    return gap.square().sum(-1) / 2, gap


def _check_targets(targets: Tensor, h: Tensor) -> None:
    if int(targets.max()) >= h.shape[-1]:
        raise ValueError(
            f"targets must lie in [0, {h.shape[-1]}), one unit per target, got {int(targets.max())}; use "
            "more units"
        )


@no_type_check
def _one_hot(targets: Tensor, h: Tensor) -> Tensor:
    _check_targets(targets, h)
    return torch.nn.functional.one_hot(targets, h.shape[-1]).to(h.dtype)


def signed(h: Hidden, targets: Int[Tensor, "*#runs n"]) -> tuple[Float[Tensor, "*runs n"], Hidden]:
    """Returns -(2y - 1) sum_k h_k for targets y in {0, 1}, and -dL/dh, which is constant, as the linear
    theory assumes.
    """
    sign = (2 * targets - 1).to(h.dtype)[..., None].expand(h.shape)
    return -(sign * h).sum(-1), sign


@dataclass(frozen=True)
class Model:
    """Attention, activation and loss of the block, and its learning rates.

    Attributes:
        attention: :class:`.Linear`, :class:`.Exponential` or :class:`.Softmax`.
        activation: ``p -> (phi(p), phi'(p))``.
        loss: ``(h, targets) -> (loss of each sample, -dL/dh)``.
        rate_logits, rate_lower: learning rates eta_z and eta_v.
        decay: weight decay lambda of v and a, 0 in the theory.

    Raises:
        ValueError: a rate is not positive and finite, or the decay is negative or not finite.
    """

    attention: AttentionForm
    activation: Activation = linear
    loss: Loss = cross_entropy
    rate_logits: float = 1.0
    rate_lower: float = 1.0
    decay: float = 0.0

    def __post_init__(self):
        positive(rate_logits=self.rate_logits, rate_lower=self.rate_lower)
        if not 0 <= self.decay < math.inf:
            raise ValueError(f"decay must be finite and at least 0, got {self.decay}")

    @property
    def ratio(self) -> float:
        """eta_z / eta_v."""
        return self.rate_logits / self.rate_lower

    @no_type_check  # called in every step; `velocity`, `Block`, the loss and the attention check the shapes
    def attend(self, block: Block, contexts: Contexts) -> Float[Tensor, "*runs n M"]:
        """Returns b of each sample."""
        return self.attention.attend(block.logits[..., contexts.query, :], contexts.counts)

    def mean_loss(self, block: Block, contexts: Contexts) -> Float[Tensor, "*runs"]:
        """Returns the mean loss over the samples."""
        return self._forward(block, contexts)[2].mean(-1)

    def velocity(self, block: Block, contexts: Contexts) -> Block:
        """Returns the right-hand side of the flow (see the module's docstring)."""
        b, slope, _, down = self._forward(block, contexts)
        g = down * slope
        # A product with the indicator sums the samples of each query: E[1_m ...].
        n, indicator = (
            len(contexts.query),
            torch.nn.functional.one_hot(contexts.query, contexts.queries).to(b.dtype),
        )
        logit_gradient = self.attention.pull(
            block.logits[..., contexts.query, :], contexts.counts, b, g @ block.lower
        )
        return Block(
            self.rate_logits / n * (indicator.mT @ logit_gradient),
            self.rate_lower * (g.mT @ b / n - self.decay * block.lower),
            self.rate_lower * (g.mT @ indicator / n - self.decay * block.offset),
        )

    @no_type_check
    def _forward(self, block: Block, contexts: Contexts) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns b, the slope of the activation, the loss and -dL/dh of each sample."""
        b = self.attend(block, contexts)
        h, slope = self.activation(b @ block.lower.mT + block.offset.mT[..., contexts.query, :])
        return b, slope, *self.loss(h, contexts.targets)


@dataclass(frozen=True, eq=False)
class Path:
    """Saved states of a training run.

    Attributes:
        times: time of each saved state, ``[t]``; in gradient descent, the number of steps times the learning
            rate.
        states: logits ``[t, *runs, Q, M]``, lower layer ``[t, *runs, K, M]``, offsets ``[t, *runs, K, Q]``.
        loss: loss of each saved state, ``[t, *runs]``; nats for cross-entropy.
    """

    times: Float[Tensor, " t"]
    states: Block
    loss: Float[Tensor, "t *runs"]

    def state(self, index: int) -> Block:
        """Returns the saved state with this index; -1 is the last."""
        return Block(self.states.logits[index], self.states.lower[index], self.states.offset[index])


def gradient_descent(
    start: Block, contexts: Contexts, model: Model, *, rate: float, steps: int, save_steps: Iterable[int] = ()
) -> Path:
    """Minimises the loss by gradient descent.

    Args:
        start: initial weights.
        contexts: samples.
        model: attention, activation, loss and learning rates.
        rate: learning rate; it multiplies eta_z and eta_v.
        steps: number of steps, >= 1.
        save_steps: steps after which the state is saved, in addition to 0 and ``steps``.
    Raises:
        ValueError: there is no step, the rate is not positive, or a step to save lies outside [0, steps].
        NotConverged: a saved state is not finite; the error carries the last finite one.
    """
    return _integrate(start, contexts, model, _euler, rate, steps, save_steps)


def gradient_flow(
    start: Block, contexts: Contexts, model: Model, *, step: float, steps: int, save_steps: Iterable[int] = ()
) -> Path:
    """Integrates the gradient flow by the classical Runge-Kutta method; the error of a step is of order
    ``step^5``.

    Args:
        start: initial weights.
        contexts: samples.
        model: attention, activation, loss and learning rates.
        step: time step.
        steps: number of steps, >= 1.
        save_steps: steps after which the state is saved, in addition to 0 and ``steps``.
    Raises:
        ValueError: there is no step, the step size is not positive, or a step to save lies outside [0,
            steps].
        NotConverged: a saved state is not finite; the error carries the last finite one.
    """
    return _integrate(start, contexts, model, _runge_kutta, step, steps, save_steps)


@no_type_check
def _plus(state: State, velocity: State, step: float) -> State:
    return state + step * velocity


@no_type_check
def _euler(block: Block, velocity: Velocity, step: float) -> Block:
    return block.plus(velocity(block), step)


@no_type_check  # the state is a block, or a tensor of any shape
def runge_kutta(
    state: State,
    velocity: Callable[[State], State],
    *,
    step: float,
    plus: Callable[[State, State, float], State] = _plus,
) -> State:
    """Returns the state after one step of the classical Runge-Kutta method.

    Args:
        state: state of an autonomous equation, for example a tensor.
        velocity: right-hand side of the equation.
        step: time step.
        plus: maps a state x, a velocity v and a time h to x + h v.
    """
    first = velocity(state)
    second = velocity(plus(state, first, step / 2))
    third = velocity(plus(state, second, step / 2))
    fourth = velocity(plus(state, third, step))
    return plus(plus(plus(plus(state, first, step / 6), second, step / 3), third, step / 3), fourth, step / 6)


@no_type_check
def _runge_kutta(block: Block, velocity: Velocity, step: float) -> Block:
    return runge_kutta(block, velocity, step=step, plus=Block.plus)


@single_threaded
def _integrate(
    start: Block,
    contexts: Contexts,
    model: Model,
    method: Stepper,
    step: float,
    steps: int,
    save_steps: Iterable[int],
) -> Path:
    steps_to_save = sorted({0, steps} | set(save_steps))
    if steps < 1 or not step > 0 or steps_to_save[0] < 0 or steps_to_save[-1] > steps:
        raise ValueError(
            f"steps must be >= 1, the step size > 0 and save_steps in [0, steps], got {steps}, {step}, "
            f"{steps_to_save}"
        )
    block, states = start, [start]
    for number in range(1, steps + 1):
        block = method(block, lambda state: model.velocity(state, contexts), step)
        if number in steps_to_save:
            # NaN and infinity persist in all later states, so it suffices to check the saved ones.
            if not all(
                bool(torch.isfinite(part).all()) for part in (block.logits, block.lower, block.offset)
            ):
                message = (
                    f"the weights must stay finite, got NaN or infinity within {number} steps of size "
                    f"{step:g}; take smaller steps"
                )
                raise NotConverged(message, state=states[-1])
            states.append(block)
    losses = torch.stack([model.mean_loss(state, contexts) for state in states])
    z, v, a = (
        torch.stack([getattr(state, name) for state in states]) for name in ("logits", "lower", "offset")
    )
    return Path(step * torch.tensor(steps_to_save, dtype=torch.float64), Block(z, v, a), losses)
