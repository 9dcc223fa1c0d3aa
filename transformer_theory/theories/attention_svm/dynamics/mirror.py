r"""Mirror descent on attention weights in the geometry of an entrywise :math:`\ell_p` norm.

With the potential :math:`\psi(W) = \tfrac1p \sum_{jk} |W_{jk}|^p`, whose gradient is
:math:`\operatorname{sign}(W)|W|^{p-1}`, and the conjugate exponent :math:`q = p/(p-1)`, one normalised step
is

.. math:: \nabla\psi(W) \leftarrow \nabla\psi(W) - \eta\, \nabla L(W) / \|\nabla L(W)\|_q .

W converges in direction to the max-margin solution of the selected tokens in the :math:`\ell_p` norm,
:math:`\min \|W\|_p` subject to :math:`(x_{i,a_i} - x_{i,t})^\top W z_i \ge 1`
(:cite:t:`julistiono2024optimizing`). The case p = 2 is normalised gradient descent.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ....core.threads import single_threaded
from ....core.validation import converted, integers, positive
from ..problem import Instance
from ..validation import check_finite_weights
from .gradient import Gradient, unit
from .losses import LOGISTIC, Loss
from .states import State, check_state


@single_threaded
@torch.no_grad()
def mirror_descent(
    instance: Instance, state: State, *, power: float, steps: int, rate: float = 0.1, loss: Loss = LOGISTIC
) -> State:
    r"""Runs normalised mirror descent with the potential :math:`\|W\|_p^p / p`, with independent trials.

    Args:
        instance, state: as in :func:`~.descent.normalised_descent`; the state holds weights.
        power: exponent p > 1.
        steps: number of steps.
        rate: :math:`\eta`, the length of each step in the dual norm.
        loss: loss of the prediction, label included.
    Returns:
        The state after these steps; another call continues from it, up to rounding in the powers.
    Raises:
        ValueError: as for :func:`~.descent.normalised_descent`, or ``power`` is not above one and finite.
        TypeError: as for :func:`~.descent.normalised_descent`, or the state holds factors.
    """
    check_power(power)
    integers(minimum=0, steps=steps)
    positive(rate=rate)
    check_state(instance, state, State)
    # The steps update the dual variable, which is the gradient of the potential at W, and compute W from it.
    # To compute the dual variable anew from W in every step would add rounding errors of the powers.
    data, W = Gradient(instance, loss), state.W
    dual = signed_power(W, power - 1)
    for _ in range(steps):
        M, _ = data.descent(W)
        dual = dual + rate * unit(M, power=power / (power - 1))[0]
        W = signed_power(dual, 1 / (power - 1))
    end = State(W, state.step + steps)
    check_finite_weights(end.step, W=end.W)  # if p is close to one, the power 1 / (p - 1) soon overflows
    return end


def check_power(power: float) -> None:
    """Checks that an exponent is above one, so that it has a finite conjugate exponent.

    Raises:
        ValueError: the exponent is not above one and finite.
        TypeError: the exponent is not a number.
    """
    positive(power=power)
    if not power > 1:
        raise ValueError(f"power must be larger than 1 (the potential is strictly convex then), got {power}")


def signed_power(W: Float[Tensor, "*any d d_z"], power: float) -> Float[Tensor, "*any d d_z"]:
    r"""Returns :math:`\operatorname{sign}(W)|W|^{power}`, entrywise: the gradient of the potential for p - 1,
    its inverse for 1/(p - 1).
    """
    return W.sign() * W.abs() ** power


@converted(float64=("target", "W"))
def bregman_divergence(
    target: Float[Tensor, "*trials d d_z"], W: Float[Tensor, "*trials d d_z"], *, power: float
) -> Float[Tensor, "*trials"]:
    r"""Computes the Bregman divergence between two directions, a measure of convergence in the geometry of
    the potential.

    It is :math:`D_\psi(A, B) = \psi(A) - \psi(B) - \langle\nabla\psi(B), A - B\rangle` for the target A and
    the weights B, both scaled to
    :math:`\ell_p` norm one.

    Args:
        target, W: matrices of any norm, ``[*trials, d, d_z]``.
        power: exponent p > 1.
    Returns:
        The divergence, ``[*trials]``, non-negative up to rounding; 1 if a matrix is zero and thus has no
        direction.
    Raises:
        ValueError: ``power`` is not above one and finite.
        TypeError: ``power`` is not a number.
    """
    check_power(power)
    # Both have norm one, so psi(A) = psi(B) = 1/p and <grad psi(B), B> = 1: the divergence is 1 - <grad
    # psi(B), A>.
    A, B = (unit(V, power=power)[0] for V in (target, W))
    return 1 - (signed_power(B, power - 1) * A).sum((-2, -1))
