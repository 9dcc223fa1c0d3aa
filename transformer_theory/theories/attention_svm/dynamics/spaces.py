r"""Where a step is taken: on W itself, on the images :math:`u_i = W z_i`, on the logits, or on the factors K
and Q.

The gradient is :math:`\tfrac1n\sum_i P_i z_i^\top` with :math:`P_i = \sum_t c_{i,t} x_{i,t}`, so descent
subtracts
:math:`\sum_{i,t} A_{i,t} x_{i,t} z_i^\top` from its start, and W enters only through the logits. A step of
length :math:`\alpha` is, in the first three spaces (:cite:t:`tarzanagh2023transformers`),

.. math:: W \mathrel{-}= \alpha \sum_i P_i z_i^\top, \qquad
    u_i \mathrel{-}= \alpha \sum_j (z_i^\top z_j) P_j, \qquad a \mathrel{-}= \alpha\, G c,

with the Gram matrix :math:`G_{(i,t),(j,\tau)} = (x_{i,t}^\top x_{j,\tau})(z_i^\top z_j)` (the kernel trick).
In all three spaces a step is divided by the norm of the gradient in W. On the images this norm is computed as
:math:`\langle P, ZZ^\top P\rangle^{1/2}`, on the logits as :math:`(c^\top G c)^{1/2}`. A step on W costs
:math:`2nTd` multiplications for the tokens and :math:`2 n d d_z` more, a step on the images :math:`2nTd + n^2
d`, and a step on the logits :math:`(n(T - 1))^2`, independently of the dimensions.

These two norms are roots of quadratic forms and have only half the digits if terms cancel, as at a saddle.
Therefore 1e-14 of the largest diagonal entry, times the identity, is added to the matrix of the form. The
relative error of a step is at most of that size, and no step is too long.

On factors of :math:`W = K Q^\top`, with :math:`q_i = Q^\top z_i`, the logits are :math:`x_{i,t}^\top K q_i`,
W is never formed, and

.. math:: \nabla_K L = \tfrac1n \sum_i P_i q_i^\top, \qquad \nabla_Q L = \tfrac1n \sum_i z_i (K^\top P_i)^\top
    .

Each class has four methods:

- ``logits()`` returns the logits up to a constant per input, ``[trials, n, T]``.
- ``aim(c, C)`` computes the direction, :math:`n e^{-C}` times the gradient, from the coefficients of
  :mod:`.gradient`. It returns the norm of the direction, and C (None: C = 0).
- ``move(length)`` subtracts ``length`` times the direction.
- ``state(step)`` returns a copy of the state of the run.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import no_type_check

import numpy as np
import torch
from torch import Tensor

from .gradient import Gradient, Product, Rows
from .states import Carried, Factors, Frame, State, part_of

FORM_RTOL = 1e-14  # added to quadratic forms, relative to their largest diagonal entry
CALL_COST = 200  # cost of one call of a library function, in multiplications
# number of entries of the data of one part of the trials; they then stay in the processor's cache
STEP_CACHE = 450_000
FORM_CACHE = 2_000_000  # the same of Gram matrices of the logits, which a step reads once
SPAN_SHARE = 2  # the span of the queries is used if d_z is at least this many times their number


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
    def aim(self, c: Tensor, C: Tensor | None) -> tuple[Tensor, Tensor | None]:
        log_scale = C
        # The gradient of the penalty is added, so the factor e^C of the other gradient must be restored
        # first.
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


class _Span(ABC):
    """Steps in the span of the data: W is the start minus the sum of the steps.

    A run continues from its stored logits or images: recomputed from W, they would differ by rounding.
    """

    def __init__(self, data: Gradient, state: State):
        self.data, self.shape, carried = data, state.W.shape, state.carried
        if carried is not None and carried.belongs(state.W, data.tokens, data.query):
            self.origin, self.taken, self.values = (
                carried.origin,
                carried.taken.clone(),
                carried.values.clone(),
            )
        else:
            self.origin, self.taken = _flat(state.W).clone(), torch.zeros_like(data.tokens[..., 0])
            self.values = self.first(torch.bmm(data.query, self.origin.mT))
        self.c, self.direction, self.moving = self.taken, self.values, self.values

    @abstractmethod
    def first(self, images: Tensor) -> Tensor:
        """Returns the logits or images at the start, computed from the images ``[trials, n, d]``."""

    @abstractmethod
    def turned(self, c: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the change of logits or images for coefficients c, and the squared norm of the change of W,
        ``[trials, 1, 1]``.
        """

    @no_type_check
    def aim(self, c: Tensor, C: Tensor | None) -> tuple[Tensor, Tensor | None]:
        self.c = c
        self.direction, square = self.turned(c)
        return square.clamp_(min=0.0).sqrt_(), C

    @no_type_check
    def move(self, length: Tensor) -> None:
        self.moving.addcmul_(self.direction, length, value=-1)
        self.taken.addcmul_(self.c, length)

    def state(self, step: int) -> State:
        data = self.data
        W = (self.origin - torch.bmm(data.pulled(self.taken).mT, data.query)).reshape(self.shape)
        return State(
            W, step, Carried(self.origin, self.taken.clone(), self.values.clone(), W, data.tokens, data.query)
        )


class Images(_Span):
    """Steps on u = W z, ``[trials, n, d]``."""

    def __init__(self, data: Gradient, state: State):
        self.queries = _regularised(_outer(data.query))
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
    """Steps on the logits ``[trials, n, T]``: the cost does not depend on the dimensions.

    The coefficients of each input sum to zero, so its last token needs none: the logits are relative to that
    of the last token, and the Gram matrix is that of the differences of the other tokens from it, with
    n (T - 1) rows.
    """

    def __init__(self, data: Gradient, state: State):
        trials, n, T, d = data.tokens.shape
        others, last = data.tokens.split([T - 1, 1], -2)
        flat = (others - last).reshape(trials, n * (T - 1), d)
        gram = _outer(flat).view(trials, n, T - 1, n, T - 1)
        gram.mul_(_outer(data.query)[:, :, None, :, None])
        self.gram = Rows(_regularised(gram.view(trials, n * (T - 1), n * (T - 1))))
        self.out = data.tokens.new_empty(trials, n, T - 1)
        super().__init__(data, state)
        self.moving = self.values[..., :-1]

    def first(self, images: Tensor) -> Tensor:
        logits = self.data.logits(images)
        return logits - logits[..., -1:]

    @no_type_check
    def logits(self) -> Tensor:
        return self.values

    @no_type_check
    def turned(self, c: Tensor) -> tuple[Tensor, Tensor]:
        free = c[..., :-1].contiguous()
        direction = self.gram(free.view(len(c), 1, -1), out=self.out)
        return direction, (free * direction).sum((-2, -1), keepdim=True)


class Pair:
    """Steps on K and Q, normalised separately, with the penalty :math:`\\lambda(\\|K\\|_F^2 + \\|Q\\|_F^2)`
    in the loss.

    The gradient of Q has its columns in the span of the n queries. With an orthonormal basis V of this span,
    ``[d_z, n]``, :math:`Q = V C + s R`, where the rest R is orthogonal to the span: only C ``[n, width]``
    and, with a penalty, the number s change. If there are few queries, a step thus costs little more than a
    step on K alone. Otherwise C is Q itself and R = 0.
    """

    def __init__(self, data: Gradient, state: Factors, penalty: float):
        self.data, self.shapes, self.decay = data, (state.K.shape, state.Q.shape), 2 * penalty * data.inputs
        trials, n, d_z = data.query.shape
        self.K, carried, self.frame, z = (
            _flat(state.K).clone(memory_format=torch.contiguous_format),
            state.carried,
            None,
            data.query,
        )
        if SPAN_SHARE * n > d_z:
            self.C = _flat(state.Q).clone(memory_format=torch.contiguous_format)
        elif carried is not None and carried.belongs(state.Q, data.query):
            self.frame, self.C = carried, carried.coordinates.clone()
        else:
            Q, basis = _flat(state.Q), torch.linalg.qr(z.mT)[0]
            self.C = basis.mT @ Q
            self.frame = Frame(
                basis, self.C, torch.ones_like(z[:, :1, :1]), Q - basis @ self.C, state.Q, data.query
            )
        if self.frame is not None:
            z = z @ self.frame.basis
            self.share, self.rest_pull = (
                self.frame.share.clone(),
                self.decay * torch.linalg.matrix_norm(self.frame.rest)[:, None, None],
            )
        # grad K = sum_i P_i q_i^T and grad C = sum_i z_i (K^T P_i)^T, with z in the coordinates of the basis.
        # All intermediate results are preallocated, so a step allocates none for them.
        q, r = self.K.new_empty(2, trials, n, self.K.shape[-1])
        self.images, self.P = torch.empty_like(data.tokens[:, :, 0]), torch.empty_like(data.tokens[:, :, 0])
        self.direction_K, self.direction_C = torch.empty_like(self.K), torch.empty_like(self.C)
        self.sizes = self.K.new_empty(2, trials, 1, 1)
        self.size_K, self.size_C = self.sizes
        self.turn_queries, self.image, self.turn_pulls = (
            Product(z, self.C, q),
            Product(q, self.K.mT, self.images),
            Product(self.P, self.K, r),
        )
        self.turn_K, self.turn_C = Product(self.P.mT, q, self.direction_K), Product(z.mT, r, self.direction_C)

    @no_type_check
    def logits(self) -> Tensor:
        self.turn_queries()
        self.image()
        return self.data.logits(self.images)

    @no_type_check
    def aim(self, c: Tensor, C: Tensor | None) -> tuple[Tensor, Tensor | None]:
        log_scale = C
        if self.decay:
            c, log_scale = self.data.unscaled(c, C)
        self.data.pulled(c, self.P)
        self.turn_pulls()
        self.turn_K()
        self.turn_C()
        if self.decay:
            self.direction_K.add_(self.K, alpha=self.decay)
            self.direction_C.add_(self.C, alpha=self.decay)
        torch.linalg.vector_norm(self.direction_K, dim=(-2, -1), keepdim=True, out=self.size_K)
        torch.linalg.vector_norm(self.direction_C, dim=(-2, -1), keepdim=True, out=self.size_C)
        # the gradient of the penalty in the part of Q outside the span
        if self.decay and self.frame is not None:
            torch.hypot(self.size_C, self.share * self.rest_pull, out=self.size_C)
        return self.sizes, log_scale

    @no_type_check
    def move(self, length: Tensor) -> None:
        # Normalised descent has one length per factor, plain descent one for both.
        length_K, length_C = (length[0], length[1]) if length.ndim == self.sizes.ndim else (length, length)
        self.K.addcmul_(self.direction_K, length_K, value=-1)
        self.C.addcmul_(self.direction_C, length_C, value=-1)
        if self.decay and self.frame is not None:
            self.share.addcmul_(self.share, length_C, value=-self.decay)

    def state(self, step: int) -> Factors:
        K, C = self.K.reshape(self.shapes[0]).clone(), self.C.clone()
        if self.frame is None:
            return Factors(K, C.reshape(self.shapes[1]), step)
        Q = (self.frame.basis @ C + self.share * self.frame.rest).reshape(self.shapes[1])
        return Factors(K, Q, step, replace(self.frame, coordinates=C, share=self.share.clone(), Q=Q))


Space = Weights | Images | Logits | Pair


def space(data: Gradient, state: State | Factors, penalty: float) -> Space:
    """Returns the variables of a run in the space in which a step is cheapest."""
    if isinstance(state, Factors):
        return Pair(data, state, penalty)
    kind = cheapest(data, penalty)
    return Weights(data, state, penalty) if issubclass(kind, Weights) else kind(data, state)


def cheapest(data: Gradient, penalty: float) -> type[Weights] | type[Images] | type[Logits]:
    """Returns the space in which a step on W is cheapest. With a penalty this is W itself, since its gradient
    may leave the span of the data.
    """
    _, n, T, d = data.tokens.shape
    d_z = data.query.shape[-1]
    # Multiplications per input. Steps on images and on W need three more calls than steps on logits.
    images, weights, logits = (
        2 * T * d + n * d + 3 * CALL_COST,
        2 * T * d + 2 * d * d_z + 3 * CALL_COST,
        n * (T - 1) ** 2,
    )
    if penalty or weights < min(images, logits):
        return Weights
    return Logits if logits <= images else Images


def parts(data: Gradient, state: State | Factors, penalty: float) -> list[tuple[Gradient, Space]]:
    """Returns data and variables of parts of the trials. A run on one part at a time finds its data in the
    processor's cache.

    The trials are independent, so the parts take the same steps as the whole.
    """
    trials, n, T, d = data.tokens.shape
    # Per trial, a step reads the Gram matrix, or the tokens, the factors and their directions.
    if isinstance(state, Factors):
        width, cache = state.K.shape[-1], STEP_CACHE
        entries = n * T * d + 2 * width * (d + min(n, data.query.shape[-1]))
    elif cheapest(data, penalty) is Logits:
        entries, cache = (n * (T - 1)) ** 2, FORM_CACHE
    else:
        entries, cache = n * T * d, STEP_CACHE
    number = min(trials, math.ceil(trials * entries / cache)) if data.separable else 1
    if number <= 1:
        return [(data, space(data, state, penalty))]
    result = []
    for k in range(number):
        rows = slice(trials * k // number, trials * (k + 1) // number)
        part = data.part(rows)
        result.append((part, space(part, part_of(state, trials, rows), penalty)))
    return result


def _flat(V: Tensor) -> Tensor:
    """Merges the dimensions of the trials: ``[*trials, a, b]`` -> ``[trials, a, b]``."""
    return V.detach().reshape(-1, *V.shape[-2:])


def _outer(vectors: Tensor) -> Tensor:
    """Returns the Gram matrices of vectors ``[trials, k, d]``, ``[trials, k, k]``; numpy computes one half of
    them.
    """
    rows = vectors.numpy()
    return torch.from_numpy(np.matmul(rows, rows.swapaxes(-1, -2)))


def _regularised(form: Tensor) -> Tensor:
    """Adds a small multiple of the identity to quadratic forms ``[trials, k, k]``, in place, and returns
    them.
    """
    diagonal = form.diagonal(dim1=-2, dim2=-1)
    diagonal.add_(diagonal.amax(-1, keepdim=True), alpha=FORM_RTOL)
    return form
