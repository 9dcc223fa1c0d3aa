r"""The gradient of the loss in the attention logits, exact to rounding however sharp attention is.

With :math:`s_i = \operatorname{softmax}(a_i)`, logits :math:`a_{i,t} = x_{i,t}^\top W z_i` and gains :math:`\gamma_{i,t}` (the token's
score, or :math:`Y_i\nabla h(o_i)^\top x_{i,t}` for another head),

.. math:: \nabla_W L = \frac1n\sum_i \Big(\sum_t c_{i,t}\, x_{i,t}\Big) z_i^\top, \qquad
    c_{i,t} = \ell'(f_i)\, s_{i,t}\Big(\gamma_{i,t} - \sum_\tau s_{i,\tau}\gamma_{i,\tau}\Big).

Attention concentrates on one token, :math:`s_{i,t} \to e^{-\|W\|\cdot\text{margin}}` for the others, and the bracket is then a difference
of nearly equal numbers: computed as written, it is rounding error from a norm of about 40 on. Here every quantity is a difference to the
most attended token *top*: with :math:`\delta_t = \gamma_t - \gamma_{top}` and :math:`e = \sum_t s_t\delta_t`, the bracket is
:math:`\delta_t - e`. And c is kept as :math:`e^{-C} c` with one C a trial, the largest logarithm of a share that matters. Where slopes of
the loss or differences of gains leave the moderate range, their logarithms count in C too: c is then about one, whatever their size.

Inputs without a say in W must not set C: those whose query is zero, or whose tokens are all equal. Equal tokens are merged into one with
the sum of their attention and the mean of their gains, which leaves the loss as it is. The :math:`c_{i,t}` of an input sum to zero, so
that tokens may be taken from their mean.

What every step of a run calls, here and beside, takes tensors without names of shapes and is spared run-time checks of types
(``no_type_check``), which take longer than the step.

Source: the model is that of :cite:t:`tarzanagh2023transformers`.
"""

import math
from collections.abc import Callable
from functools import cached_property
from typing import no_type_check

import torch
from torch import Tensor

from ..problem import Instance
from .heads import HeadInstance
from .losses import Loss, check_loss
from .products import Rows
from .states import check_instance

Gains = Callable[[Tensor], tuple[Tensor, Tensor]]  # attention [trials, n, T] -> prediction f [trials, n, 1], gains [trials, n, T]
MODERATE = 1e-20  # slopes and differences from here to the inverse need no logarithm
EXTREME = 1e60  # tokens and queries from the inverse to here: the square of their product is a float64 with room to spare
FAINT = -600.0  # a logarithm that is nothing beside zero; further down, numbers lose digits and processors their speed


class Gradient:
    """The data of an instance laid out for many steps, with one batch dimension."""

    def __init__(self, instance: Instance | HeadInstance, loss: Loss):
        check_instance(instance)
        check_loss(loss)
        n, T, d = instance.tokens.shape[-3:]
        check_scale(tokens=instance.tokens, query=instance.query)
        self.slope, self.log_slope = loss.slope, loss.log_slope
        self.inputs = n
        tokens = instance.tokens.detach().reshape(-1, n, T, d)
        self.query = instance.query.detach().reshape(-1, n, instance.query.shape[-1])
        self.tokens = tokens - tokens.mean(-2, keepdim=True)
        self.minus_one, self.nothing = tokens.new_tensor(-1.0), tokens.new_tensor(-torch.inf).expand(tokens[..., :1, 0].shape)
        allowed = getattr(instance, "allowed", None)
        same, self.offset = merged(tokens, None if allowed is None else allowed.reshape(-1, n, T))
        silent = (self.query == 0).all(-1, keepdim=True)
        if isinstance(instance, Instance):
            scores = instance.scores.detach().reshape(-1, n, T)
            if same is not None:  # differences are zero where equal tokens score the same: their mean is then exact
                scores = scores + (same * (scores[..., None, :] - scores[..., None])).sum(-1)
            scores = scores.masked_fill(silent, 0.0)
            self.gains: Gains = lambda share: ((share * scores).sum(-1, keepdim=True), scores)
            ordered = scores.sort(-1).values
            self.tame = _moderate(_positive(loss.slope(ordered[..., [0, -1]]))) and _moderate(ordered.diff(dim=-1))
            self.distinct = self.tame and self.offset is None and bool((ordered[..., 1:] > ordered[..., :-1]).all())
            self.scores = scores
        else:
            self.gains, self.distinct, self.tame = _head_gains(instance, tokens, silent), False, False

    @no_type_check
    def coefficients(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """:math:`e^{-C} c` ``[trials, n, T]`` and C ``[trials, 1, 1]``."""
        if self.offset is not None:
            logits = logits + self.offset
        highest, top = logits.max(-1, keepdim=True)
        gap = logits - highest
        if self.distinct:
            return self._distinct(gap, top)
        share = gap.exp()
        top_share = share.sum(-1, keepdim=True).reciprocal_()
        share.mul_(top_share)
        f, gain = self.gains(share)
        delta = gain - gain.gather(-1, top)
        slope = self.slope(f)
        if not (self.tame or (_moderate(_positive(slope)) and _moderate(delta))):
            level = gap + self.log_slope(f) + delta.abs().log()
            C = level.amax((-2, -1), keepdim=True).clamp_(min=-1e300)
            scaled = level.sub_(C).exp_().mul_(top_share).mul_(delta.sign())
            return share.mul_(scaled.sum(-1, keepdim=True)).sub_(scaled), C
        gap.masked_fill_(delta == 0, -torch.inf)
        C = gap.amax((-2, -1), keepdim=True).clamp_(min=-1e300)
        scaled = gap.sub_(C).exp_().mul_(top_share).mul_(delta)  # e^-C s delta
        return share.mul_(scaled.sum(-1, keepdim=True)).sub_(scaled).mul_(slope), C

    @no_type_check
    def _distinct(self, gap: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
        """The same in fewer operations, where no two tokens of an input have the same score: then top alone has no say in C.

        Most problems are small and the number of operations is what counts, so that signs are chosen to need none of their own.
        """
        gap.scatter_(-1, top, self.nothing)
        C = gap.amax((-2, -1), keepdim=True)
        others, scale = gap.sub_(C).clamp_(min=FAINT).exp_(), C.exp()  # e^-C s / s_top, for the others than top
        best = self.scores.gather(-1, top)
        pull = torch.sub(self.scores, best).mul_(others)
        lost = torch.addcmul(self.minus_one, others.sum(-1, keepdim=True), scale, value=-1).reciprocal_()  # -s_top
        excess = pull.sum(-1, keepdim=True).mul_(lost)  # -e^-C e
        e = excess * scale
        weight = self.slope(best.sub_(e)).mul_(lost)
        return pull.addcmul_(others, e).scatter_(-1, top, excess).mul_(weight), C

    @torch.no_grad()
    @no_type_check
    def descent(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """The negative gradient at W ``[*trials, d, d_z]`` as :func:`~.descent.descent_direction` gives it."""
        shape = W.shape
        c, C = self.coefficients(self.logits(self.query @ W.reshape(-1, *shape[-2:]).mT))
        return -(self.pulled(c).mT @ self.query).reshape(shape), (C - math.log(self.inputs)).reshape(shape[:-2])

    @no_type_check
    def unscaled(self, c: Tensor, C: Tensor) -> tuple[Tensor, Tensor | None]:
        """c times its scale, and the logarithm of what is left out of it: beyond e^200 any penalty is nothing beside the gradient."""
        if self.tame:
            return c * C.exp(), None
        held = C.clamp(max=200.0)
        return c * held.exp(), C - held

    @cached_property
    def pulled(self) -> Rows:
        """:math:`P_i = X_i^T c_i`, ``[trials, n, T]`` -> ``[trials, n, d]``."""
        return Rows(self.tokens.flatten(0, 1))

    @cached_property
    def logits(self) -> Rows:
        """:math:`x_{i,t}^T u_i` for :math:`u_i = W z_i` up to a number an input, ``[trials, n, d]`` -> ``[trials, n, T]``."""
        return Rows(self.tokens.flatten(0, 1).mT)


def check_scale(**data: Tensor) -> None:
    """Refuses data of which products leave the range of float64.

    Raises:
        ValueError: says which and how large.
    """
    for name, values in data.items():
        low, high = values.flatten(-2).aminmax(dim=-1)
        largest = torch.maximum(high, -low)
        wrong = (largest > EXTREME) | (largest < 1 / EXTREME) & (largest > 0)
        if bool(wrong.any()):
            came = float(largest[wrong].flatten()[0])
            raise ValueError(
                f"{name} must be between {1 / EXTREME:g} and {EXTREME:g} in size, got {came:g}: rescale them (and W, inversely)"
            )


@no_type_check
def _moderate(values: Tensor) -> bool:
    """Whether all but zeros are of moderate size."""
    size = values.abs()
    return bool(((size == 0) | (size >= MODERATE) & (size <= 1 / MODERATE)).all())


@no_type_check
def _positive(slope: Tensor) -> Tensor:
    """Slopes are: zero means that it is too small a number."""
    return slope.clamp(min=1e-300)


def merged(tokens: Tensor, allowed: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Equal tokens of an input as one, and tokens ``[trials, n, T]`` that are not allowed as none.

    Returns:
        The matrix ``[..., T, T]`` that averages over equal tokens; and what to add to the logits ``[..., T]``: the logarithm of their
        number at the first of them, minus infinity at the others and where a token is not allowed. None if it would change nothing.
    """
    first = tokens[..., 0].sort(-1).values
    if bool((first[..., 1:] > first[..., :-1]).all()):  # no two tokens agree in their first coordinate
        return None, None if allowed is None else torch.zeros_like(first).masked_fill_(~allowed, -torch.inf)
    same = (tokens[..., :, None, :] == tokens[..., None, :, :]).all(-1)
    if allowed is not None:
        same = same & allowed[..., None, :] & allowed[..., None] | torch.eye(tokens.shape[-2], dtype=torch.bool)
    count = same.to(tokens.dtype).sum(-1, keepdim=True)
    silent = same.to(torch.uint8).argmax(-1) != torch.arange(tokens.shape[-2])  # an equal token comes before
    if allowed is not None:
        silent = silent | ~allowed
    offset = count.squeeze(-1).log().masked_fill(silent, -torch.inf)
    return (same / count, offset) if bool(offset.any()) else (None, None)


def _head_gains(instance: HeadInstance, tokens: Tensor, silent: Tensor) -> Gains:
    trials, labels = instance.trials, instance.labels.reshape(*tokens.shape[:2], 1)

    @no_type_check
    def gains(share: Tensor) -> tuple[Tensor, Tensor]:
        mixture = (share[..., None, :] @ tokens).squeeze(-2)
        value, gradient = instance.head(mixture.reshape(*trials, *mixture.shape[1:]))
        gain = (tokens @ gradient.reshape(*mixture.shape, 1)).squeeze(-1)
        return value.reshape(labels.shape) * labels, (gain * labels).masked_fill(silent, 0.0)

    return gains
