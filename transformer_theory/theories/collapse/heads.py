r"""How much of the differences between tokens a head keeps, and how much it would keep with its keys
permuted.

The *contraction* of a head with weights A on tokens X is

.. math:: c = |\mathrm{res}(A X)|_F / |\mathrm{res}(X)|_F,

0 for uniform attention and 1 for the identity; :math:`\mathrm{res}` subtracts the mean token
(:func:`.residual`). If the keys of each row are permuted at random, independently of the other rows, then
with the participation :math:`Y_i = \sum_j A_{ij}^2` of row i (own derivation)

.. math:: E\, c^2 = \frac1n \sum_i Y_i - \frac1n,

whatever the tokens are: peaked rows keep differences even if they pick keys at random.

With a mask, permutations stay within the allowed keys of each row. A causal mask contracts less even if
attention is uniform over the allowed keys, so c is then compared with its null only.

Source: :cite:t:`dong2021attention` (the residual); contraction and its null are own.
"""

import math
from collections.abc import Iterator
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Generator, Tensor

from ...core.validation import converted, in_range, same_dtype
from ...maths.linalg import binary_scale
from .phases import participation
from .residuals import NEARLY_EQUAL, centred

Weights = Float[Tensor, "*batch n n"]
Rows = Float[Tensor, "*batch q n"]
BLOCK = 128  # queries of a causal map whose contraction is computed at a time
ORDERS = 2**23  # entries of the permutations that are kept for the next layer, in all draws


def residual_within(
    rows: Float[Tensor, "*batch n d"], inside: Bool[Tensor, "*#batch n"] | None = None
) -> Float[Tensor, "*batch n d"]:
    """Subtracts the mean of the rows inside the sequence; rows outside, such as padding, become zero. None:
    all rows are inside.
    """
    if inside is None:
        return centred(rows)
    used = inside.unsqueeze(-1).to(rows.dtype)
    rows = torch.where(inside.unsqueeze(-1), rows, 0.0)
    return rows - used * rows.sum(-2, keepdim=True) / used.sum(-2, keepdim=True).clamp(min=1)


def normalised_gram(
    tokens: Float[Tensor, "*batch n d"], inside: Bool[Tensor, "*#batch n"] | None = None
) -> Float[Tensor, "*batch n n"]:
    """Computes the inner products of the residuals of a sequence divided by their trace, ``[*batch, n, n]``;
    zeros if all are equal.
    """
    # a mean of scaled tokens is in range
    R = residual_within(tokens / binary_scale(tokens, (-2, -1)), inside)
    size = R.abs().amax((-2, -1), keepdim=True)
    R = R / torch.where(size > 0, size, 1.0)  # squares then neither overflow nor underflow
    if bool((size < NEARLY_EQUAL).any()):
        R = residual_within(R, inside)  # again, without the rounding error of the first mean
    gram = R @ R.mT
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    return gram / torch.where(trace > 0, trace, 1.0)


def squared_contraction_of(
    weights: Rows, gram: Float[Tensor, "*#batch n n"], inside: Bool[Tensor, "*#batch q"] | None = None
) -> Float[Tensor, "*batch"]:
    r"""Computes :math:`c^2 = \mathrm{tr}(B G B^\top)` with :math:`B = A - 1 \bar a^\top`, from the normalised
    Gram matrix G.

    Args:
        weights, gram: the rows of A, or q of them, and G of :func:`normalised_gram`.
        inside: True for rows of tokens of the sequence, False for padding. None: all.
    Returns:
        ``[*batch]``.
    """
    if weights.shape[-2] == weights.shape[-1] > 2 * BLOCK and not bool(weights[..., :BLOCK, BLOCK:].any()):
        return _in_blocks(weights, gram, inside)
    B = residual_within(weights, inside)
    return ((B @ gram) * B).sum((-2, -1)).clamp(min=0)


def _in_blocks(
    weights: Weights, gram: Float[Tensor, "*#batch n n"], inside: Bool[Tensor, "*#batch n"] | None
) -> Float[Tensor, "*batch"]:
    r"""Computes the same as :func:`squared_contraction_of` for causal weights, a block of queries at a time
    with the keys that these see: 0.4 of the products for 1,024 tokens.

    With any common row s, :math:`\mathrm{tr}(BGB^\top) = \sum_i (a_i - s)^\top G (a_i - s) - m (\bar a -
    s)^\top G (\bar a - s)` over m rows. The mean row is taken for s, but zero beyond the first block: every
    query sees these keys, and keys that nearly all queries prefer, whose part would cancel, are among them.
    """
    n = weights.shape[-1]
    used = torch.ones_like(weights[..., :1]) if inside is None else inside.unsqueeze(-1).to(weights.dtype)
    count = used.sum(-2).clamp(min=1)
    # rows of padding may be NaN
    rows = weights if inside is None else torch.where(inside.unsqueeze(-1), weights, 0.0)
    shift = torch.nn.functional.pad(rows[..., :BLOCK].sum(-2) / count, (0, n - BLOCK))
    total, mean = torch.zeros_like(count.squeeze(-1)), rows.sum(-2) / count - shift
    for start in range(0, n, BLOCK):
        chosen, end = slice(start, start + BLOCK), min(start + BLOCK, n)
        block = rows[..., chosen, :]
        if bool(block[..., end:].any()):
            end = n
        block = block[..., :end] - used[..., chosen, :] * shift[..., None, :end]
        total = total + ((block @ gram[..., :end, :end]) * block).sum((-2, -1))
    common = (mean[..., None, :] @ gram @ mean[..., None])[..., 0, 0]
    return (total - count.squeeze(-1) * common).clamp(min=0)


@in_range
@converted(floats=("weights", "tokens"))
def contraction(weights: Weights, tokens: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
    r"""Computes :math:`|\mathrm{res}(A X)|_F / |\mathrm{res}(X)|_F` of each sequence, ``[*batch]``.

    Raises:
        ValueError: weights do not fit the tokens or are no distributions, there is a single token, or a
            sequence has equal tokens.
    """
    if tokens.ndim < 2:
        raise ValueError(f"tokens must be [*batch, n, d], got {list(tokens.shape)}")
    n = tokens.shape[-2]
    if weights.shape[-2:] != (n, n) or n < 2:
        raise ValueError(
            f"weights must be [*batch, n, n] for n >= 2 tokens, got {list(weights.shape)} for {n}; pass "
            "self-attention"
        )
    same_dtype(weights=weights, tokens=tokens)
    if not bool(((weights.sum(-1) - 1).abs() < 1e-2).all()):
        raise ValueError(
            "each row of weights must sum to 1, got one that does not, or NaN; normalise the rows"
        )
    gram = normalised_gram(tokens)
    if not bool((gram.diagonal(dim1=-2, dim2=-1).sum(-1) > 0).all()):
        raise ValueError(
            "contraction needs tokens that differ, got a sequence whose tokens are equal or not finite; "
            "leave it out"
        )
    return squared_contraction_of(weights, gram).sqrt()


@in_range
@converted(floats=("weights",))
def permuted_contraction(weights: Weights) -> Float[Tensor, "*batch"]:
    r"""Computes :math:`\sqrt{\tfrac1n \sum_i Y_i - \tfrac1n}`, the root of the mean squared contraction with
    permuted keys, ``[*batch]``.

    Raises:
        ValueError: there is no row, or a weight is not finite.
    """
    return (participation(weights).mean(-1) - 1 / weights.shape[-1]).clamp(min=0).sqrt()


def permuted_keys(
    weights: Rows, generator: Generator, *, draws: int, allowed: Bool[Tensor, "*#batch q n"] | None = None
) -> Iterator[Rows]:
    """Yields ``draws`` times the weights with those of each row permuted among its allowed keys,
    ``[*batch, q, n]``. The rows are sorted once for all draws.

    Args:
        weights: attention weights, zero on keys that are not allowed.
        generator: random generator. It draws an order for all rows but the leading dimension of ``weights``
            is the only one that it is drawn for anew: heads ``[n, heads, q, k]`` share the order of a
            sequence.
        allowed: True for the keys that a row may see. None: all.
    """
    shape = (weights.shape[0], *[1] * (weights.ndim - 3), *weights.shape[-2:])
    if allowed is None and draws * math.prod(shape) <= ORDERS:
        orders, state = _orders(generator.get_state().numpy().tobytes(), shape, draws)
        generator.set_state(state)
        for order in orders:
            yield weights.gather(-1, order.long().to(weights.device).expand(weights.shape))
        return
    # Descending weights come first on allowed keys: the others are zero. They are dealt to the allowed keys
    # in a random order.
    dealt = weights if allowed is None or not draws else weights.sort(-1, descending=True).values
    for _ in range(draws):
        order = torch.rand(shape, generator=generator).to(weights.device)
        if allowed is None:
            yield weights.gather(-1, order.argsort(-1).expand(weights.shape))
        else:
            order = (order + 2.0 * ~allowed).argsort(-1).expand(weights.shape)
            yield torch.empty_like(weights).scatter_(-1, order, dealt)


@lru_cache(maxsize=1)
def _orders(
    state: bytes, shape: tuple[int, ...], draws: int
) -> tuple[list[Int[Tensor, "*rows k"]], UInt8[Tensor, " bytes"]]:
    """Returns the orders of :func:`permuted_keys` of a generator in a state, and its state after them. The
    layers of a network share them.
    """
    generator = torch.Generator()
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    orders = [torch.rand(shape, generator=generator).argsort(-1).int() for _ in range(draws)]
    return orders, generator.get_state()


def permute_keys(
    weights: Weights, generator: Generator, *, allowed: Bool[Tensor, "*#batch n n"] | None = None
) -> Weights:
    """Returns one draw of :func:`permuted_keys`."""
    return next(permuted_keys(weights, generator, draws=1, allowed=allowed))
