"""Padded places of ``torch.nn.TransformerEncoder``: its fused path returns zeros there, and so must an observed pass, which takes another.

In evaluation mode the encoder packs padded sequences into nested tensors, unless something forbids it, and unpacks them before its last
norm. The path that a probe can observe keeps a number at padded places. The conditions here are those of torch's own ``forward``.
"""

import contextlib
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

LEFT_ALIGNED = torch._nested_tensor_from_mask_left_aligned  # pyright: ignore[reportPrivateImportUsage]
ENCODER = inspect.signature(nn.TransformerEncoder.forward)


@contextlib.contextmanager
def zeros_at_padding(modules: Iterable[nn.Module], args: tuple, kwargs: dict) -> Iterator[None]:
    """Sets padded places to zero after the last layer of every encoder that would have taken the fused path without a probe.

    Args:
        modules: of the network; the first one runs already, so that a hook on it comes too late.
        args, kwargs: with which it runs.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    handles = []
    for number, encoder in enumerate(modules):
        if isinstance(encoder, nn.TransformerEncoder) and fused and len(encoder.layers):
            handles += _watch(encoder, None if number else _padding(encoder, args, kwargs))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _watch(encoder: nn.TransformerEncoder, mask: Tensor | None) -> list[Any]:
    padding = [mask]

    def begin(module: nn.Module, args: tuple, kwargs: dict) -> None:
        padding[0] = _padding(encoder, args, kwargs)

    def unpacked(module: nn.Module, args: tuple, output: Tensor) -> Tensor | None:
        mask = padding[0]
        return None if mask is None else output.masked_fill(mask[..., None], 0.0)

    return [encoder.register_forward_pre_hook(begin, with_kwargs=True), encoder.layers[-1].register_forward_hook(unpacked)]


def _padding(encoder: nn.TransformerEncoder, args: tuple, kwargs: dict) -> Tensor | None:
    """The padded places ``[batch, seq]`` if the encoder would pack its input, None otherwise."""
    call = ENCODER.bind(encoder, *args, **kwargs).arguments
    src, padding, first = call["src"], call.get("src_key_padding_mask"), encoder.layers[0]
    if padding is None or call.get("mask") is not None or src.dim() != 3 or first.training or torch.is_autocast_enabled():
        return None
    if not getattr(encoder, "use_nested_tensor", False) or src.device.type not in ("cpu", "cuda"):
        return None
    if torch.is_grad_enabled() and (src.requires_grad or any(parameter.requires_grad for parameter in first.parameters())):
        return None
    keep = padding.logical_not()
    if getattr(encoder, "mask_check", True) and not LEFT_ALIGNED(src, keep):
        return None
    return ~keep
