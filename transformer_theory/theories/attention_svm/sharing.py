r"""Attention on several tokens per input: tests whether it has settled and whether the head pushes the other
tokens away.

Tokens of input i share attention if the head is indifferent between them: their gains
:math:`\gamma_{i,t} = Y_i \nabla h(o_i)^\top x_{i,t}` are equal. (For a one-layer network this happens mostly
where the network is flat and all gains are zero.) A token without attention is pushed away only if its gain
is below the mean gain,

.. math:: \sum_\tau s_{i,\tau}\gamma_{i,\tau} - \gamma_{i,t} > 0 .

If the difference is zero, nothing pushes the token away. It loses attention only because others gain some,
and its margin is not maximised. The rules for settled and shared attention follow the experiment with several
tokens in :cite:t:`tarzanagh2023transformers` and its released code. The condition on the gains was added by
this library.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...core.validation import as_float64, converted, positive
from .dynamics import HeadInstance
from .problem import token_logits
from .solvers import generalised_max_margins

NO_ATTENTION = 1e-6  # largest share of a token without attention
SOME_ATTENTION = 1e-3  # a token with a larger share has attention


@converted(float64=("attention",))
def settled(
    attention: Float[Tensor, "*trials n T"], *, low: float = NO_ATTENTION, high: float = SOME_ATTENTION
) -> Bool[Tensor, "*trials"]:
    """Returns whether no share of attention lies between ``low`` and ``high``, and at least one is at most
    ``low``.

    Args:
        attention: attention weights, ``[*trials, n, T]``; rows sum to one.
        low: largest share that counts as no attention.
        high: share above which a token has attention.
    Returns:
        One truth value per trial, ``[*trials]``.
    """
    between = (attention > low) & (attention <= high)
    return ~between.flatten(-2).any(-1) & (attention <= low).flatten(-2).any(-1)


@converted(float64=("attention",))
def shared(
    attention: Float[Tensor, "*trials n T"], *, high: float = SOME_ATTENTION
) -> Bool[Tensor, "*trials"]:
    """Returns whether some input has several tokens with more than ``high`` of its attention each,
    ``[*trials]``.
    """
    return ((attention > high).sum(-1) > 1).any(-1)


def least_push(
    instance: HeadInstance, W: Float[Tensor, "*trials d d_z"], *, high: float = SOME_ATTENTION
) -> Float[Tensor, "*trials"]:
    """Returns the smallest difference between the mean gain of an input and the gain of a token with at most
    ``high`` of its attention.

    If it is positive, descent pushes every such token further away. It is infinite if there is no such token.

    Args:
        instance: the problems with their head.
        W: attention weights, ``[*trials, d, d_z]``.
        high: largest share of attention of the tokens considered.
    Returns:
        The difference per trial, ``[*trials]``, in units of the gains.
    """
    attention = instance.attention(as_float64("W", W))
    mixture = (attention[..., None, :] @ instance.tokens).squeeze(-2)
    gain = instance.labels[..., None] * (instance.tokens @ instance.head(mixture)[1][..., None]).squeeze(-1)
    push = (attention * gain).sum(-1, keepdim=True) - gain
    return push.masked_fill(attention > high, float("inf")).flatten(-2).amin(-1)


@converted(float64=("scores",))
def optimal_shares(scores: Float[Tensor, "*trials n T"], *, penalty: float) -> Float[Tensor, "*trials n T"]:
    r"""Returns the attention at which the head :math:`v^\top o - \lambda\|o\|^2` is largest, for orthonormal
    tokens.

    With orthonormal tokens :math:`\|X^\top s\|^2 = \|s\|^2`, so a positive label asks for the maximum of
    :math:`\gamma^\top s - \lambda\|s\|^2` over the simplex. It is the point of the simplex nearest to
    :math:`\gamma / (2\lambda)`:

    .. math:: s_t = \max\Bigl(\frac{\gamma_t - \tau}{2\lambda},\, 0\Bigr), \qquad \sum_t s_t = 1 .

    Tokens with :math:`\gamma_t > \tau` share the attention, and the head pushes all others away by
    :math:`\tau - \gamma_t`. The derivation is this library's own.

    Args:
        scores: :math:`\gamma`, ``[*trials, n, T]``; a token with score minus infinity gets no attention.
        penalty: :math:`\lambda`, positive.
    Returns:
        The shares s, ``[*trials, n, T]``; rows sum to one.
    Raises:
        TypeError: scores are not a tensor or array, or ``penalty`` is not a number.
        ValueError: ``penalty`` is not positive and finite.
    """
    positive(penalty=penalty)
    point = scores / (2 * penalty)
    ordered = point.sort(-1, descending=True).values
    # tau / (2 penalty) if the k largest entries share the attention; k is the largest number for which all of
    # them are above it.
    level = (ordered.cumsum(-1) - 1) / torch.arange(1, scores.shape[-1] + 1)
    count = (ordered > level).sum(-1, keepdim=True)
    return (point - level.gather(-1, count - 1)).clamp(min=0)


def lost_margins(x: Tensor, z: Tensor, scores: Tensor, shares: Tensor, *, penalty: float) -> Tensor:
    r"""Returns the margins, under the direction for ``shares``, of tokens without attention that the head
    would give attention.

    These tokens have a gain :math:`\gamma_t - 2\lambda s_t` above that of the tokens that share the
    attention. A margin is one at the neighbours, and larger at all other tokens.

    Args:
        x, z, scores, shares: tokens, queries, scores and attention of k problems, with a leading dimension k.
    Returns:
        The margins, ``[lost tokens]``; NaN in problems without a solution.
    """
    gain = scores - 2 * penalty * shares
    lost = (shares == 0) & (gain > (shares * gain).sum(-1, keepdim=True) + 1e-9)
    logits = token_logits(x, z, generalised_max_margins(x, z, shares, threshold=0.0).direction.W)
    return (logits.masked_fill(shares == 0, -torch.inf).amax(-1, keepdim=True) - logits)[lost]
