r"""Records of calls of torch's attention functions, and the bilinear form W that a module declares.

    weights = softmax(scale Q K^T + bias) over the allowed keys,
        Q, K, V  [batch, heads, tokens, head_dim].

Fused kernels do not return their weights, so the weights are recomputed from the arguments, without dropout.
Boolean masks have opposite meanings: True marks the keys that a query *may* see in
``scaled_dot_product_attention``, and the keys that it may *not* see in ``multi_head_attention_forward``.

Source: :cite:t:`vaswani2017attention`.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from ..models.attention import softmax_attention, tied_attention

# A term of the scores up to which a key is blocked; models use -1e4, -1e9, or the lowest number.
BLOCKED = -9e3


@dataclass(frozen=True)
class AttentionCall:
    """One call of an attention function.

    Attributes:
        query, key, value: ``[batch, heads, tokens, head_dim]``; keys and values that several heads share are
            repeated for each head.
        scale: factor of the scores.
        bias: term added to the scores, broadcastable to ``[batch, heads, queries, keys]``.
        allowed: mask of the keys that a query may see, broadcastable to the same shape. None: all keys.
    """

    query: Float[Tensor, "batch heads q head_dim"]
    key: Float[Tensor, "batch heads k head_dim"]
    value: Float[Tensor, "batch heads k value_dim"]
    scale: float
    bias: Float[Tensor, "..."] | None = None
    allowed: Bool[Tensor, "#batch #heads #q k"] | None = None

    @property
    def biased(self) -> bool:
        """Whether a term that is not zero is added to the scores; masks do not count."""
        return self.bias is not None and is_bias(self.bias)

    def weights(self) -> Float[Tensor, "batch heads q k"]:
        """Computes the weights in float32 or a wider dtype; a row without an allowed key is zero."""
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        scores = (self.query.to(dtype) * self.scale) @ self.key.to(dtype).mT
        if self.bias is not None:
            scores = scores + self.bias
        if self.allowed is None:
            return scores.softmax(-1)
        weights = scores.masked_fill(~self.allowed, -math.inf).softmax(-1)
        # The softmax of a row of -inf is NaN.
        return torch.where(self.allowed.any(-1, keepdim=True), weights, 0.0)


def of_scaled_dot_product(
    query: Float[Tensor, "..."],
    key: Float[Tensor, "..."],
    value: Float[Tensor, "..."],
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionCall:
    """Records a call of ``torch.nn.functional.scaled_dot_product_attention`` from its arguments, ``[...,
    heads, tokens, head_dim]``.
    """
    batch, (queries, keys) = query.shape[:-2], (query.shape[-2], key.shape[-2])
    bias, allowed = _split(attn_mask)
    if is_causal:
        allowed = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()
    # Masks of tokens with four axes may keep axes of length 1. Otherwise leading axes are merged or added,
    # which requires the full shape.
    bias, allowed = (
        None
        if m is None
        else _four_axes(m.expand(*batch, queries, keys))
        if query.ndim != 4
        else _mask_axes(m).expand(*_mask_axes(m).shape[:2], queries, keys)
        for m in (bias, allowed)
    )
    query, key, value = _four_axes(query), _four_axes(key), _four_axes(value)
    if query.shape[1] == 1:  # one query for all heads
        query = query.expand(-1, key.shape[1], -1, -1)
    # Grouped-query attention: consecutive heads share a key and a value.
    if key.shape[1] != query.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    if value.shape[1] != query.shape[1]:
        value = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
    return AttentionCall(
        query, key, value, query.shape[-1] ** -0.5 if scale is None else scale, bias, allowed
    )


def of_tied(coords: Float[Tensor, "..."], *, scale: float, is_causal: bool = False) -> AttentionCall:
    """Records a call of :func:`.tied_attention`, whose queries, keys and values are the same tensor, from its
    arguments.
    """
    return of_scaled_dot_product(coords, coords, coords, scale=scale, is_causal=is_causal)


def of_multi_head(*args, projected: bool = True, **kwargs) -> AttentionCall:
    """Records a call of ``torch.nn.functional.multi_head_attention_forward`` from its arguments; tokens are
    ``[tokens, batch, dim]``. Without projections only the masks are those of the call.
    """
    bound = MULTI_HEAD.bind(*args, **kwargs)
    bound.apply_defaults()
    call = bound.arguments
    heads = call["num_heads"]
    separate = call["use_separate_proj_weight"]
    matrices = (
        [call[f"{name}_proj_weight"] for name in "qkv"] if separate else call["in_proj_weight"].chunk(3)
    )
    offsets = (None,) * 3 if call["in_proj_bias"] is None else call["in_proj_bias"].chunk(3)
    # A sequence without a batch axis, [tokens, dim], becomes a batch of one.
    inputs = [
        call[name] if call[name].ndim == 3 else call[name].unsqueeze(1) for name in ("query", "key", "value")
    ]
    if projected:
        query, key, value = (functional.linear(x, W, b) for x, W, b in zip(inputs, matrices, offsets))
    else:
        query, key, value = (x[..., :1].expand(-1, -1, heads) for x in inputs)
    n = query.shape[1]
    if call["bias_k"] is not None:
        key, value = (
            torch.cat([x, extra.expand(1, n, -1)[..., : x.shape[-1]]])
            for x, extra in ((key, call["bias_k"]), (value, call["bias_v"]))
        )
    # [tokens, batch, heads * head_dim] -> [batch, heads, tokens, head_dim]
    query, key, value = (x.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3) for x in (query, key, value))
    if call["static_k"] is not None:
        key = call["static_k"].unflatten(0, (n, heads))
    if call["static_v"] is not None:
        value = call["static_v"].unflatten(0, (n, heads))
    if call["add_zero_attn"]:
        key, value = (functional.pad(x, (0, 0, 0, 1)) for x in (key, value))

    def pad_mask(mask: Tensor | None, fill: float | bool) -> Tensor | None:
        """Adds a column for each key that ``bias_k`` and ``add_zero_attn`` append."""
        return None if mask is None else functional.pad(mask, (0, key.shape[2] - mask.shape[-1]), value=fill)

    # attn_mask is [queries, keys] or [batch * heads, queries, keys]; key_padding_mask is [batch, keys] or
    # [keys].
    bias, allowed = _split(call["attn_mask"], marks_blocked=True)
    bias, allowed = (
        m.unflatten(0, (n, heads)) if m is not None and m.ndim == 3 else m for m in (bias, allowed)
    )
    padding_bias, not_padding = _split(call["key_padding_mask"], marks_blocked=True)
    padding_bias, not_padding = (
        m if m is None else m.reshape(-1, 1, 1, m.shape[-1]) for m in (padding_bias, not_padding)
    )
    biases = [m for m in (pad_mask(bias, 0.0), pad_mask(padding_bias, 0.0)) if m is not None]
    masks = [_mask_axes(m) for m in (pad_mask(allowed, True), pad_mask(not_padding, True)) if m is not None]
    mask = None if not masks else masks[0] if len(masks) == 1 else masks[0] & masks[1]
    if mask is not None:
        mask = mask.expand(mask.shape[0], mask.shape[1], query.shape[2], key.shape[2])
    return AttentionCall(
        query, key, value, query.shape[-1] ** -0.5, sum(biases[1:], biases[0]) if biases else None, mask
    )


MULTI_HEAD = inspect.signature(functional.multi_head_attention_forward)
CALLS: dict[Callable, Callable[..., AttentionCall]] = {
    functional.scaled_dot_product_attention: of_scaled_dot_product,
    functional.multi_head_attention_forward: of_multi_head,
    softmax_attention: of_scaled_dot_product,
    tied_attention: of_tied,
}


def operands_of(args: tuple, kwargs: dict) -> tuple[Tensor, Tensor]:
    """Returns queries and keys from the arguments of a call; for :func:`.tied_attention` they are the same
    tensor.
    """
    query: Tensor = args[0] if args else kwargs["query" if "query" in kwargs else "coords"]
    key: Tensor = args[1] if len(args) > 1 and isinstance(args[1], Tensor) else kwargs.get("key", query)
    return query, key


def is_bias(term: Float[Tensor, "..."]) -> bool:
    """Whether a term of the scores does more than block keys: whether it has a number other than zero and
    those up to :data:`BLOCKED`.
    """
    return bool(((term != 0) & ~(term <= BLOCKED)).any())


def _split(mask: Tensor | None, *, marks_blocked: bool = False) -> tuple[Tensor | None, Tensor | None]:
    """Splits a mask into a bias and the allowed keys.

    Models block a key with -inf or with a large negative number; every value up to :data:`BLOCKED` blocks.
    """
    if mask is None:
        return None, None
    if mask.dtype == torch.bool:
        return None, ~mask if marks_blocked else mask
    allowed = mask > BLOCKED
    return mask.masked_fill(~allowed, 0.0), allowed


def _four_axes(x: Tensor) -> Tensor:
    """Reshapes tokens to [batch, heads, tokens, dim]. The first of three axes is the batch; axes before the
    heads are merged.
    """
    if x.ndim == 3:
        return x.unsqueeze(1)
    return x[None, None] if x.ndim == 2 else x.flatten(0, -4)


def _mask_axes(mask: Tensor) -> Tensor:
    """Adds leading axes of length 1 to a mask, up to four axes."""
    return mask[(None,) * (4 - mask.ndim)]


def declared_bilinear(module: nn.Module) -> dict[str, Float[Tensor, "heads _ dim"]]:
    """Returns W of a module with a method ``bilinear()``, or the projections of a
    ``torch.nn.MultiheadAttention``, as the fields of :class:`.Activations`; nothing for any other module.

    Nothing also if keys and queries of a ``MultiheadAttention`` have different widths. Biases of the
    projections are omitted: they add terms to the score that are constant or linear in one token.
    """
    declared = getattr(module, "bilinear", None)
    if callable(declared):
        W = declared()
        return {"bilinear": W.detach()} if isinstance(W, Tensor) and W.ndim == 3 else {}
    if not isinstance(module, nn.MultiheadAttention):
        return {}
    query, key = _maps(module)
    if query.shape != key.shape:
        return {}
    return {"key_map": key, "query_map": query * module.head_dim**-0.5}


def _maps(module: nn.MultiheadAttention) -> tuple[Tensor, Tensor]:
    """Returns the projections of queries and of keys, ``[heads, head_dim, dim]`` each."""
    # matrices of queries, keys and values, [3 * dim, dim]; None if they are separate parameters
    stacked = module.in_proj_weight
    query, key = (
        (module.q_proj_weight, module.k_proj_weight) if stacked is None else stacked.detach().chunk(3)[:2]
    )
    query, key = (matrix.detach().unflatten(0, (module.num_heads, -1)) for matrix in (query, key))
    return query, key
