"""Attention from the registry of ``transformers`` that cannot be recognised from its operations: flex, flash,
sinks.

``AttentionInterface.get_interface`` returns the attention function of an implementation. Every model calls
this function with the same arguments: module, queries, keys, values and mask. During an observed pass,
``get_interface`` returns a wrapper that calls the function, so outputs do not change, and reports the call.
This module does not import ``transformers``: without that import there is no such model.

A *sink* is a learnt score that takes part in the softmax but has no key. It is recorded as an additional last
key with value zero that every query may see. Rows of the weights then sum to one, and weights times values is
the output of the model. Source: :cite:t:`xiao2024efficient` (sinks).
"""

import contextlib
import math
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..core.threads import SharedContext
from .attention_calls import BLOCKED, AttentionCall


@dataclass(frozen=True)
class RegistryCall(AttentionCall):
    """One call of a function of the registry, with two more fields than :class:`.AttentionCall`.

    Attributes:
        softcap: bound c of the scores, which become c tanh(scores / c). None: no bound.
        sinks: score of the sink of each head, ``[batch, heads, queries, 1]``. None: no sinks.
    """

    softcap: float | None = None
    sinks: Float[Tensor, "batch heads q 1"] | None = None

    @property
    def biased(self) -> bool:
        """Whether the scores differ from a masked product of queries and keys."""
        return super().biased or self.softcap is not None or self.sinks is not None

    def weights(self) -> Float[Tensor, "batch heads q k"]:
        """Computes the weights in float32 or a wider dtype; with sinks, the last key is the sink."""
        if self.softcap is None and self.sinks is None:
            return super().weights()
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        keys = self.key if self.sinks is None else self.key[:, :, :-1]
        scores = (self.query.to(dtype) * self.scale) @ keys.to(dtype).mT
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.bias is not None:
            scores = scores + self.bias[..., : scores.shape[-1]]
        if self.sinks is not None:
            scores = torch.cat([scores, self.sinks.to(dtype)], -1)
        return (
            scores.softmax(-1)
            if self.allowed is None
            else scores.masked_fill(~self.allowed, -math.inf).softmax(-1)
        )


@contextlib.contextmanager
def observed_registry(
    around: Callable[[Callable, Callable[[], RegistryCall], tuple, dict], Any],
) -> Iterator[None]:
    """Replaces each call of a function of the registry by ``around(function, record, args, kwargs)``.

    ``around`` must call the function and return its output; ``record()`` returns the :class:`RegistryCall`.
    Nothing is replaced if ``transformers`` has not been imported. Calls of other threads are left alone.
    """
    if _interface() is None:
        yield
        return
    observers = _observers.__dict__.setdefault("all", [])
    observers.append(around)
    try:
        with _replaced():
            yield
    finally:
        observers.pop()


_observers = threading.local()  # ``all``: the functions ``around`` of this thread, the outermost first


def _interface() -> Any:
    """Returns the class of the registry; None if ``transformers`` is not imported or has none."""
    interface = getattr(sys.modules.get("transformers.modeling_utils"), "AttentionInterface", None)
    return interface if hasattr(interface, "get_interface") else None


@contextlib.contextmanager
def _replacement() -> Iterator[None]:
    """Replaces ``get_interface``, which all threads share, by one that asks for the observers of the thread
    that calls.
    """
    interface = _interface()
    original = interface.get_interface
    # then the replacement must be deleted in the end, not overwritten
    inherited = "get_interface" not in vars(interface)

    def get_interface(self, implementation, default):
        function = original(self, implementation, default)
        for around in getattr(_observers, "all", ()):
            function = _observed(function, implementation, around)
        return function

    interface.get_interface = get_interface
    try:
        yield
    finally:
        if inherited:
            del interface.get_interface
        else:
            interface.get_interface = original


_replaced = SharedContext(_replacement)


def _observed(function: Callable, implementation: str, around: Callable) -> Callable:
    """Returns a function of the registry that reports its calls to one observer."""

    def observed(*args, **kwargs):
        return around(function, lambda: _record(implementation, *args, **kwargs), args, kwargs)

    return observed


def _record(
    implementation: str,
    module: nn.Module,
    query: Float[Tensor, "batch heads q p"],
    key: Float[Tensor, "batch groups k p"],
    value: Float[Tensor, "batch groups k v"],
    attention_mask: Any = None,
    **options: Any,
) -> RegistryCall:
    """Records a call from the arguments of a function of the registry; keys and values have one head per
    group of query heads.
    """
    query, key, value = query.detach(), key.detach(), value.detach()
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (key, value))
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    # The eager implementation receives causality as a part of its mask and ignores ``is_causal``.
    bias, allowed = _mask(attention_mask, query, key, causal=bool(causal) and implementation != "eager")
    if (position := options.get("position_bias")) is not None:
        bias = position.detach() if bias is None else bias + position.detach()
    scale = options.get("scaling")
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    call = RegistryCall(query, key, value, scale, bias, allowed, options.get("softcap"))
    sinks = options.get("s_aux", getattr(module, "sinks", None))
    return call if sinks is None else _with_sinks(call, sinks.detach())


def _with_sinks(call: RegistryCall, sinks: Float[Tensor, "..."]) -> RegistryCall:
    """Appends a key with value zero to a call, the sink."""
    scores = sinks.reshape(1, -1, 1, 1).expand(*call.query.shape[:-1], 1)
    key, value = (nn.functional.pad(x, (0, 0, 0, 1)) for x in (call.key, call.value))
    allowed = None if call.allowed is None else nn.functional.pad(call.allowed, (0, 1), value=True)
    return replace(call, key=key, value=value, allowed=allowed, sinks=scores)


def _mask(
    mask: Any, query: Float[Tensor, "batch heads q p"], key: Float[Tensor, "batch heads k p"], *, causal: bool
) -> tuple[Float[Tensor, "..."] | None, Bool[Tensor, "#batch #heads #q k"] | None]:
    """Converts a mask in any form of the registry to a bias of the scores and the mask of the
    allowed keys.
    """
    n, heads, queries = query.shape[:3]
    keys, device = key.shape[2], query.device
    # With a cache there are fewer queries than keys. The queries are the last tokens, so the last query sees
    # all keys.
    lower = (
        torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)[None, None]
        if causal and queries > 1
        else None
    )
    if mask is None:
        return None, lower
    if hasattr(mask, "mask_mod"):  # the block mask of flex attention
        from torch.nn.attention.flex_attention import create_mask

        return None, create_mask(mask.mask_mod, n, heads, queries, keys, device=device)
    if mask.ndim == 2:  # flash attention: True or 1 for the tokens that are not padding, [batch, keys]
        not_padding = mask[:, None, None, :keys].bool()
        return None, not_padding.expand(n, 1, queries, keys) if lower is None else not_padding & lower
    mask = mask[..., :keys].detach()
    if mask.dtype == torch.bool:
        return None, mask
    allowed = mask > BLOCKED
    return mask.masked_fill(~allowed, 0.0), allowed
