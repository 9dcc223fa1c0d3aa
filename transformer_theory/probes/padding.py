"""Zeros at the padding of ``torch.nn.TransformerEncoder``, so that an observed pass returns the same outputs
as its fused kernel.

In evaluation mode and under further conditions, the encoder packs padded sequences into nested tensors and
unpacks them before its last norm, which sets the padding to zero. An observed pass does not take this path
(:func:`.eager`); the outputs at the padding would then not be zero. The conditions below are copied from
torch's ``TransformerEncoder.forward``.
"""

import contextlib
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .redirect import in_this_thread

LEFT_ALIGNED = torch._nested_tensor_from_mask_left_aligned  # pyright: ignore[reportPrivateImportUsage]
ENCODER = inspect.signature(nn.TransformerEncoder.forward)


@contextlib.contextmanager
def zeros_at_padding(modules: Iterable[nn.Module], args: tuple, kwargs: dict) -> Iterator[None]:
    """Sets the padding to zero after the last layer of each encoder that would use nested tensors without a
    probe.

    Args:
        modules: modules of the network, the network itself first.
        args, kwargs: arguments of the network.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    handles = []
    for number, encoder in enumerate(modules):
        if isinstance(encoder, nn.TransformerEncoder) and fused and len(encoder.layers):
            # The network is already running, so a hook on its start comes too late: its mask is computed
            # here.
            handles += _register(encoder, None if number else _padding(encoder, args, kwargs))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _register(encoder: nn.TransformerEncoder, mask: Tensor | None) -> list[Any]:
    """Registers hooks that compute the padding when the encoder starts, set it to zero after its last layer,
    and set what is not finite there to zero before its first one.
    """
    padding = [mask]  # a list, so that both hooks share the current mask

    def begin(module: nn.Module, args: tuple, kwargs: dict) -> None:
        padding[0] = _padding(encoder, args, kwargs)

    def without_nan(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        mask, x = padding[0], args[0] if args else kwargs["src"]
        # The fused kernel does not read the padding. A weight of zero times NaN would be NaN.
        if mask is None or bool(x[mask].isfinite().all()):
            return None
        x = x.masked_fill(mask[..., None], 0.0)
        return ((x, *args[1:]), kwargs) if args else ((), {**kwargs, "src": x})

    def set_zero(module: nn.Module, args: tuple, output: Tensor) -> Tensor | None:
        mask = padding[0]
        return None if mask is None else output.masked_fill(mask[..., None], 0.0)

    return [
        encoder.register_forward_pre_hook(in_this_thread(begin), with_kwargs=True),
        encoder.layers[0].register_forward_pre_hook(in_this_thread(without_nan), with_kwargs=True),
        encoder.layers[-1].register_forward_hook(in_this_thread(set_zero)),
    ]


def _padding(encoder: nn.TransformerEncoder, args: tuple, kwargs: dict) -> Tensor | None:
    """Returns the mask of the padding, ``[batch, seq]``, if the encoder would use nested tensors; otherwise
    None.
    """
    call = ENCODER.bind(encoder, *args, **kwargs).arguments
    src, padding, first = call["src"], call.get("src_key_padding_mask"), encoder.layers[0]
    if (
        padding is None
        or call.get("mask") is not None
        or src.dim() != 3
        or first.training
        or torch.is_autocast_enabled()
    ):
        return None
    if not getattr(encoder, "use_nested_tensor", False) or src.device.type not in ("cpu", "cuda"):
        return None
    if torch.is_grad_enabled() and (
        src.requires_grad or any(parameter.requires_grad for parameter in first.parameters())
    ):
        return None
    keep = padding.logical_not()
    if getattr(encoder, "mask_check", True) and not LEFT_ALIGNED(src, keep):
        return None
    return ~keep
