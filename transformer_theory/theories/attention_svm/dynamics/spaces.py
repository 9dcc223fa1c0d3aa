r"""Where a step is taken: on W itself, on the images :math:`u_i = W z_i`, or on the logits.

The gradient is :math:`\tfrac1n\sum_i P_i z_i^\top` with :math:`P_i = \sum_t c_{i,t} x_{i,t}`, so descent takes
:math:`\sum_{i,t} A_{i,t} x_{i,t} z_i^\top` off where it started, and nothing else of W is ever asked for
than the logits. A step of length :math:`\alpha` is, in the three spaces,

.. math:: W \mathrel{-}= \alpha \sum_i P_i z_i^\top, \qquad
    u_i \mathrel{-}= \alpha \sum_j (z_i^\top z_j) P_j, \qquad a \mathrel{-}= \alpha\, G c,

with the Gram matrix :math:`G_{(i,t),(j,\tau)} = (x_{i,t}^\top x_{j,\tau})(z_i^\top z_j)`; and the norm of the gradient is that of the
matrix, :math:`\langle P, ZZ^\top P\rangle^{1/2}` or :math:`(c^\top G c)^{1/2}`. One step costs :math:`2nTd` (tokens) and, on top, twice
:math:`n d d_z` on W or :math:`n^2 d` on the images; on the logits :math:`(nT)^2` in all, whatever the dimensions.

The last two norms are roots of quadratic forms and hold half the digits where terms cancel, as at a saddle. So a multiple of the identity,
1e-14 of the largest entry, is added to the form: at most that much is wrong of a step, and it is never longer than it should be.

Every space, and :class:`~.factored.Pair`, answers to: ``logits()`` ``[trials, n, T]``, up to a number an input; ``aim(c, C)``, which takes
the coefficients of :mod:`.gradient` and gives the norm of the direction, :math:`n e^{-C}` times the gradient, and C, None standing for 0;
``move(length)``, which takes off that many directions; ``state(step)``, a copy of where the run stands.

Source: textbook (kernel trick), for the model of :cite:t:`tarzanagh2023transformers`.
"""

from typing import no_type_check

import torch
from torch import Tensor

from .gradient import Gradient
from .products import Rows
from .states import Carried, State


class Weights:
    """Steps on W, with :math:`\\lambda\\|W\\|_F^2` in the loss."""

    def __init__(self, data: Gradient, state: State, penalty: float):
        self.data, self.shape, self.decay = data, state.W.shape, 2 * penalty * data.inputs
        self.W = _flat(state.W).clone()
        self.transposed = self.W.mT
        self.direction = self.W

    @no_type_check
    def logits(self) -> Tensor:
        return self.data.logits(torch.bmm(self.data.query, self.transposed))

    @no_type_check
    def aim(self, c: Tensor, C: Tensor) -> tuple[Tensor, Tensor | None]:
        rest: Tensor | None = C
        if self.decay:
            c, rest = self.data.unscaled(c, C)
        self.direction = torch.bmm(self.data.pulled(c).mT, self.data.query)
        if self.decay:
            self.direction.add_(self.W, alpha=self.decay)
        return torch.linalg.vector_norm(self.direction, dim=(-2, -1), keepdim=True), rest

    @no_type_check
    def move(self, length: Tensor) -> None:
        self.W.addcmul_(self.direction, length, value=-1)

    def state(self, step: int) -> State:
        return State(self.W.reshape(self.shape).clone(), step)


class _Span:
    """Steps in the span of the data: W is where it was less what was taken off. A run is continued from the numbers that it moves, not
    from W, of which they would differ by rounding."""

    def __init__(self, data: Gradient, state: State):
        self.data, self.shape, carried = data, state.W.shape, state.carried
        if carried is not None and carried.belongs(state.W, data.tokens, data.query):
            self.origin, self.taken, self.values = carried.origin, carried.taken.clone(), carried.values.clone()
        else:
            self.origin, self.taken = _flat(state.W).clone(), torch.zeros_like(data.tokens[..., 0])
            self.values = self.first(torch.bmm(data.query, self.origin.mT))
        self.c, self.direction = self.taken, self.values

    def first(self, images: Tensor) -> Tensor:
        """The numbers to move, of the images ``[trials, n, d]``."""
        raise NotImplementedError

    def turned(self, c: Tensor) -> tuple[Tensor, Tensor]:
        """The direction of the numbers that c stands for, and the square of the norm of the matrix ``[trials, 1, 1]``."""
        raise NotImplementedError

    @no_type_check
    def aim(self, c: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        self.c = c
        self.direction, square = self.turned(c)
        return square.clamp_(min=0.0).sqrt_(), C

    @no_type_check
    def move(self, length: Tensor) -> None:
        self.values.addcmul_(self.direction, length, value=-1)
        self.taken.addcmul_(self.c, length)

    def state(self, step: int) -> State:
        data = self.data
        W = (self.origin - torch.bmm(data.pulled(self.taken).mT, data.query)).reshape(self.shape)
        return State(W, step, Carried(self.origin, self.taken.clone(), self.values.clone(), W, data.tokens, data.query))


class Images(_Span):
    """Steps on u = W z, ``[trials, n, d]``."""

    def __init__(self, data: Gradient, state: State):
        self.queries = _steadied(torch.bmm(data.query, data.query.mT))
        super().__init__(data, state)

    def first(self, images: Tensor) -> Tensor:
        return images

    @no_type_check
    def logits(self) -> Tensor:
        return self.data.logits(self.values)

    @no_type_check
    def turned(self, c: Tensor) -> tuple[Tensor, Tensor]:
        P = self.data.pulled(c)
        direction = torch.bmm(self.queries, P)
        return direction, P.mul_(direction).sum((-2, -1), keepdim=True)


class Logits(_Span):
    """Steps on the logits ``[trials, n, T]``: no dimension is left in the cost."""

    def __init__(self, data: Gradient, state: State):
        trials, n, T, d = data.tokens.shape
        flat = data.tokens.reshape(trials, n * T, d)
        gram = torch.bmm(flat, flat.mT).view(trials, n, T, n, T)
        gram.mul_(torch.bmm(data.query, data.query.mT)[:, :, None, :, None])
        self.gram = Rows(_steadied(gram.view(trials, n * T, n * T)))
        self.turned_into = data.tokens.new_empty(trials, 1, n * T)
        super().__init__(data, state)

    def first(self, images: Tensor) -> Tensor:
        return self.data.logits(images).contiguous()

    @no_type_check
    def logits(self) -> Tensor:
        return self.values

    @no_type_check
    def turned(self, c: Tensor) -> tuple[Tensor, Tensor]:
        direction = self.gram(c.view(len(c), 1, -1), out=self.turned_into).view(c.shape)
        return direction, (c * direction).sum((-2, -1), keepdim=True)


def space(data: Gradient, state: State, penalty: float) -> Weights | Images | Logits:
    """The space in which a step costs least; on W if there is a penalty, which leaves the span of the data."""
    _, n, T, d = data.tokens.shape
    d_z = data.query.shape[-1]
    images, weights, logits = 2 * T * d + n * d + 600, 2 * T * d + 2 * d * d_z + 600, n * T * T  # products an input; a call is worth 200
    if penalty or weights < min(images, logits):
        return Weights(data, state, penalty)
    return Logits(data, state) if logits <= images else Images(data, state)


def _flat(V: Tensor) -> Tensor:
    return V.detach().reshape(-1, *V.shape[-2:])


def _steadied(form: Tensor) -> Tensor:
    diagonal = form.diagonal(dim1=-2, dim2=-1)
    diagonal.add_(diagonal.amax(-1, keepdim=True), alpha=1e-14)
    return form
