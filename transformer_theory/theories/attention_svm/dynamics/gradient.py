r"""The gradient of the loss in the attention logits, exact to rounding for any norm of W.

With :math:`s_i = \operatorname{softmax}(a_i)`, logits :math:`a_{i,t} = x_{i,t}^\top W z_i` and gains
:math:`\gamma_{i,t}` (the token's score, or :math:`Y_i\nabla h(o_i)^\top x_{i,t}` for another head),

.. math:: \nabla_W L = \frac1n\sum_i \Big(\sum_t c_{i,t}\, x_{i,t}\Big) z_i^\top, \qquad
    c_{i,t} = \ell'(f_i)\, s_{i,t}\Big(\gamma_{i,t} - \sum_\tau s_{i,\tau}\gamma_{i,\tau}\Big).

As attention concentrates on one token, :math:`s_{i,t} \to e^{-\|W\|\cdot\text{margin}}` for the others, and
the bracket is a difference of nearly equal numbers. Evaluated as written, it is only rounding error once the
norm of W exceeds about 40. Two changes make it exact:

- All gains are relative to the gain of the most attended token *top*: with :math:`\delta_t = \gamma_t -
  \gamma_{top}` and :math:`e = \sum_t s_t\delta_t`, the bracket is :math:`\delta_t - e`. No term is then
  larger than the result.
- The coefficients are stored as :math:`e^{-C} c` with one C per trial. It is the largest logarithm of
  :math:`s_{i,t} / s_{i,top}` over the tokens with :math:`\delta_t \ne 0`. If slopes of the loss or
  differences of gains are extreme, C includes their logarithms too. So the scaled coefficients are of order
  one, however small the gradient is. While attention is moderate, a run leaves the scale out: C = 0.

An input with a zero query, or with equal tokens only, has no influence on W and must not determine C. Equal
tokens are merged into one token with the sum of their attention and the mean of their gains, which does not
change the loss. The :math:`c_{i,t}` of each input sum to zero, so the tokens of each input may be centred.

Functions that run in every step take tensors without named shapes and are exempt from run-time type checks
(``no_type_check``), which would cost more than the step itself. The loss and its gradient come from
:cite:t:`tarzanagh2023transformers`.
"""

import math
from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import no_type_check

import numpy as np
import torch
from torch import Tensor

from ..problem import Instance
from .heads import HeadInstance
from .losses import Loss, check_loss
from .states import check_instance

# attention [trials, n, T] -> prediction f [trials, n, 1], gains [trials, n, T]
Gains = Callable[[Tensor], tuple[Tensor, Tensor]]

MODERATE_MIN = 1e-20  # slopes and differences of gains between this and its inverse need no logarithms
# if tokens and queries lie between the inverse of this and this, squares of their products stay in the range
# of float64
DATA_MAX = 1e60
# lower bound of logarithms relative to the largest; exp of less gives subnormal numbers, which are slow and
# inexact
LOG_FLOOR = -600.0
COPIED_SIZE = 256  # up to this number of entries, the tokens of an input are also stored as columns
# down to this size of every :math:`\sum_\tau s_\tau \delta_\tau`, coefficients of moderate data need no scale
SHALLOW_MIN = 1e-60
LOG_SCALE_MAX = 200.0  # logarithm of a gradient relative to which any penalty is negligible


class Gradient:
    """The data of an instance laid out for many steps, with one batch dimension.

    Attributes:
        tokens, query: centred tokens ``[trials, n, T, d]`` and queries ``[trials, n, d_z]``.
        gains: function from attention to predictions and gains.
        offset: term of the logits that merges equal tokens and excludes forbidden ones; None if there are
            neither.
        tame: whether slopes and differences of gains have moderate size for every attention.
        distinct: whether ``tame`` holds and all tokens of each input have different scores, which allows a
            shorter formula.
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
        self.minus_one, self.minus_infinity = (
            tokens.new_tensor(-1.0),
            tokens.new_tensor(-torch.inf).expand(tokens[..., :1, 0].shape),
        )
        allowed = getattr(instance, "allowed", None)
        same, self.offset = merge_equal_tokens(tokens, None if allowed is None else allowed.reshape(-1, n, T))
        zero_query = (self.query == 0).all(-1, keepdim=True)
        if isinstance(instance, Instance):
            scores = instance.scores.detach().reshape(-1, n, T)
            if same is not None:
                # The mean over equal tokens, computed from differences: it is exact if equal tokens have
                # equal scores.
                scores = scores + (same * (scores[..., None, :] - scores[..., None])).sum(-1)
            scores = scores.masked_fill(zero_query, 0.0)
            self.scores, self.gains = scores, self._linear_gains
            # Predictions lie between the smallest and the largest score. The slope of a convex loss is
            # monotone, so the slopes at these two bound all others. Differences of adjacent scores bound all
            # differences of scores from below.
            ordered = scores.sort(-1).values
            self.tame = _moderate(_positive(loss.slope(ordered[..., [0, -1]]))) and _moderate(
                ordered.diff(dim=-1)
            )
            self.distinct = (
                self.tame and self.offset is None and bool((ordered[..., 1:] > ordered[..., :-1]).all())
            )
            moderate = _moderate(_largest(self.tokens.flatten(1))) and _moderate(
                _largest(self.query.flatten(1))
            )
            self.shallow = SHALLOW_MIN if moderate else math.inf
        else:
            self.scores, self.gains, self.distinct, self.tame = (
                None,
                _head_gains(instance, tokens, zero_query),
                False,
                False,
            )

    @property
    def separable(self) -> bool:
        """Whether :meth:`part` works: a head other than the linear one takes all trials at once."""
        return self.scores is not None

    def part(self, rows: slice) -> "Gradient":
        """Returns the data of the trials ``rows`` if they are separable; ``tame`` and ``distinct`` are those
        of all trials.
        """
        part = copy(self)
        for name in ("tokens", "query", "scores", "minus_infinity", "offset"):
            value = getattr(self, name)
            setattr(part, name, None if value is None else value[rows])
        part.gains = part._linear_gains
        return part

    @no_type_check
    def _linear_gains(self, share: Tensor) -> tuple[Tensor, Tensor]:
        return (share * self.scores).sum(-1, keepdim=True), self.scores

    @no_type_check
    def coefficients(self, logits: Tensor, *, scaled: bool = False) -> tuple[Tensor, Tensor | None]:
        """Returns :math:`e^{-C} c` ``[trials, n, T]`` and C ``[trials, 1, 1]`` for logits ``[trials,
        n, T]``.

        Without ``scaled``, C is None, which means 0 for all trials, if none needs a scale; this takes less
        time.
        """
        if self.offset is not None:
            logits = logits + self.offset
        highest, top = logits.max(-1, keepdim=True)
        gap = logits - highest  # log of s_t / s_top
        if self.distinct:
            return self._distinct(gap, top, scaled)
        # This is the softmax, with s_top as a separate factor: later products need log(s_t / s_top) and
        # s_top.
        share = gap.exp()
        top_share = share.sum(-1, keepdim=True).reciprocal_()
        share.mul_(top_share)
        f, gain = self.gains(share)
        delta = gain - gain.gather(-1, top)
        slope = self.slope(f)
        if not (self.tame or (_moderate(_positive(slope)) and _moderate(delta))):
            # Slopes or gains may underflow, so every factor stays in the log domain: level = log(|slope|
            # |delta_t| s_t / s_top). C is its maximum over the trial. If all deltas are zero it is minus
            # infinity, and the clamp prevents NaN in the difference level - C.
            level = gap + self.log_slope(f) + delta.abs().log()
            C = level.amax((-2, -1), keepdim=True).clamp_(min=-1e300)
            scaled = level.sub_(C).exp_().mul_(top_share).mul_(delta.sign())
            return share.mul_(scaled.sum(-1, keepdim=True)).sub_(scaled), C
        # Tokens with the same gain as the most attended one (delta = 0) exert no pull, so they must not
        # determine C. The share of such a tied token does not vanish: it would make C too large, and the
        # terms of all other tokens would underflow.
        gap.masked_fill_(delta == 0, -torch.inf)
        C = gap.amax((-2, -1), keepdim=True).clamp_(min=-1e300)
        # c = slope (s e - s delta) with slope = -l' > 0. The sum of the scaled terms is e^-C e, so all terms
        # have the factor e^-C.
        scaled = gap.sub_(C).exp_().mul_(top_share).mul_(delta)  # e^-C s delta
        return share.mul_(scaled.sum(-1, keepdim=True)).sub_(scaled).mul_(slope), C

    @no_type_check
    def _distinct(self, gap: Tensor, top: Tensor, scaled: bool) -> tuple[Tensor, Tensor | None]:
        """Computes :meth:`coefficients` in fewer operations if all tokens of each input have different
        scores.

        Most problems are small, so the number of operations determines the time; the signs of the
        intermediate results are chosen such that no negation is needed.
        """
        best = self.scores.gather(-1, top)
        delta = self.scores - best
        # Let u_t = s_t / s_top. Then 1 / s_top = sum u_t, and e = s_top sum u_t delta_t.
        if not scaled:
            ratio = _exp(gap)
            pull = delta * ratio
            minus_total = ratio.sum(-1, keepdim=True).neg_()
            minus_e = pull.sum(-1, keepdim=True).div_(minus_total)
            if float(minus_e.abs().amin()) >= self.shallow:
                weight = self.slope(best.sub_(minus_e)).div_(minus_total)  # best - (-e) is the prediction f
                return pull.addcmul_(ratio, minus_e).mul_(weight), None
        # Attention may be so concentrated that c underflows, hence the factor e^-C. Only *top* exerts no
        # pull. The sums exclude it: it would contribute 1 and 0, so nothing cancels. Its coefficient is slope
        # s_top e.
        gap.scatter_(-1, top, self.minus_infinity)
        C = gap.amax((-2, -1), keepdim=True)
        # e^-C s_t / s_top of the tokens other than top
        ratio, scale = gap.sub_(C).clamp_(min=LOG_FLOOR).exp_(), C.exp()
        pull = delta.mul_(ratio)
        # -s_top
        minus_top = torch.addcmul(self.minus_one, ratio.sum(-1, keepdim=True), scale, value=-1).reciprocal_()
        excess = pull.sum(-1, keepdim=True).mul_(minus_top)  # -e^-C e
        minus_e = excess * scale
        weight = self.slope(best.sub_(minus_e)).mul_(minus_top)
        return pull.addcmul_(ratio, minus_e).scatter_(-1, top, excess).mul_(weight), C

    @torch.no_grad()
    @no_type_check
    def descent(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the negative gradient at W ``[*trials, d, d_z]`` in the form of
        :func:`~.descent.descent_direction`.
        """
        shape = W.shape
        logits = self.logits(self.query @ W.reshape(-1, *shape[-2:]).mT)
        c, C = self.coefficients(logits, scaled=True)
        return -(self.pulled(c).mT @ self.query).reshape(shape), (C - math.log(self.inputs)).reshape(
            shape[:-2]
        )

    @no_type_check
    def unscaled(self, c: Tensor, C: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Returns c times e^C without the part of e^C that would overflow, and the logarithm of this part
        (None: there is no such part).
        """
        if C is None:
            return c, None
        if self.tame:
            return c * C.exp(), None
        # Relative to a gradient of e^200 every penalty is negligible, so the rest of the scale may become
        # part of the length of the step.
        applied = C.clamp(max=LOG_SCALE_MAX)
        return c * applied.exp(), C - applied

    @cached_property
    def pulled(self) -> "Rows":
        """The map :math:`P_i = X_i^T c_i`, ``[trials, n, T]`` -> ``[trials, n, d]``."""
        return Rows(self.tokens.flatten(0, 1))

    @cached_property
    def logits(self) -> "Rows":
        """The map from u = W z ``[trials, n, d]`` to the logits :math:`x_{i,t}^T u_i` up to a constant per
        input ``[trials, n, T]``.
        """
        columns = self.tokens.flatten(0, 1).mT
        # A contiguous copy makes the product of a small matrix faster; for a larger one, reading the copy
        # costs more than it gains.
        return Rows(columns.contiguous() if columns[0].numel() <= COPIED_SIZE else columns)


# ---- products of many small matrices: numpy takes about half the time of torch.bmm; both share the memory of
# the tensors


class Product:
    """The product of matrices ``left`` ``[b, n, k]`` and ``right`` ``[b, k, m]``; each call writes it to
    ``out`` ``[b, n, m]``.
    """

    def __init__(self, left: Tensor, right: Tensor, out: Tensor):
        self.left, self.right, self.out = left.numpy(), right.numpy(), out.numpy()

    @no_type_check
    def __call__(self) -> None:
        np.matmul(self.left, self.right, out=self.out)


class Rows:
    """The product of vectors ``[rows, k]`` with one matrix ``[k, m]`` per row."""

    def __init__(self, matrices: Tensor):
        self.matrices = matrices.numpy()

    @no_type_check
    def __call__(self, vectors: Tensor, out: Tensor | None = None) -> Tensor:
        """Maps ``[trials, n, k]`` to ``[trials, n, m]``; writes to ``out`` if it is passed."""
        rows, k, m = self.matrices.shape
        if out is None:
            out = vectors.new_empty(*vectors.shape[:-1], m)
        np.matmul(vectors.reshape(rows, 1, k).numpy(), self.matrices, out=out.view(rows, 1, m).numpy())
        return out


# ---- preparation of the data


def check_scale(**data: Tensor) -> None:
    """Checks that products of tokens and queries stay in the range of float64.

    Raises:
        ValueError: data are so large or small that products may leave it; the message names the data and
            their size.
    """
    for name, values in data.items():
        largest = _largest(values.flatten(-2))
        wrong = (largest > DATA_MAX) | (largest < 1 / DATA_MAX) & (largest > 0)
        if bool(wrong.any()):
            size = float(largest[wrong].flatten()[0])
            raise ValueError(
                f"{name} must be between {1 / DATA_MAX:g} and {DATA_MAX:g} in size, got {size:g}: rescale "
                "them (and W, inversely)"
            )


def merge_equal_tokens(tokens: Tensor, allowed: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Merges equal tokens ``[trials, n, T, d]`` of each input, and excludes tokens that are not ``allowed``
    ``[trials, n, T]``.

    Returns:
        The matrix ``[..., T, T]`` that averages over equal tokens, and the numbers to add to the logits
        ``[..., T]``; None if they change nothing. The first of k equal tokens gets log k. The other equal
        tokens, and tokens that are not allowed, get minus infinity.
    """
    # If the first coordinates of the tokens all differ, which sorting shows, no tokens are equal. Most data
    # need no comparison of pairs.
    first = tokens[..., 0].sort(-1).values
    if bool((first[..., 1:] > first[..., :-1]).all()):
        return None, None if allowed is None else torch.zeros_like(first).masked_fill_(~allowed, -torch.inf)
    same = (tokens[..., :, None, :] == tokens[..., None, :, :]).all(-1)
    if allowed is not None:
        same = same & allowed[..., None, :] & allowed[..., None] | torch.eye(
            tokens.shape[-2], dtype=torch.bool
        )
    count = same.to(tokens.dtype).sum(-1, keepdim=True)
    # The first of several equal tokens represents them all. The logarithm of their number is added to its
    # logit, so it gets their joint attention; the other equal tokens get no attention.
    excluded = same.to(torch.uint8).argmax(-1) != torch.arange(tokens.shape[-2])
    if allowed is not None:
        excluded = excluded | ~allowed
    offset = count.squeeze(-1).log().masked_fill(excluded, -torch.inf)
    return (same / count, offset) if bool(offset.any()) else (None, None)


def _head_gains(instance: HeadInstance, tokens: Tensor, zero_query: Tensor) -> Gains:
    """Returns the function from attention to predictions and gains for any head; inputs in the mask
    ``zero_query`` get zero gains.
    """
    trials, labels = instance.trials, instance.labels.reshape(*tokens.shape[:2], 1)

    @no_type_check
    def gains(share: Tensor) -> tuple[Tensor, Tensor]:
        mixture = (share[..., None, :] @ tokens).squeeze(-2)
        value, gradient = instance.head(mixture.reshape(*trials, *mixture.shape[1:]))
        gain = (tokens @ gradient.reshape(*mixture.shape, 1)).squeeze(-1)
        return value.reshape(labels.shape) * labels, (gain * labels).masked_fill(zero_query, 0.0)

    return gains


@no_type_check
def _largest(values: Tensor) -> Tensor:
    """Returns the largest size of an entry in each row ``[..., k]``, without a copy of the entries."""
    return torch.maximum(values.amax(-1), -values.amin(-1))


@no_type_check
def _exp(values: Tensor) -> Tensor:
    """Computes the exponential of each entry; numpy takes half of torch's time."""
    result = torch.empty_like(values)
    np.exp(values.numpy(), out=result.numpy())
    return result


@no_type_check
def _moderate(values: Tensor) -> bool:
    """Returns whether all non-zero values are of moderate size."""
    size = values.abs()
    return bool(((size == 0) | (size >= MODERATE_MIN) & (size <= 1 / MODERATE_MIN)).all())


@no_type_check
def _positive(slope: Tensor) -> Tensor:
    """Replaces slopes that have underflowed to zero by a tiny positive number."""
    return slope.clamp(min=1e-300)


@no_type_check
def unit(
    direction: Tensor, *, over: int | tuple[int, ...] = (-2, -1), power: float = 2.0
) -> tuple[Tensor, Tensor]:
    """Scales a direction ``[..., d, d_z]`` to norm one without overflow or underflow.

    Args:
        direction: matrices, or vectors if ``over`` is one dimension.
        over: dimensions that the norm sums over.
        power: exponent of the norm.
    Returns:
        The unit direction, and the logarithm of the norm ``[..., 1, 1]``. A zero direction stays zero, and
        its logarithm is finite.
    """
    peak = direction.abs().amax(over, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    scaled = direction / peak  # no overflow or underflow in the powers
    norm = torch.linalg.vector_norm(scaled, ord=power, dim=over, keepdim=True).clamp(min=1.0)
    return scaled / norm, peak.log() + norm.log()
