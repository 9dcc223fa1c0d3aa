r"""The gradient of the loss in the attention logits, exact to rounding however sharp attention is.

With :math:`s_i = \operatorname{softmax}(a_i)`, logits :math:`a_{i,t} = x_{i,t}^\top W z_i` and gains :math:`\gamma_{i,t}` (the token's
score, or :math:`Y_i\nabla h(o_i)^\top x_{i,t}` for another head),

.. math:: -\nabla_W L = \frac1n\sum_i |\ell'(f_i)| \Big(\sum_t c_{i,t}\, x_{i,t}\Big) z_i^\top,
    \qquad c_{i,t} = s_{i,t}\Big(\gamma_{i,t} - \sum_\tau s_{i,\tau}\gamma_{i,\tau}\Big).

Attention concentrates on one token, :math:`s_{i,t} \to e^{-\|W\|\cdot\text{margin}}` for the others, and the bracket is then a difference
of nearly equal numbers: computed as written, it is rounding error from a norm of about 40 on. Here every quantity is a difference to the
most attended token *top*, :math:`\delta_t = \gamma_t - \gamma_{top}`, :math:`e = \sum_t s_t\delta_t`, :math:`c_t = s_t(\delta_t - e)`; and
:math:`c` is kept as :math:`e^{-C} c` with one C a trial, the largest logarithm of a share that matters.

Two kinds of input have no say in W and must not set C: a query of zero, and tokens that are all equal. Equal tokens are merged into one
with the sum of their attention and the mean of their gains, which leaves the loss as it is.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..problem import Instance
from .heads import HeadInstance
from .losses import Loss
from .states import check_instance

Gains = Callable[[Tensor], tuple[Tensor, Tensor]]  # attention [trials, n, T] -> prediction f [trials, n, 1], gains [trials, n, T]


class Gradient:
    """The data of an instance laid out for many steps, with one batch dimension."""

    def __init__(self, instance: Instance | HeadInstance, loss: Loss):
        check_instance(instance)
        n, T, d = instance.tokens.shape[-3:]
        self.slope = loss.slope
        self.inputs = n
        self.tokens = instance.tokens.reshape(-1, n, T, d)
        self.query = instance.query.reshape(-1, n, instance.query.shape[-1])
        allowed = instance.allowed if isinstance(instance, Instance) else None
        same, self.offset = merged(self.tokens, None if allowed is None else allowed.reshape(-1, n, T))
        silent = (self.query == 0).all(-1, keepdim=True)
        if isinstance(instance, Instance):
            scores = instance.scores.reshape(-1, n, T)
            others = scores[..., None, :] - scores[..., None]  # zero where equal tokens score the same: their mean is then exact
            scores = (scores + (same * others).sum(-1)).masked_fill(silent, 0.0)
            self.gains: Gains = lambda share: ((share * scores).sum(-1, keepdim=True), scores)
        else:
            self.gains = _head_gains(instance, self.tokens, silent)

    def coefficients(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """:math:`e^{-C} |l'| c` ``[trials, n, T]`` and C ``[trials, 1, 1]``; ``logits`` is overwritten."""
        if self.offset is not None:
            logits += self.offset
        highest, top = logits.max(-1, keepdim=True)
        gap = logits.sub_(highest)
        share = gap.exp()
        top_share = share.sum(-1, keepdim=True).reciprocal_()
        share.mul_(top_share)
        f, gain = self.gains(share)
        delta = gain - gain.gather(-1, top)
        gap.masked_fill_(delta == 0, -torch.inf)
        C = gap.amax((-2, -1), keepdim=True).clamp_(min=-1e300)
        scaled = gap.sub_(C).exp_().mul_(top_share).mul_(delta)  # e^-C s delta
        excess = scaled.sum(-1, keepdim=True)  # e^-C e
        return torch.addcmul(scaled, share, excess, value=-1).mul_(self.slope(f)), C

    def pulled(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """:math:`P_i = X_i^T c_i` ``[trials, n, d]``, scaled by :math:`e^{-C}`, and C ``[trials, 1, 1]``."""
        c, C = self.coefficients(logits)
        return (c[..., None, :] @ self.tokens).squeeze(-2), C

    def logits(self, images: Tensor) -> Tensor:
        """:math:`x_{i,t}^T u_i` for :math:`u_i = W z_i`, ``[trials, n, d]`` -> ``[trials, n, T]``."""
        return (self.tokens @ images[..., None]).squeeze(-1)


def merged(tokens: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Equal tokens of an input as one, and tokens ``[trials, n, T]`` that are not allowed as none.

    Returns:
        The matrix ``[..., T, T]`` that averages over equal tokens; and what to add to the logits ``[..., T]``: the logarithm of their
        number at the first of them, minus infinity at the others and where a token is not allowed; None if that is zero everywhere.
    """
    same = (tokens[..., :, None, :] == tokens[..., None, :, :]).all(-1)
    alone = torch.eye(tokens.shape[-2], dtype=torch.bool)
    if allowed is not None:
        same = same & allowed[..., None, :] & allowed[..., None] | alone
    count = same.to(tokens.dtype).sum(-1, keepdim=True)
    silent = same.to(torch.uint8).argmax(-1) != torch.arange(tokens.shape[-2])  # an equal token comes before
    if allowed is not None:
        silent = silent | ~allowed
    offset = count.squeeze(-1).log().masked_fill(silent, -torch.inf)
    return same / count, offset if bool(offset.any()) else None


def _head_gains(instance: HeadInstance, tokens: Tensor, silent: Tensor) -> Gains:
    trials, labels = instance.trials, instance.labels.reshape(*tokens.shape[:2], 1)

    def gains(share: Tensor) -> tuple[Tensor, Tensor]:
        mixture = (share[..., None, :] @ tokens).squeeze(-2)
        value, gradient = instance.head(mixture.reshape(*trials, *mixture.shape[1:]))
        gain = (tokens @ gradient.reshape(*mixture.shape, 1)).squeeze(-1)
        return value.reshape(labels.shape) * labels, (gain * labels).masked_fill(silent, 0.0)

    return gains
