r"""Mirror descent on attention weights in the geometry of an entrywise :math:`\ell_p` norm.

With the potential :math:`\psi(W) = \tfrac1p \sum_{jk} |W_{jk}|^p`, whose gradient is :math:`\operatorname{sign}(W)|W|^{p-1}`, and the
conjugate exponent :math:`q = p/(p-1)`, one normalised step is

.. math:: \nabla\psi(W) \leftarrow \nabla\psi(W) - \eta\, \nabla L(W) / \|\nabla L(W)\|_q .

Its direction is that of the max-margin problem in the :math:`\ell_p` norm of the selected tokens, :math:`\min \|W\|_p` subject to
:math:`(x_{i,a_i} - x_{i,t})^\top W z_i \ge 1`; p = 2 is normalised gradient descent (:cite:t:`julistiono2024optimizing`).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ....core.parallel import single_threaded
from ....core.validation import converted, integers, positive
from ..problem import Instance
from .gradient import Gradient, unit
from .losses import LOGISTIC, Loss
from .states import State, check_state


@single_threaded
@torch.no_grad()
def mirror_descent(instance: Instance, state: State, *, power: float, steps: int, rate: float = 0.1, loss: Loss = LOGISTIC) -> State:
    r"""Normalised mirror descent with the potential :math:`\|W\|_p^p / p`, each trial on its own.

    Args:
        instance, state: as in :func:`~.descent.normalised_descent`, on weights.
        power: p > 1.
        steps: number of steps.
        rate: :math:`\eta`, the length of each step in the dual norm.
        loss: of the prediction, label included.
    Returns:
        The state after these steps; another call continues from it, up to rounding in the powers.
    Raises:
        ValueError: ``power`` is not above one and finite, or as :func:`~.descent.normalised_descent`.
        TypeError: as there, or the state holds factors.
    """
    check_power(power)
    integers(minimum=0, steps=steps)
    positive(rate=rate)
    check_state(instance, state, State)
    # The dual variable, the gradient of the potential at W, takes the steps, and W follows from it. Computing it from W again in every step
    # would add rounding errors of the powers.
    data, W = Gradient(instance, loss), state.W
    dual = signed_power(W, power - 1)
    for _ in range(steps):
        M, _ = data.descent(W)
        dual = dual + rate * unit(M, power=power / (power - 1))[0]
        W = signed_power(dual, 1 / (power - 1))
    end = State(W, state.step + steps)
    check_state(instance, end)  # for p near one, the power 1 / (p - 1) overflows soon
    return end


def check_power(power: float) -> None:
    """Checks that an exponent has a conjugate one.

    Raises:
        ValueError: it is not above one and finite.
        TypeError: it is no number.
    """
    positive(power=power)
    if not power > 1:
        raise ValueError(f"power must be larger than 1 (the potential is strictly convex then), got {power}")


def signed_power(W: Float[Tensor, "*any d d_z"], power: float) -> Float[Tensor, "*any d d_z"]:
    r""":math:`\operatorname{sign}(W)|W|^{power}`, entry by entry; the gradient of the potential and, with 1/power, its inverse."""
    return W.sign() * W.abs() ** power


@converted(float64=("target", "W"))
def bregman_divergence(
    target: Float[Tensor, "*trials d d_z"], W: Float[Tensor, "*trials d d_z"], *, power: float
) -> Float[Tensor, "*trials"]:
    r"""The Bregman divergence of the target's direction from that of W, a measure of convergence in the geometry of the potential.

    It is :math:`D_\psi(A, B) = \psi(A) - \psi(B) - \langle\nabla\psi(B), A - B\rangle` for the target A and the weights B, both scaled to
    :math:`\ell_p` norm one.

    Args:
        target, W: ``[*trials, d, d_z]``, of any norm.
        power: p > 1.
    Returns:
        The divergence, at least zero up to rounding; 1 where one of the two is zero and has no direction.
    Raises:
        ValueError: ``power`` is not above one and finite.
        TypeError: ``power`` is no number.
    """
    check_power(power)
    # Both have norm one, so psi(A) = psi(B) = 1/p and <grad psi(B), B> = 1: the divergence is 1 - <grad psi(B), A>.
    A, B = (unit(V, power=power)[0] for V in (target, W))
    return 1 - (signed_power(B, power - 1) * A).sum((-2, -1))
