r"""How attention and MLP learn together: gradient flow and gradient descent on the loss, in closed form, many runs at once.

With the backpropagated :math:`g_{ik} = -\partial L_i / \partial h_{ik}\; \phi'` of sample i at unit k and means over samples,

.. math:: \dot v_k = \eta_v E[g_k b], \qquad \dot a_{km} = \eta_v E[g_k 1_m], \qquad
    \dot z_m = \eta_z E[1_m (\partial b / \partial z)^\top \textstyle\sum_k g_k v_k],

:math:`1_m` says that query m asks. The flow is integrated by the classical Runge-Kutta method with a fixed step, which kinks of a ReLU do
not slow down; descent is Euler's method with the learning rate as step. No momentum. Decay subtracts :math:`\lambda v`, which the theory
does not have. Source: :cite:t:`tian2024joma`.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import no_type_check

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.errors import NotConverged
from ...core.validation import positive
from .forms import AttentionForm
from .problem import Block, Contexts

Hidden = Float[Tensor, "*runs n K"]
Activation = Callable[[Tensor], tuple[Tensor, Tensor]]
Loss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Velocity = Callable[[Block], Block]
Stepper = Callable[[Block, Velocity, float], Block]


def linear(p: Hidden) -> tuple[Hidden, Hidden]:
    """phi(p) = p, and its slope. Source: textbook."""
    return p, torch.ones_like(p)


def relu(p: Hidden) -> tuple[Hidden, Hidden]:
    """phi(p) = max(p, 0), and its slope (0 at the kink). Source: textbook."""
    return p.clamp(min=0), (p > 0).to(p.dtype)


def tanh(p: Hidden) -> tuple[Hidden, Hidden]:
    """phi(p) = tanh(p), and its slope. Source: textbook."""
    h = torch.tanh(p)
    return h, 1 - h * h


def cross_entropy(h: Hidden, targets: Int[Tensor, "*#runs n"]) -> tuple[Float[Tensor, "*runs n"], Hidden]:
    """Loss of each sample in nats with h as logits, and -dL/dh; a unit for each class. Source: textbook."""
    logs = torch.log_softmax(h, dim=-1)
    hit = _one_hot(targets, h)
    return -(logs * hit).sum(-1), hit - logs.exp()


def squared(h: Hidden, targets: Int[Tensor, "*#runs n"]) -> tuple[Float[Tensor, "*runs n"], Hidden]:
    """Half the squared distance of h to the one-hot target, and -dL/dh. Source: textbook."""
    gap = _one_hot(targets, h) - h
    return gap.square().sum(-1) / 2, gap


@no_type_check
def _one_hot(targets: Tensor, h: Tensor) -> Tensor:
    if int(targets.max()) >= h.shape[-1]:
        raise ValueError(f"targets must lie in [0, {h.shape[-1]}), a unit for each class, got {int(targets.max())}; take more units")
    return torch.nn.functional.one_hot(targets, h.shape[-1]).to(h.dtype)


def signed(h: Hidden, targets: Int[Tensor, "*#runs n"]) -> tuple[Float[Tensor, "*runs n"], Hidden]:
    """-(2y - 1) sum_k h_k for targets y in {0, 1}: the backpropagated gradient is constant, as in the theory of the linear MLP.

    Source: :cite:t:`tian2024joma`.
    """
    sign = (2 * targets - 1).to(h.dtype)[..., None].expand(h.shape)
    return -(sign * h).sum(-1), sign


@dataclass(frozen=True)
class Model:
    """What is trained: how it attends, what its units do, what they are for, and how fast each part learns.

    Attributes:
        attention: a form of :mod:`.forms`.
        activation: ``p -> (phi(p), phi'(p))``.
        loss: ``(h, targets) -> (loss of each sample, -dL/dh)``.
        rate_logits, rate_lower: eta_z, eta_v.
        decay: lambda, weight decay of v and a (0 in the theory).

    Raises:
        ValueError: a rate is not positive and finite, or the decay negative or not finite.
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

    @no_type_check  # here and below: what a step is made of is checked once, by velocity, Block, loss and attention
    def attend(self, block: Block, contexts: Contexts) -> Float[Tensor, "*runs n M"]:
        """b of each sample."""
        return self.attention.attend(block.logits[..., contexts.query, :], contexts.counts)

    def loss_of(self, block: Block, contexts: Contexts) -> Float[Tensor, "*runs"]:
        """The mean loss."""
        return self._forward(block, contexts)[2].mean(-1)

    def velocity(self, block: Block, contexts: Contexts) -> Block:
        """The right-hand side of the flow. See the module's docstring."""
        b, slope, _, down = self._forward(block, contexts)
        g = down * slope
        n, asks = len(contexts.query), torch.nn.functional.one_hot(contexts.query, contexts.queries).to(b.dtype)
        pulled = self.attention.pull(block.logits[..., contexts.query, :], contexts.counts, b, g @ block.lower)
        return Block(
            self.rate_logits / n * (asks.mT @ pulled),
            self.rate_lower * (g.mT @ b / n - self.decay * block.lower),
            self.rate_lower * (g.mT @ asks / n - self.decay * block.offset),
        )

    @no_type_check
    def _forward(self, block: Block, contexts: Contexts) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """b, slope of the activation, loss and -dL/dh, all of each sample."""
        b = self.attend(block, contexts)
        h, slope = self.activation(b @ block.lower.mT + block.offset.mT[..., contexts.query, :])
        return b, slope, *self.loss(h, contexts.targets)


@dataclass(frozen=True, eq=False)
class Path:
    """What training passed through.

    Attributes:
        times: of the states kept: time of the flow, or steps of descent times the learning rate, ``[t]``.
        states: logits ``[t, *runs, Q, M]``, lower layer ``[t, *runs, K, M]``, offsets ``[t, *runs, K, Q]``.
        loss: ``[t, *runs]``, nats for cross-entropy.
    """

    times: Float[Tensor, " t"]
    states: Block
    loss: Float[Tensor, "t *runs"]

    def at(self, index: int) -> Block:
        """The state kept as number ``index``."""
        return Block(self.states.logits[index], self.states.lower[index], self.states.offset[index])


@no_type_check
def euler(block: Block, velocity: Velocity, step: float) -> Block:
    """One step of gradient descent. Source: textbook."""
    return block.plus(velocity(block), step)


@no_type_check
def rk4(block: Block, velocity: Velocity, step: float) -> Block:
    """One step of the classical Runge-Kutta method, error of order step^5. Source: textbook."""
    first = velocity(block)
    second = velocity(block.plus(first, step / 2))
    third = velocity(block.plus(second, step / 2))
    fourth = velocity(block.plus(third, step))
    return block.plus(first, step / 6).plus(second, step / 3).plus(third, step / 3).plus(fourth, step / 6)


def train(
    start: Block, contexts: Contexts, model: Model, *, step: float, steps: int, method: Stepper = euler, keep: Iterable[int] = ()
) -> Path:
    """Descends (``euler``) or flows (``rk4``) from ``start``; first and last state are kept, and those after ``keep`` steps.

    Args:
        step: learning rate, or time step of the flow.
        steps: how many, >= 1.
        method: :func:`euler` or :func:`rk4`.
        keep: further numbers of steps.
    Returns:
        The states at 0, ``keep`` and ``steps``.
    Raises:
        ValueError: no step, a step that is not positive, or one to keep outside [0, steps].
        NotConverged: a state is not finite; carries the last finite one.
    Source: :cite:t:`tian2024joma`.
    """
    kept = sorted({0, steps} | set(keep))
    if steps < 1 or not step > 0 or kept[0] < 0 or kept[-1] > steps:
        raise ValueError(f"steps must be at least 1, step positive and keep within [0, steps], got {steps}, {step}, {kept}")
    block, states = start, [start] if kept[0] == 0 else []
    for number in range(1, steps + 1):
        block = method(block, lambda state: model.velocity(state, contexts), step)
        if number in kept:
            if not all(bool(torch.isfinite(part).all()) for part in (block.logits, block.lower, block.offset)):
                message = f"training must stay finite, got NaN or infinity within {number} steps of {step:g}; take smaller steps"
                raise NotConverged(message, state=states[-1])
            states.append(block)
    losses = torch.stack([model.loss_of(state, contexts) for state in states])
    z, v, a = (torch.stack([getattr(state, name) for state in states]) for name in ("logits", "lower", "offset"))
    return Path(step * torch.tensor(kept, dtype=torch.float64), Block(z, v, a), losses)
