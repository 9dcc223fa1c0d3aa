r"""The gradient of the loss in the attention logits, exact to rounding for any norm of W.

With :math:`s_i = \operatorname{softmax}(a_i)`, logits :math:`a_{i,t} = x_{i,t}^\top W z_i` and gains :math:`\gamma_{i,t}` (the token's
score, or :math:`Y_i\nabla h(o_i)^\top x_{i,t}` for another head),

.. math:: \nabla_W L = \frac1n\sum_i \Big(\sum_t c_{i,t}\, x_{i,t}\Big) z_i^\top, \qquad
    c_{i,t} = \ell'(f_i)\, s_{i,t}\Big(\gamma_{i,t} - \sum_\tau s_{i,\tau}\gamma_{i,\tau}\Big).

Attention concentrates on one token, :math:`s_{i,t} \to e^{-\|W\|\cdot\text{margin}}` for the others, and the bracket is then a difference
of nearly equal numbers: computed as written, it is rounding error from a norm of about 40 on. Two changes make it exact:

- All gains are taken relative to the most attended token *top*: with :math:`\delta_t = \gamma_t - \gamma_{top}` and
  :math:`e = \sum_t s_t\delta_t`, the bracket is :math:`\delta_t - e`. No term is then larger than the result.
- The coefficients are stored as :math:`e^{-C} c` with one C per trial, the largest logarithm of a share whose token has a different gain.
  Where slopes of the loss or differences of gains are extreme, their logarithms are part of C too. So the scaled coefficients are of order
  one, however small the gradient is.

Inputs that do not influence W must not determine C: those whose query is zero, or whose tokens are all equal. Equal tokens are merged into
one with the sum of their attention and the mean of their gains, which leaves the loss as it is. The :math:`c_{i,t}` of an input sum to
zero, so tokens may be centred.

Functions that run in every step take tensors without named shapes and are exempt from run-time type checks (``no_type_check``), which cost
more than the step itself.
Source: :cite:t:`tarzanagh2023transformers` (the loss and its gradient).
"""

import math
from collections.abc import Callable
from functools import cached_property
from typing import no_type_check

import numpy as np
import torch
from torch import Tensor

from ..problem import Instance
from .heads import HeadInstance
from .losses import Loss, check_loss
from .states import check_instance

Gains = Callable[[Tensor], tuple[Tensor, Tensor]]  # attention [trials, n, T] -> prediction f [trials, n, 1], gains [trials, n, T]

MODERATE_MIN = 1e-20  # slopes and differences of gains between this and its inverse need no logarithm
DATA_MAX = 1e60  # tokens and queries between the inverse of this and this: the square of their product is a float64
LOG_FLOOR = -600.0  # logarithms relative to the largest below this are cut off: exp of less is slow and loses digits (subnormal numbers)
LOG_SCALE_MAX = 200.0  # logarithm of a gradient beside which any penalty is negligible


class Gradient:
    """The data of an instance laid out for many steps, with one batch dimension.

    Attributes:
        tokens, query: centred tokens ``[trials, n, T, d]`` and queries ``[trials, n, d_z]``.
        gains: attention -> predictions and gains.
        offset: added to the logits so that equal tokens count as one and forbidden ones not at all; None if there are neither.
        tame: whether slopes and differences of gains are of moderate size for every attention.
        distinct: whether ``tame`` holds and no two tokens of an input have the same score, which allows a shorter formula.
    """

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
        self.minus_one, self.minus_infinity = tokens.new_tensor(-1.0), tokens.new_tensor(-torch.inf).expand(tokens[..., :1, 0].shape)
        allowed = getattr(instance, "allowed", None)
        same, self.offset = merge_equal_tokens(tokens, None if allowed is None else allowed.reshape(-1, n, T))
        silent = (self.query == 0).all(-1, keepdim=True)
        if isinstance(instance, Instance):
            scores = instance.scores.detach().reshape(-1, n, T)
            if same is not None:
                # The mean over equal tokens, written with differences: exact where equal tokens score the same.
                scores = scores + (same * (scores[..., None, :] - scores[..., None])).sum(-1)
            scores = scores.masked_fill(silent, 0.0)
            self.gains: Gains = lambda share: ((share * scores).sum(-1, keepdim=True), scores)
            # Predictions lie between the smallest and the largest score. The slope of a convex loss is monotone, so two slopes bound all
            # others; the differences of neighbouring scores bound the differences of all scores from below.
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
        gap = logits - highest  # log of s_t / s_top
        if self.distinct:
            return self._distinct(gap, top)
        # The softmax, with s_top kept apart: later products need s_t / s_top in the log domain and s_top as a number.
        share = gap.exp()
        top_share = share.sum(-1, keepdim=True).reciprocal_()
        share.mul_(top_share)
        f, gain = self.gains(share)
        delta = gain - gain.gather(-1, top)
        slope = self.slope(f)
        if not (self.tame or (_moderate(_positive(slope)) and _moderate(delta))):
            # Slopes or gains may underflow, so every factor stays in the log domain: level = log(|slope| |delta_t| s_t / s_top). Its
            # maximum over the trial is C, clamped because minus infinity (all deltas are zero) minus itself would be NaN.
            level = gap + self.log_slope(f) + delta.abs().log()
            C = level.amax((-2, -1), keepdim=True).clamp_(min=-1e300)
            scaled = level.sub_(C).exp_().mul_(top_share).mul_(delta.sign())
            return share.mul_(scaled.sum(-1, keepdim=True)).sub_(scaled), C
        # Tokens with the score of the most attended one (delta = 0) have no pull, so they do not determine C: otherwise a tie, whose share
        # does not vanish, would hide the pull of all other tokens.
        gap.masked_fill_(delta == 0, -torch.inf)
        C = gap.amax((-2, -1), keepdim=True).clamp_(min=-1e300)
        # c = slope (s e - s delta), slope = -l' > 0; e is the sum of the scaled terms, so the factor e^-C is common to all.
        scaled = gap.sub_(C).exp_().mul_(top_share).mul_(delta)  # e^-C s delta
        return share.mul_(scaled.sum(-1, keepdim=True)).sub_(scaled).mul_(slope), C

    @no_type_check
    def _distinct(self, gap: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
        """:meth:`coefficients` in fewer operations, for inputs whose tokens all have different scores: then only *top* has no pull.

        Most problems are small, so the number of operations determines the time. Signs are arranged so that none needs an operation.
        """
        # With u_t = s_t / s_top: 1 / s_top = 1 + sum u_t over the others, and e = s_top sum u_t delta_t. Both sums leave out top, whose
        # terms are 1 and 0, so nothing cancels. The coefficient of top is slope s_top e.
        gap.scatter_(-1, top, self.minus_infinity)
        C = gap.amax((-2, -1), keepdim=True)
        others, scale = gap.sub_(C).clamp_(min=LOG_FLOOR).exp_(), C.exp()  # e^-C s_t / s_top of the tokens other than top
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
        """The negative gradient at W ``[*trials, d, d_z]``, as :func:`~.descent.descent_direction` returns it."""
        shape = W.shape
        c, C = self.coefficients(self.logits(self.query @ W.reshape(-1, *shape[-2:]).mT))
        return -(self.pulled(c).mT @ self.query).reshape(shape), (C - math.log(self.inputs)).reshape(shape[:-2])

    @no_type_check
    def unscaled(self, c: Tensor, C: Tensor) -> tuple[Tensor, Tensor | None]:
        """c times e^C, and the logarithm of the part of the scale that is left out because it would overflow; None if it is all applied."""
        if self.tame:
            return c * C.exp(), None
        # A gradient of e^200 makes every penalty negligible, so the rest of the scale may go into the length of the step.
        applied = C.clamp(max=LOG_SCALE_MAX)
        return c * applied.exp(), C - applied

    @cached_property
    def pulled(self) -> "Rows":
        """:math:`P_i = X_i^T c_i`, ``[trials, n, T]`` -> ``[trials, n, d]``."""
        return Rows(self.tokens.flatten(0, 1))

    @cached_property
    def logits(self) -> "Rows":
        """:math:`x_{i,t}^T u_i` for :math:`u_i = W z_i` up to a constant per input, ``[trials, n, d]`` -> ``[trials, n, T]``."""
        return Rows(self.tokens.flatten(0, 1).mT)


# ---- products of many small matrices: numpy takes about half the time of torch.bmm; both share the memory of the tensors


class Product:
    """``left @ right`` of matrices ``[b, n, k]`` and ``[b, k, m]``, written to ``out`` ``[b, n, m]`` at each call."""

    def __init__(self, left: Tensor, right: Tensor, out: Tensor):
        self.left, self.right, self.out = left.numpy(), right.numpy(), out.numpy()

    @no_type_check
    def __call__(self) -> None:
        np.matmul(self.left, self.right, out=self.out)


class Rows:
    """Vectors ``[rows, k]`` times one matrix ``[k, m]`` each."""

    def __init__(self, matrices: Tensor):
        self.matrices = matrices.contiguous().numpy()

    @no_type_check
    def __call__(self, vectors: Tensor, out: Tensor | None = None) -> Tensor:
        """``[trials, n, k]`` -> ``[trials, n, m]``, written to ``out`` if it is passed."""
        rows, k, m = self.matrices.shape
        if out is None:
            out = vectors.new_empty(*vectors.shape[:-1], m)
        np.matmul(vectors.reshape(rows, 1, k).numpy(), self.matrices, out=out.view(rows, 1, m).numpy())
        return out


# ---- preparation of the data


def check_scale(**data: Tensor) -> None:
    """Checks that products of data stay in the range of float64.

    Raises:
        ValueError: they may not; the message names the data and their size.
    """
    for name, values in data.items():
        low, high = values.flatten(-2).aminmax(dim=-1)
        largest = torch.maximum(high, -low)
        wrong = (largest > DATA_MAX) | (largest < 1 / DATA_MAX) & (largest > 0)
        if bool(wrong.any()):
            size = float(largest[wrong].flatten()[0])
            raise ValueError(
                f"{name} must be between {1 / DATA_MAX:g} and {DATA_MAX:g} in size, got {size:g}: rescale them (and W, inversely)"
            )


def merge_equal_tokens(tokens: Tensor, allowed: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Equal tokens ``[trials, n, T, d]`` of an input as one, and tokens that are not ``allowed`` ``[trials, n, T]`` as none.

    Returns:
        The matrix ``[..., T, T]`` that averages over equal tokens; and the numbers to add to the logits ``[..., T]``: the logarithm of the
        number of equal tokens at the first of them, minus infinity at the others and where a token is not allowed. None if nothing
        changes.
    """
    # Sorting one coordinate rules out equal tokens in most data, without comparing all pairs.
    first = tokens[..., 0].sort(-1).values
    if bool((first[..., 1:] > first[..., :-1]).all()):
        return None, None if allowed is None else torch.zeros_like(first).masked_fill_(~allowed, -torch.inf)
    same = (tokens[..., :, None, :] == tokens[..., None, :, :]).all(-1)
    if allowed is not None:
        same = same & allowed[..., None, :] & allowed[..., None] | torch.eye(tokens.shape[-2], dtype=torch.bool)
    count = same.to(tokens.dtype).sum(-1, keepdim=True)
    # The first of each set of equal tokens represents the set: with the logarithm of their number added to its logit, it gets the attention
    # of all of them. The others get none.
    silent = same.to(torch.uint8).argmax(-1) != torch.arange(tokens.shape[-2])
    if allowed is not None:
        silent = silent | ~allowed
    offset = count.squeeze(-1).log().masked_fill(silent, -torch.inf)
    return (same / count, offset) if bool(offset.any()) else (None, None)


def _head_gains(instance: HeadInstance, tokens: Tensor, silent: Tensor) -> Gains:
    """Predictions and gains of any head; inputs whose query is zero (``silent``) get gains of zero."""
    trials, labels = instance.trials, instance.labels.reshape(*tokens.shape[:2], 1)

    @no_type_check
    def gains(share: Tensor) -> tuple[Tensor, Tensor]:
        mixture = (share[..., None, :] @ tokens).squeeze(-2)
        value, gradient = instance.head(mixture.reshape(*trials, *mixture.shape[1:]))
        gain = (tokens @ gradient.reshape(*mixture.shape, 1)).squeeze(-1)
        return value.reshape(labels.shape) * labels, (gain * labels).masked_fill(silent, 0.0)

    return gains


@no_type_check
def _moderate(values: Tensor) -> bool:
    """Whether all values except zeros are of moderate size."""
    size = values.abs()
    return bool(((size == 0) | (size >= MODERATE_MIN) & (size <= 1 / MODERATE_MIN)).all())


@no_type_check
def _positive(slope: Tensor) -> Tensor:
    """Slopes are positive: zero means underflow."""
    return slope.clamp(min=1e-300)


@no_type_check
def unit(direction: Tensor, *, over: int | tuple[int, ...] = (-2, -1), power: float = 2.0) -> tuple[Tensor, Tensor]:
    """The direction ``[..., d, d_z]`` scaled to norm one, and the logarithm of its norm.

    Args:
        over: dimensions of the norm.
        power: exponent of the norm.
    Returns:
        The unit direction and the logarithm ``[..., 1, 1]``. A direction of zero stays zero, with a finite number as logarithm.
    """
    peak = direction.abs().amax(over, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    scaled = direction / peak  # no overflow or underflow in the powers
    norm = torch.linalg.vector_norm(scaled, ord=power, dim=over, keepdim=True).clamp(min=1.0)
    return scaled / norm, peak.log() + norm.log()
