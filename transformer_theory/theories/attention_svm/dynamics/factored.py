r"""Steps on the factors of :math:`W = K Q^\top`, without ever forming W.

With :math:`q_i = Q^\top z_i` the logits are :math:`x_{i,t}^\top K q_i`, and with :math:`P_i = \sum_t c_{i,t} x_{i,t}` (:mod:`.gradient`)

.. math:: -\nabla_K L = \tfrac1n \sum_i P_i q_i^\top, \qquad -\nabla_Q L = \tfrac1n \sum_i z_i (K^\top P_i)^\top .

Both carry the same scale :math:`e^C`, which their normalisation cancels. Only the penalty sets a scale of its own.

Source: :cite:t:`tarzanagh2023transformers`.
"""

import torch
from torch import Tensor

from .gradient import Gradient
from .states import Factors


def step_factors(data: Gradient, state: Factors, *, steps: int, rate: float, eps: float, penalty: float) -> Factors:
    """Normalised descent, K and Q each with its own norm; the arguments of :func:`~.descent.normalised_descent`."""
    K, Q = _flat(state)
    for _ in range(steps):
        up_K, up_Q, C = _directions(data, K, Q)
        least = data.inputs * eps * (-C).exp() if eps else 0.0
        if penalty:
            scale, decay, least = C.exp(), 2 * penalty * data.inputs, data.inputs * eps
            up_K, up_Q = scale * up_K - decay * K, scale * up_Q - decay * Q
        K.addcmul_(up_K, _length(up_K, rate, least))
        Q.addcmul_(up_Q, _length(up_Q, rate, least))
    return Factors(K.reshape(state.K.shape), Q.reshape(state.Q.shape), state.step + steps)


def plain_factors(data: Gradient, state: Factors, *, steps: int, rate: float, penalty: float) -> Factors:
    """Descent with a constant step; the arguments of :func:`~.descent.plain_descent`."""
    K, Q = _flat(state)
    for _ in range(steps):
        up_K, up_Q, C = _directions(data, K, Q)
        scale, keep = C.exp() * (rate / data.inputs), 1 - 2 * rate * penalty
        K.mul_(keep).addcmul_(up_K, scale)
        Q.mul_(keep).addcmul_(up_Q, scale)
    return Factors(K.reshape(state.K.shape), Q.reshape(state.Q.shape), state.step + steps)


def _flat(state: Factors) -> tuple[Tensor, Tensor]:
    return tuple(V.reshape(-1, *V.shape[-2:]).clone() for V in (state.K, state.Q))  # pyright: ignore[reportReturnType]


def _directions(data: Gradient, K: Tensor, Q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The negative gradients in K and in Q times n e^-C, and C."""
    q = torch.bmm(data.query, Q)
    P, C = data.pulled(data.logits(torch.bmm(q, K.mT)))
    return torch.bmm(P.mT, q), torch.bmm(data.query.mT, torch.bmm(P, K)), C


def _length(up: Tensor, rate: float, least: Tensor | float) -> Tensor:
    return rate / (torch.linalg.vector_norm(up, dim=(-2, -1), keepdim=True) + least).clamp_(min=1e-300)
