r"""Attention that stays on several tokens of an input: whether it has settled, and whether the head pushes the other tokens away.

Tokens of input i share attention where the head is indifferent between them: their gains
:math:`\gamma_{i,t} = Y_i \nabla h(o_i)^\top x_{i,t}` are equal (for a one-layer network mostly where it is flat and all gains are zero).
A token that has lost its attention stays out only if its gain is lower than the mean,

.. math:: \sum_\tau s_{i,\tau}\gamma_{i,\tau} - \gamma_{i,t} > 0 .

Where this is zero nothing pushes the token away. It loses attention only because others gain some, and its margin is not maximised. The
rules for settled and shared attention are those of the experiment with several tokens of :cite:t:`tarzanagh2023transformers` and of its
released code; the condition on the gains is this library's.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from ...core.validation import as_float64, converted
from .dynamics import HeadInstance

NO_ATTENTION = 1e-6  # a token with at most this share has lost its attention
SOME_ATTENTION = 1e-3  # a token with more than this share keeps attention


@converted(float64=("attention",))
def settled(attention: Float[Tensor, "*trials n T"], *, low: float = NO_ATTENTION, high: float = SOME_ATTENTION) -> Bool[Tensor, "*trials"]:
    """Whether no token has between ``low`` and ``high`` of the attention, and some token of some input has at most ``low``.

    Args:
        attention: rows sum to one, ``[*trials, n, T]``.
        low: largest share that counts as no attention.
        high: share above which a token keeps attention.
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

    If it is positive, descent pushes every such token further away; it is infinite if there is no such token.

    Args:
        instance: the problems with their head.
        W: ``[*trials, d, d_z]``.
        high: share of attention above which a token is not counted.
    Returns:
        ``[*trials]``, in units of the gains.
    """
    attention = instance.attention(as_float64("W", W))
    mixture = (attention[..., None, :] @ instance.tokens).squeeze(-2)
    gain = instance.labels[..., None] * (instance.tokens @ instance.head(mixture)[1][..., None]).squeeze(-1)
    push = (attention * gain).sum(-1, keepdim=True) - gain
    return push.masked_fill(attention > high, float("inf")).flatten(-2).amin(-1)
