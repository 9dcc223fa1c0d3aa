r"""Where a step is taken: on W itself, on the images :math:`u_i = W z_i`, on the logits, or on the factors K and Q.

The gradient is :math:`\tfrac1n\sum_i P_i z_i^\top` with :math:`P_i = \sum_t c_{i,t} x_{i,t}`, so descent subtracts
:math:`\sum_{i,t} A_{i,t} x_{i,t} z_i^\top` from its start, and W enters only through the logits. A step of length :math:`\alpha` is, in the
first three spaces (:cite:t:`tarzanagh2023transformers`),

.. math:: W \mathrel{-}= \alpha \sum_i P_i z_i^\top, \qquad
    u_i \mathrel{-}= \alpha \sum_j (z_i^\top z_j) P_j, \qquad a \mathrel{-}= \alpha\, G c,

with the Gram matrix :math:`G_{(i,t),(j,\tau)} = (x_{i,t}^\top x_{j,\tau})(z_i^\top z_j)` (the kernel trick). In all three spaces a step is
divided by the norm of the gradient in W. On the images this norm is computed as :math:`\langle P, ZZ^\top P\rangle^{1/2}`, on the logits
as :math:`(c^\top G c)^{1/2}`. A step on W costs :math:`2nTd` multiplications for the tokens and :math:`2 n d d_z` more, a step on the
images :math:`2nTd + n^2 d`, and a step on the logits :math:`(nT)^2`, independently of the dimensions.

These two norms are roots of quadratic forms and have only half the digits if terms cancel, as at a saddle. Therefore 1e-14 of the largest
diagonal entry, times the identity, is added to the matrix of the form. The relative error of a step is at most of that size, and no step
is too long.

On factors of :math:`W = K Q^\top`, with :math:`q_i = Q^\top z_i`, the logits are :math:`x_{i,t}^\top K q_i`, W is never formed, and

.. math:: \nabla_K L = \tfrac1n \sum_i P_i q_i^\top, \qquad \nabla_Q L = \tfrac1n \sum_i z_i (K^\top P_i)^\top .

Each class has four methods:

- ``logits()`` returns the logits up to a constant per input, ``[trials, n, T]``.
- ``aim(c, C)`` computes the direction, :math:`n e^{-C}` times the gradient, from the coefficients of :mod:`.gradient`. It returns the norm
  of the direction, and C (None: C = 0).
- ``move(length)`` subtracts ``length`` times the direction.
- ``state(step)`` returns a copy of the state of the run.
"""

from typing import no_type_check

import torch
from torch import Tensor

from .gradient import Gradient, Product, Rows
from .states import Carried, Factors, State

FORM_RTOL = 1e-14  # added to quadratic forms, relative to their largest diagonal entry
CALL_COST = 200  # cost of one call of a library function, in multiplications


class Weights:
    """Steps on W, with the penalty :math:`\\lambda\\|W\\|_F^2` in the loss."""

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
        log_scale: Tensor | None = C
        # The gradient of the penalty is added, so the factor e^C of the other gradient must be restored first.
        if self.decay:
            c, log_scale = self.data.unscaled(c, C)
        self.direction = torch.bmm(self.data.pulled(c).mT, self.data.query)
        if self.decay:
            self.direction.add_(self.W, alpha=self.decay)
        return torch.linalg.vector_norm(self.direction, dim=(-2, -1), keepdim=True), log_scale

    @no_type_check
    def move(self, length: Tensor) -> None:
        self.W.addcmul_(self.direction, length, value=-1)

    def state(self, step: int) -> State:
        return State(self.W.reshape(self.shape).clone(), step)


class _Span:
    """Steps in the span of the data: W is the start minus the sum of the steps.

    A run continues from its stored logits or images: recomputed from W, they would differ by rounding.
    """

    def __init__(self, data: Gradient, state: State):
        self.data, self.shape, carried = data, state.W.shape, state.carried
        if carried is not None and carried.belongs(state.W, data.tokens, data.query):
            self.origin, self.taken, self.values = carried.origin, carried.taken.clone(), carried.values.clone()
        else:
            self.origin, self.taken = _flat(state.W).clone(), torch.zeros_like(data.tokens[..., 0])
            self.values = self.first(torch.bmm(data.query, self.origin.mT))
        self.c, self.direction = self.taken, self.values

    def first(self, images: Tensor) -> Tensor:
        """Returns the logits or images at the start, computed from the images ``[trials, n, d]``."""
        raise NotImplementedError

    def turned(self, c: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the change of logits or images for coefficients c, and the squared norm of the change of W, ``[trials, 1, 1]``."""
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
        self.queries = _regularised(torch.bmm(data.query, data.query.mT))
        super().__init__(data, state)

    def first(self, images: Tensor) -> Tensor:
        return images

    @no_type_check
    def logits(self) -> Tensor:
        return self.data.logits(self.values)

    @no_type_check
    def turned(self, c: Tensor) -> tuple[Tensor, Tensor]:
        # |sum_i P_i z_i^T|^2 = <P, Z Z^T P>, so the matrix itself is not needed.
        P = self.data.pulled(c)
        direction = torch.bmm(self.queries, P)
        return direction, P.mul_(direction).sum((-2, -1), keepdim=True)


class Logits(_Span):
    """Steps on the logits ``[trials, n, T]``: the cost does not depend on the dimensions."""

    def __init__(self, data: Gradient, state: State):
        trials, n, T, d = data.tokens.shape
        flat = data.tokens.reshape(trials, n * T, d)
        gram = torch.bmm(flat, flat.mT).view(trials, n, T, n, T)
        gram.mul_(torch.bmm(data.query, data.query.mT)[:, :, None, :, None])
        self.gram = Rows(_regularised(gram.view(trials, n * T, n * T)))
        self.out = data.tokens.new_empty(trials, 1, n * T)
        super().__init__(data, state)

    def first(self, images: Tensor) -> Tensor:
        return self.data.logits(images).contiguous()

    @no_type_check
    def logits(self) -> Tensor:
        return self.values

    @no_type_check
    def turned(self, c: Tensor) -> tuple[Tensor, Tensor]:
        direction = self.gram(c.view(len(c), 1, -1), out=self.out).view(c.shape)
        return direction, (c * direction).sum((-2, -1), keepdim=True)


class Pair:
    """Steps on K and Q, normalised separately, with the penalty :math:`\\lambda(\\|K\\|_F^2 + \\|Q\\|_F^2)` in the loss.

    K and Q share one tensor, padded with zeros if :math:`d \\ne d_z`, and so do their gradients, so that one operation moves both.
    """

    def __init__(self, data: Gradient, state: Factors, penalty: float):
        self.data, self.shapes, self.decay = data, (state.K.shape, state.Q.shape), 2 * penalty * data.inputs
        trials, n, d_z = data.query.shape
        self.rows, width = (state.K.shape[-2], d_z), state.K.shape[-1]
        self.both = data.query.new_zeros(2, trials, max(self.rows), width)
        self.K, self.Q = (self.both[k, :, :rows] for k, rows in enumerate(self.rows))
        for view, V in ((self.K, state.K), (self.Q, state.Q)):
            view.copy_(V.detach().reshape(view.shape))
        # grad K = sum_i P_i q_i^T and grad Q = sum_i z_i (K^T P_i)^T are products of the same form, left^T right, so one batched product of
        # two blocks computes both. All intermediate results are views of preallocated memory, so a step allocates none for them.
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
        log_scale: Tensor | None = C
        if self.decay:
            c, log_scale = self.data.unscaled(c, C)
        self.data.pulled(c, self.P)
        self.turn_pulls()
        self.turn()
        if self.decay:
            self.direction.add_(self.both, alpha=self.decay)
        return torch.linalg.vector_norm(self.direction, dim=(-2, -1), keepdim=True), log_scale

    @no_type_check
    def move(self, length: Tensor) -> None:
        self.both.addcmul_(self.direction, length, value=-1)

    def state(self, step: int) -> Factors:
        K, Q = (V.reshape(shape).clone() for V, shape in zip((self.K, self.Q), self.shapes))
        return Factors(K, Q, step)


def space(data: Gradient, state: State | Factors, penalty: float) -> Weights | Images | Logits | Pair:
    """Returns the space in which a step is cheapest. With a penalty this is W, since its gradient may leave the span of the data."""
    if isinstance(state, Factors):
        return Pair(data, state, penalty)
    _, n, T, d = data.tokens.shape
    d_z = data.query.shape[-1]
    # Multiplications per input. Steps on images and on W need three more calls than steps on logits.
    images, weights, logits = 2 * T * d + n * d + 3 * CALL_COST, 2 * T * d + 2 * d * d_z + 3 * CALL_COST, n * T * T
    if penalty or weights < min(images, logits):
        return Weights(data, state, penalty)
    return Logits(data, state) if logits <= images else Images(data, state)


def _flat(V: Tensor) -> Tensor:
    """Merges the dimensions of the trials: ``[*trials, a, b]`` -> ``[trials, a, b]``."""
    return V.detach().reshape(-1, *V.shape[-2:])


def _regularised(form: Tensor) -> Tensor:
    """Adds a small multiple of the identity to quadratic forms ``[trials, k, k]``, in place, and returns them."""
    diagonal = form.diagonal(dim1=-2, dim2=-1)
    diagonal.add_(diagonal.amax(-1, keepdim=True), alpha=FORM_RTOL)
    return form
