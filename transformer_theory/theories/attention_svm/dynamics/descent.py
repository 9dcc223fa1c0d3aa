r"""Gradient descent on the attention weights W, exact to rounding for as long as one likes, batched over independent trials.

With :math:`s_i = \operatorname{softmax}(X_i W z_i)` and :math:`f_i = \sum_t s_{i,t}\gamma_{i,t}` (label included in the scores),

.. math:: -\nabla L(W) = \frac1n \sum_i \sigma(-f_i) \Big(\sum_t s_{i,t}(\gamma_{i,t} - f_i)\, x_{i,t}\Big) z_i^\top .

Attention concentrates on one token, :math:`s_{i,t} \to e^{-\|W\|\cdot\text{margin}}`, and :math:`\gamma - f` is then a difference of
nearly equal numbers: computed as written, it is rounding error from a norm of about 40 on, and normalising the gradient blows that up to
full size. Here every quantity is a difference to the most attended token *top*: :math:`\delta_t = \gamma_t - \gamma_{top}`,
:math:`e = \sum_t s_t\delta_t`, :math:`s_t(\gamma_t - f) = s_t(\delta_t - e)`; and :math:`s_t` is kept as :math:`e^{-C} s_t` with one C a
trial, which the normalisation cancels. The direction is exact for any norm of W.

Source: the model is that of :cite:t:`tarzanagh2023transformers`; normalised descent is studied by :cite:t:`vasudeva2025implicit`.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..problem import Instance


@dataclass(frozen=True)
class State:
    """Where descent stands: W ``[*trials, d, d_z]`` and the number of steps taken."""

    W: Float[Tensor, "*trials d d_z"]
    step: int = 0


def start(instance: Instance, *, W: Tensor | None = None) -> State:
    """The state before the first step: W = 0 if not given.

    Raises:
        ValueError: W does not have the shape ``[*trials, d, d_z]`` of the instance, or inputs have a single token (nothing to select).
    """
    shape = (*instance.trials, instance.tokens.shape[-1], instance.query.shape[-1])
    if instance.tokens.shape[-2] < 2:
        raise ValueError("inputs must have at least two tokens, got one: there is nothing to select")
    if W is None:
        return State(instance.tokens.new_zeros(shape))
    if tuple(W.shape) != shape or W.dtype != torch.float64:
        raise ValueError(f"W must be float64 {list(shape)}, got {W.dtype} {list(W.shape)}")
    return State(W)


def random_start(instance: Instance, *, generator: torch.Generator) -> State:
    """W with independent entries, uniform in plus or minus 1/sqrt(d): the usual initialisation of a linear layer."""
    d, d_z = instance.tokens.shape[-1], instance.query.shape[-1]
    drawn = torch.rand(*instance.trials, d, d_z, generator=generator, dtype=torch.float64)
    return start(instance, W=(2 * drawn - 1) / d**0.5)


def descent_direction(
    instance: Instance, W: Float[Tensor, "*trials d d_z"]
) -> tuple[Float[Tensor, "*trials d d_z"], Float[Tensor, "*trials"]]:
    r"""The negative gradient of the mean logistic loss, as direction and logarithm of its scale: :math:`-\nabla L = e^{C} M`.

    Returns:
        M ``[*trials, d, d_z]`` and C ``[*trials]``; ``M * C.exp()[..., None, None]`` is the negative gradient. M is exact to rounding even
        where the gradient underflows. M = 0 if all scores of each input are equal.
    """
    shape, inputs = W.shape, instance.tokens.shape[-3]
    M, C = _Descent(instance).direction(W.reshape(-1, *shape[-2:]))
    return M.reshape(shape), (C - math.log(inputs)).reshape(shape[:-2])


class _Descent:
    """The data of an instance laid out for many steps: one batch dimension, and both layouts of the tokens."""

    def __init__(self, instance: Instance):
        n, T, d = instance.tokens.shape[-3:]
        self.tokens = instance.tokens.reshape(-1, T, d)  # [trials n, T, d]
        self.columns = self.tokens.mT.contiguous()
        self.query = instance.query.reshape(-1, n, instance.query.shape[-1])
        self.scores = instance.scores.reshape(-1, n, T)

    def direction(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """M ``[trials, d, d_z]`` and C ``[trials, 1, 1]``: the negative gradient is e^C M / n. Few operations: problems are small."""
        shape = self.scores.shape
        asked = torch.bmm(self.query, W.mT).reshape(-1, W.shape[1], 1)
        logits = torch.bmm(self.tokens, asked).view(shape)
        highest, top = logits.max(-1, keepdim=True)
        gap = logits.sub_(highest)
        share = gap.exp()
        top_share = share.sum(-1, keepdim=True).reciprocal_()
        share.mul_(top_share)  # attention s
        top_score = self.scores.gather(-1, top)
        delta = self.scores - top_score
        gap.masked_fill_(delta == 0, -torch.inf)
        C = gap.amax((-2, -1), keepdim=True).clamp_(min=-1e300)
        scaled = gap.sub_(C).exp_().mul_(top_share).mul_(delta)  # e^-C s delta
        excess = scaled.sum(-1, keepdim=True)  # e^-C e
        slope = torch.addcmul(top_score, excess, C.exp()).neg_().sigmoid_()  # -l'(f)
        coefficient = torch.addcmul(scaled, share, excess, value=-1).mul_(slope)  # e^-C s (delta - e)
        pulled = torch.bmm(self.columns, coefficient.view(-1, shape[-1], 1)).view(*shape[:2], -1)
        return torch.bmm(pulled.mT, self.query), C


def normalised_descent(instance: Instance, state: State, *, steps: int, rate: float = 0.1) -> State:
    r"""Normalised gradient descent, :math:`W \leftarrow W - \eta\,\nabla L/\|\nabla L\|_F`, each trial on its own.

    Args:
        steps: how many.
        rate: :math:`\eta`, the length of each step.
    Returns:
        The state after them; calling again continues exactly where it stopped.
    Raises:
        ValueError: ``steps`` is negative or ``rate`` not positive.
    """
    _check(steps, rate)
    W, data = state.W.reshape(-1, *state.W.shape[-2:]).clone(), _Descent(instance)
    for _ in range(steps):
        M, _ = data.direction(W)
        W.addcmul_(M, rate / torch.linalg.vector_norm(M, dim=(-2, -1), keepdim=True).clamp_(min=1e-300))
    return State(W.reshape(state.W.shape), state.step + steps)


def plain_descent(instance: Instance, state: State, *, steps: int, rate: float = 1.0) -> State:
    r"""Gradient descent with a constant step, :math:`W \leftarrow W - \eta\nabla L`; the norm then grows only like :math:`\log t`.

    Raises:
        ValueError: ``steps`` is negative or ``rate`` not positive.
    """
    _check(steps, rate)
    W, data = state.W.reshape(-1, *state.W.shape[-2:]).clone(), _Descent(instance)
    for _ in range(steps):
        M, C = data.direction(W)
        W.addcmul_(M, C.exp() * (rate / instance.tokens.shape[-3]))
    return State(W.reshape(state.W.shape), state.step + steps)


def trajectory(instance: Instance, state: State, *, at: Iterable[int], rate: float = 0.1) -> Iterator[State]:
    """States of :func:`normalised_descent` at the given numbers of steps, which must increase.

    Raises:
        ValueError: a step lies before the previous one.
    """
    for step in at:
        if step < state.step:
            raise ValueError(f"steps must increase from {state.step}, got {step}")
        state = normalised_descent(instance, state, steps=step - state.step, rate=rate)
        yield state


def _check(steps: int, rate: float) -> None:
    if steps < 0 or not rate > 0:
        raise ValueError(f"steps must be at least 0 and rate positive, got {steps} and {rate}")
