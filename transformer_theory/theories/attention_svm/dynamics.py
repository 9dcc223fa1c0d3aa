r"""Gradient descent on the attention weights W, exact to rounding for as long as one likes, batched over independent trials.

With :math:`s_i = \operatorname{softmax}(X_i W z_i)` and :math:`f_i = \sum_t s_{i,t}\gamma_{i,t}` (label included in the scores),

.. math:: -\nabla L(W) = \frac1n \sum_i \sigma(-f_i) \Big(\sum_t s_{i,t}(\gamma_{i,t} - f_i)\, x_{i,t}\Big) z_i^\top .

Attention concentrates on one token, :math:`s_{i,t} \to e^{-\|W\|\cdot\text{margin}}`, and :math:`\gamma - f` is then a difference of
nearly equal
numbers: computed as written, it is rounding error from a norm of about 40 on, and normalising the gradient blows that up to full size.
Here every
quantity is a difference to the most attended token *top*: :math:`\delta_t = \gamma_t - \gamma_{top}`, :math:`e = \sum_t s_t\delta_t`,
:math:`s_t(\gamma_t - f) = s_t(\delta_t - e)`; and :math:`s_t` is kept as :math:`e^{\log s_t - C}` with one C a trial, which the
normalisation
cancels. The direction is exact for any norm of W.

Source: the model is that of :cite:t:`tarzanagh2023transformers`; normalised descent is studied by :cite:t:`vasudeva2025implicit`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .problem import Instance


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
    logits = (instance.tokens @ (instance.query @ W.mT)[..., None]).squeeze(-1)
    top = logits.argmax(-1, keepdim=True)
    log_s = logits.log_softmax(-1)
    top_score = instance.scores.gather(-1, top)
    delta = instance.scores - top_score
    same = delta == 0
    masked = log_s.masked_fill(same, -torch.inf)
    C = masked.amax((-2, -1)).nan_to_num(neginf=0.0)
    scaled = (masked - C[..., None, None]).exp()  # e^-C s_t, zero where delta is
    excess = (scaled * delta).sum(-1, keepdim=True)  # e^-C e
    e = excess * C.exp()[..., None, None]
    coefficient = torch.where(same, -log_s.exp() * excess, scaled * (delta - e))
    coefficient = coefficient.scatter(-1, top, 0.0)
    coefficient = coefficient.scatter(-1, top, -coefficient.sum(-1, keepdim=True))  # coefficients sum to zero, exactly
    weighted = coefficient * torch.sigmoid(-(top_score + e)) / coefficient.shape[-2]
    pulled = (weighted[..., None, :] @ instance.tokens).squeeze(-2)
    return pulled.mT @ instance.query, C


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
    W = state.W.clone()
    for _ in range(steps):
        M, _ = descent_direction(instance, W)
        W += M * (rate / torch.linalg.matrix_norm(M).clamp(min=1e-300))[..., None, None]
    return State(W, state.step + steps)


def plain_descent(instance: Instance, state: State, *, steps: int, rate: float = 1.0) -> State:
    r"""Gradient descent with a constant step, :math:`W \leftarrow W - \eta\nabla L`; the norm then grows only like :math:`\log t`.

    Raises:
        ValueError: ``steps`` is negative or ``rate`` not positive.
    """
    _check(steps, rate)
    W = state.W.clone()
    for _ in range(steps):
        M, C = descent_direction(instance, W)
        W += M * (rate * C.exp())[..., None, None]
    return State(W, state.step + steps)


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


def cosine(A: Float[Tensor, "*batch d d_z"], B: Float[Tensor, "*batch d d_z"]) -> Float[Tensor, "*batch"]:
    r""":math:`\langle A, B\rangle / (\|A\|_F\|B\|_F)`; NaN if one is zero."""
    return (A * B).sum((-2, -1)) / (torch.linalg.matrix_norm(A) * torch.linalg.matrix_norm(B))


def _check(steps: int, rate: float) -> None:
    if steps < 0 or not rate > 0:
        raise ValueError(f"steps must be at least 0 and rate positive, got {steps} and {rate}")
