r"""Steps on the factors of :math:`W = K Q^\top`, without ever forming W.

With :math:`q_i = Q^\top z_i` the logits are :math:`x_{i,t}^\top K q_i`, and with :math:`P_i = \sum_t c_{i,t} x_{i,t}` (:mod:`.gradient`)

.. math:: \nabla_K L = \tfrac1n \sum_i P_i q_i^\top, \qquad \nabla_Q L = \tfrac1n \sum_i z_i (K^\top P_i)^\top .

Both carry the same scale :math:`e^C`, which their normalisation cancels. Only the penalty sets a scale of its own. K and Q, and their
gradients, are held in one tensor, filled up with zeros if :math:`d \ne d_z`: one operation moves both.

Source: :cite:t:`tarzanagh2023transformers`.
"""

from typing import no_type_check

import torch
from torch import Tensor

from .gradient import Gradient
from .products import Product
from .states import Factors


class Pair:
    """Steps on K and Q, each with its own norm; :math:`\\lambda(\\|K\\|_F^2 + \\|Q\\|_F^2)` in the loss."""

    def __init__(self, data: Gradient, state: Factors, penalty: float):
        self.data, self.shapes, self.decay = data, (state.K.shape, state.Q.shape), 2 * penalty * data.inputs
        trials, n, d_z = data.query.shape
        self.rows, width = (state.K.shape[-2], d_z), state.K.shape[-1]
        self.both = data.query.new_zeros(2, trials, max(self.rows), width)
        self.K, self.Q = (self.both[k, :, :rows] for k, rows in enumerate(self.rows))
        for view, V in ((self.K, state.K), (self.Q, state.Q)):
            view.copy_(V.detach().reshape(view.shape))
        left = data.query.new_zeros(2, trials, n, max(self.rows))  # P, then z
        left[1, ..., :d_z] = data.query
        right = data.query.new_zeros(2, trials, n, width)  # q, then K^T P
        q, r = right
        self.images, self.P = torch.zeros_like(data.tokens[:, :, 0]), left[0, ..., : self.rows[0]]
        self.direction = torch.empty_like(self.both)
        self.turn_queries, self.image = Product(data.query, self.Q, q), Product(q, self.K.mT, self.images)
        self.turn_pulls = Product(self.P, self.K, r)
        self.turn = Product(left.flatten(0, 1).mT, right.flatten(0, 1), self.direction.flatten(0, 1))

    @no_type_check
    def logits(self) -> Tensor:
        self.turn_queries()
        self.image()
        return self.data.logits(self.images)

    @no_type_check
    def aim(self, c: Tensor, C: Tensor) -> tuple[Tensor, Tensor | None]:
        rest: Tensor | None = C
        if self.decay:
            c, rest = self.data.unscaled(c, C)
        self.data.pulled(c, self.P)
        self.turn_pulls()
        self.turn()
        if self.decay:
            self.direction.add_(self.both, alpha=self.decay)
        return torch.linalg.vector_norm(self.direction, dim=(-2, -1), keepdim=True), rest

    @no_type_check
    def move(self, length: Tensor) -> None:
        self.both.addcmul_(self.direction, length, value=-1)

    def state(self, step: int) -> Factors:
        K, Q = (V.reshape(shape).clone() for V, shape in zip((self.K, self.Q), self.shapes))
        return Factors(K, Q, step)
