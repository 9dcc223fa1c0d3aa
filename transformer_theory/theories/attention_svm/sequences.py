r"""Training problems with many queries per input and one W: sequence to sequence, and causal attention.

The output at query k of input i is :math:`f_{ik} = \sum_t s_{ikt}\,\gamma_{ikt}` with attention over the
allowed tokens, :math:`s_{ik} = \operatorname{softmax}_t(x_{it}^\top W z_{ik})`, and the loss is the mean over
all i and k (:cite:t:`tarzanagh2023transformers`). So every pair (i, k) acts as one input: its tokens are the
tokens of i that k may attend to. Descent, selection and local optimality carry over unchanged.
:func:`~.builders.sequence_to_sequence` and :func:`~.builders.causal` build the constraints.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...core.validation import converted
from .builders import causal_mask
from .problem import Instance, cross_attention
from .validation import as_bool, check_real, check_shape, check_tokens


@converted(float64=("tokens", "queries", "scores"))
def sequence_instance(
    tokens: Float[Tensor, "*trials n T d"],
    queries: Float[Tensor, "*trials n q d_z"],
    scores: Float[Tensor, "*trials n q T"],
    *,
    allowed: Bool[Tensor, "n q T"] | None = None,
) -> Instance:
    r"""Returns the training problem in which every pair of an input and one of its queries acts as one input.

    Args:
        tokens: x, ``[*trials, n, T, d]``.
        queries: z, ``[*trials, n, q, d_z]``.
        scores: :math:`\gamma_{ikt}`, the benefit of token t for the output at query k, ``[*trials, n, q,
            T]``.
        allowed: mask of the tokens that each query may attend to, ``[n, q, T]``, the same in all trials.
            None: all tokens.
    Returns:
        An instance of n q inputs of T tokens; the queries of one input are adjacent.
    Raises:
        TypeError: an argument is not a tensor or array.
        ValueError: shapes do not fit, a value is not finite, or a query may attend to no token.
    """
    # any [*trials, n, k] serves as queries here; the real ones have one dimension more
    check_tokens(tokens, tokens[..., 0])
    check_real("queries", queries, "[..., n, q, d_z]", tokens.ndim)
    check_real("scores", scores, "[..., n, q, T]", tokens.ndim)
    *trials, n, T, d = tokens.shape
    q = queries.shape[-2]
    check_shape("queries", queries, (*trials, n, q, queries.shape[-1]), "[..., n, q, d_z]")
    check_shape("scores", scores, (*trials, n, q, T), "[..., n, q, T]")
    if allowed is not None:
        allowed = as_bool("allowed", allowed, (n, q, T)).expand(*trials, n, q, T).reshape(*trials, n * q, T)
    # Each query gets a copy of the tokens of its input.
    return Instance(
        tokens[..., None, :, :].expand(*trials, n, q, T, d).reshape(*trials, n * q, T, d),
        queries.reshape(*trials, n * q, -1),
        scores.reshape(*trials, n * q, T),
        allowed,
    )


@converted(float64=("tokens", "scores"))
def causal_instance(
    tokens: Float[Tensor, "*trials n T d"], scores: Float[Tensor, "*trials n T T"]
) -> Instance:
    r"""Returns the training problem of causal attention: every token is a query and attends to itself and all
    earlier tokens.

    The first token of each input attends only to itself: its query adds no constraint and has no influence on
    W.

    Args:
        tokens: x, ``[*trials, n, T, d]``.
        scores: :math:`\gamma_{ikt}`, ``[*trials, n, T, T]``; scores with t > k are ignored.
    Returns:
        An instance of n T inputs of T tokens.
    Raises:
        TypeError, ValueError: as for :func:`sequence_instance`.
    """
    check_real("tokens", tokens, "[..., n, T, d]", max(3, tokens.ndim))
    n, T = tokens.shape[-3:-1]
    return sequence_instance(tokens, tokens, scores, allowed=causal_mask(T).expand(n, T, T))


def causal_problem(
    *, inputs: int, tokens: int, dim: int, generator: torch.Generator, trials: int | None = None
) -> tuple[Float[Tensor, "*trials n T d"], Float[Tensor, "*trials n T T"], Int[Tensor, "*trials n T"]]:
    """Draws tokens of norm one. For each position, a random token up to this position has the score one; all
    others have the score zero.

    The global theorem assumes that all other tokens have equal scores.

    Args:
        inputs, tokens, dim: n, T and d.
        generator: random generator of tokens and best positions.
        trials: number of independent problems. None: a single problem without a batch dimension.
    Returns:
        tokens ``[*trials, n, T, d]``, scores ``[*trials, n, T, T]`` and the best position for each query
        ``[*trials, n, T]``.
    """
    x = cross_attention(inputs=inputs, tokens=tokens, dim=dim, generator=generator, trials=trials).tokens
    uniform = torch.rand(x.shape[:-1], generator=generator, dtype=torch.float64)
    best = (uniform * (torch.arange(tokens) + 1)).long()  # position k: uniform on 0, ..., k
    return x, torch.nn.functional.one_hot(best, tokens).double(), best


def sequence_problem(
    *, inputs: int, tokens: int, queries: int, dim: int, generator: torch.Generator, trials: int | None = None
) -> tuple[
    Float[Tensor, "*trials n T d"],
    Float[Tensor, "*trials n q d"],
    Float[Tensor, "*trials n q T"],
    Int[Tensor, "*trials n q"],
]:
    """Draws tokens and queries of norm one. For each query, a random token has the score one; all others have
    the score zero.

    Args:
        inputs, tokens, queries, dim: n, T, q and d.
        generator: random generator of tokens and best positions.
        trials: number of independent problems. None: a single problem without a batch dimension.
    Returns:
        tokens ``[*trials, n, T, d]``, queries ``[*trials, n, q, d]``, scores ``[*trials, n, q, T]`` and best
        positions ``[*trials, n, q]``.
    """
    x = cross_attention(inputs=inputs, tokens=tokens, dim=dim, generator=generator, trials=trials).tokens
    z = cross_attention(inputs=inputs, tokens=queries, dim=dim, generator=generator, trials=trials).tokens
    best = torch.randint(tokens, z.shape[:-1], generator=generator)
    return x, z, torch.nn.functional.one_hot(best, tokens).double(), best
