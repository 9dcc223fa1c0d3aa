r"""Attention that stays on several tokens of an input, as heads other than linear ones allow: has it settled, and does the head agree?

Tokens of input i keep attention together where the head is indifferent between them: their gains
:math:`\gamma_{i,t} = Y_i \nabla h(o_i)^\top x_{i,t}` are equal (for a one-layer network that is mostly where it is flat, all gains zero).
A token that has lost its attention stays out only if its gain is lower than the mean,

.. math:: \sum_\tau s_{i,\tau}\gamma_{i,\tau} - \gamma_{i,t} > 0 .

Where this is zero nothing pushes the token away: it has lost its attention to the others by the way, and no margin is maximised for it.

Source: settings of the experiment with several tokens in :cite:t:`tarzanagh2023transformers`; the second condition is ours.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from .dynamics import HeadInstance

LOW, HIGH = 1e-6, 1e-3


def settled(attention: Float[Tensor, "*trials n T"], *, low: float = LOW, high: float = HIGH) -> Bool[Tensor, "*trials"]:
    """Whether no token has between ``low`` and ``high`` of the attention, and some token of some input has at most ``low``.

    Args:
        attention: rows sum to one, ``[*trials, n, T]``.
        low, high: shares of attention that count as none, and as some.
    Returns:
        One answer a trial.

    Source: the rule by which :cite:t:`tarzanagh2023transformers` accept trials, in their released code.
    """
    between = (attention > low) & (attention <= high)
    return ~between.flatten(-2).any(-1) & (attention <= low).flatten(-2).any(-1)


def shared(attention: Float[Tensor, "*trials n T"], *, high: float = HIGH) -> Bool[Tensor, "*trials"]:
    """Whether several tokens of some input have more than ``high`` of its attention.

    Args:
        attention: rows sum to one, ``[*trials, n, T]``.
        high: share of attention that counts as some.
    Returns:
        One answer a trial.

    Source: the sets of tokens of :cite:t:`tarzanagh2023transformers`.
    """
    return ((attention > high).sum(-1) > 1).any(-1)


def least_push(instance: HeadInstance, W: Float[Tensor, "*trials d d_z"], *, high: float = HIGH) -> Float[Tensor, "*trials"]:
    """By how much the gain of a token with at most ``high`` of the attention lies below the mean of its input: the smallest of all.

    Positive: descent pushes every such token further away. Infinite where there is none.

    Args:
        instance: the problems with their head.
        W: ``[*trials, d, d_z]``.
        high: share of attention that counts as some.
    Returns:
        One number a trial, in units of the gains.

    Source: the condition is this library's.
    """
    attention = instance.attention(W)
    mixture = (attention[..., None, :] @ instance.tokens).squeeze(-2)
    gain = instance.labels[..., None] * (instance.tokens @ instance.head(mixture)[1][..., None]).squeeze(-1)
    below = (attention * gain).sum(-1, keepdim=True) - gain
    return below.masked_fill(attention > high, float("inf")).flatten(-2).amin(-1)
