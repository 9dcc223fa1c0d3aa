"""Attention that a model of ``transformers`` takes from the package's registry, where its operations show nothing: flex, flash, sinks.

``AttentionInterface.get_interface`` returns the function that a model calls with its module, queries, keys, values and mask, whatever the
implementation. During an observed pass it returns a function that calls the same one, so outputs do not change, and reports the call if no
attention was recognised inside. The package is never imported here: without a model of it there is nothing to observe.

A *sink* is a learnt score without a key that takes part in the softmax. It is appended as a last key with value zero, which every query may
see, so that rows of weights are distributions and weights times values is what the model computed.
Source: :cite:t:`xiao2024efficient` (sinks).
"""

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from .attention_calls import AttentionCall


@dataclass(frozen=True)
class RegistryCall(AttentionCall):
    """One call of a function of the registry; fields as :class:`.AttentionCall`.

    Attributes:
        softcap: bound c of scores, which become c tanh(scores / c); None if there is none.
        sinks: score of each head's sink, ``[batch, heads, queries, 1]``; None without sinks.
    """

    softcap: float | None = None
    sinks: Float[Tensor, "batch heads q 1"] | None = None

    @property
    def biased(self) -> bool:
        """Whether scores are more than a product of queries and keys, with a mask."""
        return super().biased or self.softcap is not None or self.sinks is not None

    def weights(self) -> Float[Tensor, "batch heads q k"]:
        """The weights, in float32 at least; of a model with sinks the last key is the sink."""
        if self.softcap is None and self.sinks is None:
            return super().weights()
        wide = torch.promote_types(self.query.dtype, torch.float32)
        keys = self.key if self.sinks is None else self.key[:, :, :-1]
        scores = (self.query.to(wide) * self.scale) @ keys.to(wide).mT
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.bias is not None:
            scores = scores + self.bias[..., : scores.shape[-1]]
        if self.sinks is not None:
            scores = torch.cat([scores, self.sinks.to(wide)], -1)
        return scores.softmax(-1) if self.allowed is None else scores.masked_fill(~self.allowed, -math.inf).softmax(-1)


@contextlib.contextmanager
def observed_registry(around: Callable[[Callable, Callable[[], RegistryCall], tuple, dict], Any]) -> Iterator[None]:
    """Passes each call of a function of the registry through ``around(function, call, args, kwargs)``, which must return its output.

    ``call()`` makes the record of that call. Nothing happens if ``transformers`` was not imported.
    """
    package = sys.modules.get("transformers.modeling_utils")
    interface = getattr(package, "AttentionInterface", None)
    if interface is None or not hasattr(interface, "get_interface"):
        yield
        return
    original = interface.get_interface
    inherited = "get_interface" not in vars(interface)

    def get_interface(self, implementation, default):
        function = original(self, implementation, default)

        def observed(*args, **kwargs):
            return around(function, lambda: _recorded(implementation, *args, **kwargs), args, kwargs)

        return observed

    interface.get_interface = get_interface
    try:
        yield
    finally:
        if inherited:
            del interface.get_interface
        else:
            interface.get_interface = original


def _recorded(
    implementation: str,
    module: nn.Module,
    query: Float[Tensor, "batch heads q p"],
    key: Float[Tensor, "batch groups k p"],
    value: Float[Tensor, "batch groups k v"],
    attention_mask: Any = None,
    **options: Any,
) -> RegistryCall:
    """The record of a call with the arguments of the registry."""
    query, key, value = query.detach(), key.detach(), value.detach()
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (key, value))
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    bias, allowed = _mask(attention_mask, query, key, causal=bool(causal) and implementation != "eager")
    if (position := options.get("position_bias")) is not None:
        bias = position.detach() if bias is None else bias + position.detach()
    scale = options.get("scaling")
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    call = RegistryCall(query, key, value, scale, bias, allowed, options.get("softcap"))
    sinks = options.get("s_aux", getattr(module, "sinks", None))
    return call if sinks is None else _with_sinks(call, sinks.detach())


def _with_sinks(call: RegistryCall, sinks: Float[Tensor, "..."]) -> RegistryCall:
    """The call with one more key, the sink, of value zero."""
    scores = sinks.reshape(1, -1, 1, 1).expand(*call.query.shape[:-1], 1)
    key, value = (nn.functional.pad(x, (0, 0, 0, 1)) for x in (call.key, call.value))
    allowed = None if call.allowed is None else nn.functional.pad(call.allowed, (0, 1), value=True)
    return replace(call, key=key, value=value, allowed=allowed, sinks=scores)


def _mask(
    mask: Any, query: Float[Tensor, "batch heads q p"], key: Float[Tensor, "batch heads k p"], *, causal: bool
) -> tuple[Float[Tensor, "..."] | None, Bool[Tensor, "#batch #heads q k"] | None]:
    """A mask in any form of the registry as what is added to scores, and the keys that a query may see."""
    n, heads, queries = query.shape[:3]
    keys, device = key.shape[2], query.device
    # The last query sees all keys: with a cache there are fewer queries than keys.
    before = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)[None, None] if causal and queries > 1 else None
    if mask is None:
        return None, before
    if hasattr(mask, "mask_mod"):  # the block mask of flex attention
        from torch.nn.attention.flex_attention import create_mask

        return None, create_mask(mask.mask_mod, n, heads, queries, keys, device=device)
    if mask.ndim == 2:  # padding [batch, keys], as flash attention takes it
        padding = mask[:, None, None, :keys].bool()
        return None, padding.expand(n, 1, queries, keys) if before is None else padding & before
    mask = mask[..., :keys].detach()
    if mask.dtype == torch.bool:
        return None, mask
    allowed = mask > torch.finfo(mask.dtype).min / 2
    return mask.masked_fill(~allowed, 0.0), allowed
