r"""Calls of torch's attention functions, whose weights are computed a second time, and the bilinear form that a module declares.

    weights = softmax(scale Q K^T + bias) over the allowed keys,     Q, K, V  [batch, heads, tokens, head_dim].

The fused kernels hide their weights, so they are computed again from the arguments. Masks have opposite meanings: a boolean mask of
``scaled_dot_product_attention`` marks the keys that *may* be seen, one of ``multi_head_attention_forward`` those that may *not*. Dropout is
left out: these are the weights before it.

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


@dataclass(frozen=True)
class AttentionCall:
    """One call of an attention function.

    Attributes:
        query, key, value: ``[batch, heads, tokens, head_dim]``; keys and values shared by groups of heads are repeated.
        scale: of the scores.
        bias: added to the scores, broadcastable to ``[batch, heads, queries, keys]``.
        allowed: keys that a query may see, broadcastable likewise; None if all.
    """

    query: Float[Tensor, "batch heads q head_dim"]
    key: Float[Tensor, "batch heads k head_dim"]
    value: Float[Tensor, "batch heads k value_dim"]
    scale: float
    bias: Float[Tensor, "..."] | None = None
    allowed: Bool[Tensor, "#batch #heads q k"] | None = None

    @property
    def biased(self) -> bool:
        """Whether more than a mask is added to the scores."""
        return self.bias is not None and bool(self.bias.any())

    def weights(self) -> Float[Tensor, "batch heads q k"]:
        """The weights, in float32 at least; a row without any allowed key is zero."""
        wide = torch.promote_types(self.query.dtype, torch.float32)
        scores = (self.query.to(wide) * self.scale) @ self.key.to(wide).mT
        if self.bias is not None:
            scores = scores + self.bias
        if self.allowed is None:
            return scores.softmax(-1)
        weights = scores.masked_fill(~self.allowed, -math.inf).softmax(-1)
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
    """The call ``torch.nn.functional.scaled_dot_product_attention(...)``, same arguments; tokens ``[..., heads, tokens, head_dim]``."""
    batch, (queries, keys) = query.shape[:-2], (query.shape[-2], key.shape[-2])
    bias, allowed = _split(attn_mask)
    if is_causal:
        allowed = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()
    bias, allowed = (
        None if m is None else _four(m.expand(*batch, queries, keys)) if query.ndim != 4 else _padded(m) for m in (bias, allowed)
    )
    query, key, value = _four(query), _four(key), _four(value)
    if key.shape[1] != query.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    if value.shape[1] != query.shape[1]:
        value = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
    return AttentionCall(query, key, value, query.shape[-1] ** -0.5 if scale is None else scale, bias, allowed)


def of_tied(coords: Float[Tensor, "..."], *, scale: float, is_causal: bool = False) -> AttentionCall:
    """The call ``tied_attention(...)``, same arguments: queries, keys and values are one matrix."""
    return of_scaled_dot_product(coords, coords, coords, scale=scale, is_causal=is_causal)


def of_multi_head(*args, **kwargs) -> AttentionCall:
    """The call ``torch.nn.functional.multi_head_attention_forward(...)``, same arguments; tokens ``[tokens, batch, dim]``."""
    bound = MULTI_HEAD.bind(*args, **kwargs)
    bound.apply_defaults()
    call = bound.arguments
    heads = call["num_heads"]
    separate = call["use_separate_proj_weight"]
    matrices = [call[f"{name}_proj_weight"] for name in "qkv"] if separate else call["in_proj_weight"].chunk(3)
    biases = (None,) * 3 if call["in_proj_bias"] is None else call["in_proj_bias"].chunk(3)
    streams = [call[name] if call[name].ndim == 3 else call[name].unsqueeze(1) for name in ("query", "key", "value")]
    query, key, value = (functional.linear(x, W, b) for x, W, b in zip(streams, matrices, biases))
    n = query.shape[1]
    if call["bias_k"] is not None:
        key, value = (torch.cat([x, extra.expand(1, n, -1)]) for x, extra in ((key, call["bias_k"]), (value, call["bias_v"])))
    query, key, value = (x.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3) for x in (query, key, value))
    if call["static_k"] is not None:
        key = call["static_k"].unflatten(0, (n, heads))
    if call["static_v"] is not None:
        value = call["static_v"].unflatten(0, (n, heads))
    if call["add_zero_attn"]:
        key, value = (functional.pad(x, (0, 0, 0, 1)) for x in (key, value))

    def fitted(mask: Tensor | None, blank: float | bool) -> Tensor | None:
        """The mask with columns for the keys that were appended."""
        return None if mask is None else functional.pad(mask, (0, key.shape[2] - mask.shape[-1]), value=blank)

    bias, allowed = _split(call["attn_mask"], marks_blocked=True)
    bias, allowed = (m.unflatten(0, (n, heads)) if m is not None and m.ndim == 3 else m for m in (bias, allowed))
    more_bias, more_allowed = _split(call["key_padding_mask"], marks_blocked=True)
    more_bias, more_allowed = (m if m is None else m.reshape(-1, 1, 1, m.shape[-1]) for m in (more_bias, more_allowed))
    total = [m for m in (fitted(bias, 0.0), fitted(more_bias, 0.0)) if m is not None]
    masks = [_padded(m) for m in (fitted(allowed, True), fitted(more_allowed, True)) if m is not None]
    both = None if not masks else masks[0] if len(masks) == 1 else masks[0] & masks[1]
    if both is not None:
        both = both.expand(both.shape[0], both.shape[1], query.shape[2], key.shape[2])
    return AttentionCall(query, key, value, query.shape[-1] ** -0.5, sum(total[1:], total[0]) if total else None, both)


MULTI_HEAD = inspect.signature(functional.multi_head_attention_forward)
CALLS: dict[Callable, Callable[..., AttentionCall]] = {
    functional.scaled_dot_product_attention: of_scaled_dot_product,
    functional.multi_head_attention_forward: of_multi_head,
    softmax_attention: of_scaled_dot_product,
    tied_attention: of_tied,
}


def operands_of(args: tuple, kwargs: dict) -> tuple[Tensor, Tensor]:
    """Queries and keys among the arguments of a call; they are the same tensor for :func:`.tied_attention`."""
    query: Tensor = args[0] if args else kwargs["query" if "query" in kwargs else "coords"]
    key: Tensor = args[1] if len(args) > 1 and isinstance(args[1], Tensor) else kwargs.get("key", query)
    return query, key


def _split(mask: Tensor | None, *, marks_blocked: bool = False) -> tuple[Tensor | None, Tensor | None]:
    """A mask as (bias, allowed). The lowest values of a float type block a key as -inf does."""
    if mask is None:
        return None, None
    if mask.dtype == torch.bool:
        return None, ~mask if marks_blocked else mask
    allowed = mask > torch.finfo(mask.dtype).min / 2
    return mask.masked_fill(~allowed, 0.0), allowed


def _four(x: Tensor) -> Tensor:
    """[batch, heads, tokens, dim] from tokens with fewer or more leading dimensions; of three dimensions the first is the batch."""
    if x.ndim == 3:
        return x.unsqueeze(1)
    return x[None, None] if x.ndim == 2 else x.flatten(0, -4)


def _padded(mask: Tensor) -> Tensor:
    """A mask with four dimensions; missing ones have length 1."""
    return mask[(None,) * (4 - mask.ndim)]


def declared_bilinear(module: nn.Module) -> Float[Tensor, "heads dim dim"] | None:
    """W of a module that has a method ``bilinear()``, or of a ``torch.nn.MultiheadAttention`` with keys and queries of one width.

    Biases of the projections are left out; they add a term that is linear in x. None for any other module.
    """
    declared = getattr(module, "bilinear", None)
    if callable(declared):
        W = declared()
        return W.detach() if isinstance(W, Tensor) and W.ndim == 3 else None
    if not isinstance(module, nn.MultiheadAttention):
        return None
    stacked = module.in_proj_weight
    query, key = (module.q_proj_weight, module.k_proj_weight) if stacked is None else stacked.detach().chunk(3)[:2]
    if query.shape != key.shape:
        return None
    query, key = (matrix.detach().unflatten(0, (module.num_heads, -1)) for matrix in (query, key))
    return key.mT @ query * module.head_dim**-0.5
