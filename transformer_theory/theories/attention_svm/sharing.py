r"""Attention that stays on several tokens of an input: has it settled, and does the head push the other tokens away?

Tokens of input i share attention where the head is indifferent between them: their gains
:math:`\gamma_{i,t} = Y_i \nabla h(o_i)^\top x_{i,t}` are equal (for a one-layer network mostly where it is flat and all gains are zero).
A token that has lost its attention stays out only if its gain is lower than the mean,

.. math:: \sum_\tau s_{i,\tau}\gamma_{i,\tau} - \gamma_{i,t} > 0 .

Where this is zero nothing pushes the token away: its loss of attention is a side effect of the others' gain, and no margin is maximised for
it. The rules of acceptance are those of the experiment with several tokens of :cite:t:`tarzanagh2023transformers` and their released code;
the condition on the gains is this library's.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from ...core.validation import as_float64, converted
from .dynamics import HeadInstance

NO_ATTENTION, SOME_ATTENTION = 1e-6, 1e-3  # a token with at most the first has lost its attention; with more than the second it has some


@converted(float64=("attention",))
def settled(attention: Float[Tensor, "*trials n T"], *, low: float = NO_ATTENTION, high: float = SOME_ATTENTION) -> Bool[Tensor, "*trials"]:
    """Whether no token has between ``low`` and ``high`` of the attention, and some token of some input has at most ``low``.

    Args:
        attention: rows sum to one, ``[*trials, n, T]``.
        low, high: shares of attention that count as none, and as some.
    Returns:
        ``[*trials]``.
    """
    between = (attention > low) & (attention <= high)
    return ~between.flatten(-2).any(-1) & (attention <= low).flatten(-2).any(-1)


@converted(float64=("attention",))
def shared(attention: Float[Tensor, "*trials n T"], *, high: float = SOME_ATTENTION) -> Bool[Tensor, "*trials"]:
    """Whether several tokens of some input have more than ``high`` of its attention: ``[*trials]``."""
    return ((attention > high).sum(-1) > 1).any(-1)


def least_push(instance: HeadInstance, W: Float[Tensor, "*trials d d_z"], *, high: float = SOME_ATTENTION) -> Float[Tensor, "*trials"]:
    """The smallest difference between the mean gain of an input and the gain of a token with at most ``high`` of its attention.

    Positive: descent pushes every such token further away. Infinite: there is none.

    Args:
        instance: the problems with their head.
        W: ``[*trials, d, d_z]``.
        high: share of attention that counts as some.
    Returns:
        ``[*trials]``, in units of the gains.
    """
    attention = instance.attention(as_float64("W", W))
    mixture = (attention[..., None, :] @ instance.tokens).squeeze(-2)
    gain = instance.labels[..., None] * (instance.tokens @ instance.head(mixture)[1][..., None]).squeeze(-1)
    push = (attention * gain).sum(-1, keepdim=True) - gain
    return push.masked_fill(attention > high, float("inf")).flatten(-2).amin(-1)
